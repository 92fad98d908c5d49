"""Give back what allocators keep: beside a model, memory that was used once is memory that the next step lacks.

Never needed for correctness, and silent where it can't be done.
"""

import ctypes
from functools import cache
from typing import Any

import pyarrow as pa


@cache
def _libc() -> Any:
    try:
        return ctypes.CDLL("libc.so.6")
    except OSError:  # not glibc
        return None


def give_back() -> None:
    """Return freed memory of Arrow's pool and of glibc's arenas to the system; takes about a millisecond."""
    pa.default_memory_pool().release_unused()
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)
