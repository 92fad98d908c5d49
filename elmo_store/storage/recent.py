"""The values that were used last, kept for a while: an LRU cache that threads share."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Up to ``most`` values by key. Two threads may compute a value twice, never wrongly.

    A sentence that is read looks twice into such a cache: cachetools' LRUCache, in Python, makes that 5 to 10% of its time.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, make: Callable[[list[K]], list[V]]) -> V:
        """`get_all` of one key."""
        try:  # without the lock: each of these is one step, and a value that leaves between them is made again
            self._values.move_to_end(key)
            return self._values[key]
        except KeyError:
            pass
        return self.get_all([key], make)[0]

    def get_all(self, keys: Iterable[K], make: Callable[[list[K]], list[V]]) -> list[V]:
        """The value of each key, in order; ``make`` is called once, with the keys whose values are not kept, each once."""
        wanted = list(keys)
        with self._lock:
            values = {key: self._values[key] for key in wanted if key in self._values}
            for key in values:
                self._values.move_to_end(key)
        if missing := [key for key in dict.fromkeys(wanted) if key not in values]:
            made = dict(zip(missing, make(missing), strict=True))
            values |= made
            with self._lock:
                self._values |= made
                while len(self._values) > self._most:
                    self._values.popitem(last=False)
        return [values[key] for key in wanted]
