"""The values that were used last, kept for a while: safe for threads, bounded.

Reading from two threads may compute a value twice, never wrongly; a value that is dropped while somebody holds it stays his.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Up to ``most`` values by key; the one that was used longest ago goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, make: Callable[[K], V]) -> V:
        """The value of ``key``, made by ``make`` if it is not at hand."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        return self.get_all([key], lambda missing: [make(missing[0])])[0]

    def get_all(self, keys: Iterable[K], make: Callable[[list[K]], list[V]]) -> list[V]:
        """The value of each key, in order; ``make`` is called once, with the keys that are not at hand, each once."""
        wanted = list(keys)
        found: dict[K, V] = {}
        with self._lock:
            for key in wanted:
                if key in self._values:
                    self._values.move_to_end(key)
                    found[key] = self._values[key]
        missing = [key for key in dict.fromkeys(wanted) if key not in found]
        if missing:
            found.update(zip(missing, make(missing), strict=True))
            with self._lock:
                for key in missing:
                    self._values[key] = found[key]
                    self._values.move_to_end(key)
                while len(self._values) > self._most:
                    self._values.popitem(last=False)
        return [found[key] for key in wanted]
