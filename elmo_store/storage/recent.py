"""The values that were used last, kept for a while: an LRU cache that threads share, and forked processes inherit."""

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from threading import Lock
from typing import Generic, TypeVar


class ForkLock:
    """A lock that is free in a forked process, whoever held it when that was forked."""

    def __init__(self) -> None:
        self._locks = {os.getpid(): Lock()}  # by process: its threads must agree on one

    def __enter__(self) -> None:
        self._locks.setdefault(os.getpid(), Lock()).acquire()

    def __exit__(self, *_: object) -> None:
        self._locks[os.getpid()].release()


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, up to a sum of their sizes. Two threads may compute a value twice, never wrongly.

    A sentence that is read looks into such a cache: cachetools' LRUCache, in Python, makes that 5 to 10% of its time.
    """

    def __init__(self, most: int, size_of: Callable[[V], int] = lambda _: 1) -> None:
        """``most``: values that are kept, or with ``size_of`` the sum of their sizes; the one used last stays in any case."""
        self._most, self._size_of, self._size, self._lock = most, size_of, 0, ForkLock()
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, make: Callable[[list[K]], list[V]]) -> V:
        """`get_all` of one key."""
        return self.get_all([key], make)[0]

    def get_all(self, keys: Iterable[K], make: Callable[[list[K]], list[V]]) -> list[V]:
        """The value of each key, in order; ``make`` is called once, with the keys whose values are not kept, each once."""
        wanted = list(keys)
        try:  # without the lock: each of these is one step, and a value that leaves between them is looked for again
            for key in wanted:
                self._values.move_to_end(key)
            return [self._values[key] for key in wanted]
        except KeyError:
            pass
        with self._lock:
            values = {key: self._values[key] for key in wanted if key in self._values}
        if missing := [key for key in dict.fromkeys(wanted) if key not in values]:
            made = dict(zip(missing, make(missing), strict=True))
            values |= made
            with self._lock:
                for key, value in made.items():
                    self._size += self._size_of(value) - (
                        self._size_of(self._values[key]) if key in self._values else 0
                    )
                    self._values[key] = value
                while self._size > self._most and len(self._values) > 1:
                    self._size -= self._size_of(self._values.popitem(last=False)[1])
        return [values[key] for key in wanted]
