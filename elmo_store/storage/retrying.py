"""The one policy of retries: what may pass is tried again, with growing random pauses, until a deadline."""

import errno
import itertools
import logging
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from elmo_store.errors import StoreError

DEADLINE_SECONDS = 60.0  # how long an operation is retried, elsewhere than on a local disk
LONGEST_PAUSE_SECONDS = 15.0
LOCAL_ATTEMPTS, LOCAL_PAUSE_SECONDS = 4, 1.0  # waiting helps little there
T = TypeVar("T")
_log = logging.getLogger(__name__)

# What no repetition mends.
_FINAL = (
    EOFError, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError,
    StoreError, ValueError, TypeError, LookupError, AttributeError, ImportError, NotImplementedError, MemoryError,
)  # fmt: skip
_FINAL_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG, errno.EFBIG})


def is_transient(error: BaseException) -> bool:
    """Whether ``error`` of a filesystem may be gone the next time. Filesystems have errors of their own, hence by exclusion."""
    return isinstance(error, Exception) and not isinstance(error, _FINAL) and getattr(error, "errno", None) not in _FINAL_NUMBERS


def retry(
    work: Callable[[], T],
    *,
    local: bool,
    transient: Callable[[BaseException], bool] = is_transient,
    attempts: int | None = None,
) -> T:
    """What ``work`` returns, retried while its error is ``transient``; then its last error.

    ``local``: on a local disk. ``attempts``: at most, elsewhere until the deadline if that is not given.
    """
    deadline, most = time.monotonic() + DEADLINE_SECONDS, LOCAL_ATTEMPTS if local else attempts
    first, longest = (0.05, LOCAL_PAUSE_SECONDS) if local else (0.5, LONGEST_PAUSE_SECONDS)
    for attempt in itertools.count(1):
        try:
            return work()
        except BaseException as error:
            if attempt == most or (most is None and time.monotonic() >= deadline) or not transient(error):
                raise
            _log.info("trying again: %r", error)
        time.sleep(random.uniform(0, min(longest, first * 2.0 ** min(attempt, 30))))
    raise AssertionError


class Retrying:
    """Objects whose every call is retried as `retry` does; typed as what it wraps, see `retried`."""

    def __init__(self, objects: Any, *, local: bool) -> None:
        self._objects, self._local = objects, local

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._objects, name)
        return lambda *args, **options: retry(partial(call, *args, **options), local=self._local)


def retried(objects: T, *, local: bool) -> T:
    """``objects`` whose every call is retried."""
    return cast(T, Retrying(objects, local=local))
