"""Imports of libraries that are large, or may be missing.

The large ones are imported without the garbage collector: PyTorch and Beam make hundreds of thousands of objects meanwhile, none
of which is garbage, and the collector looks at all of them again and again; so it leaves them out afterwards, too.
"""

import atexit
import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nothing_to_collect() -> Iterator[None]:
    """Around imports: no collection meanwhile, and none of what was imported."""
    on, n_modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > n_modules:  # a process does that once: what a job leaves behind can be collected
            gc.freeze()
            atexit.register(gc.unfreeze)  # C++ libraries complain of what an interpreter that ends leaves behind
        if on:
            gc.enable()


def is_installed(module: str) -> bool:
    """Whether the module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None
