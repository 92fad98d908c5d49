"""Imports of libraries that are large, or may be missing.

The large ones are imported without the garbage collector: PyTorch and Beam make hundreds of thousands of objects meanwhile, none
of which is garbage, and the collector looks at all of them again and again.
"""

import gc
import importlib.util
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


def is_installed(module: str) -> bool:
    """Whether the module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None
