"""Importing large libraries sooner: without the garbage collector.

PyTorch and Beam make hundreds of thousands of objects while they are imported, none of which is garbage; the collector looks at
all of them again and again.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nothing_to_collect() -> Iterator[None]:
    """Around imports: no collection meanwhile."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
