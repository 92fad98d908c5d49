"""How far workers are: one small object a process, put now and then, so that a look at a job of any size is a listing and a few
reads.

Nothing depends on it but what the user sees: markers say what is done.
"""

import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from elmo_store.storage.root import Root
from transforms.inputs.records import TaskResult
from transforms.runtime.work import PROGRESS

SECONDS = 2.0  # between two puts of a process
_CALLS = 1000  # of the engine that are remembered one by one


class _Report:
    """An object that is put at most every `SECONDS`."""

    def __init__(self, root: Root, kind: str) -> None:
        self._root = root
        self._name = f"{PROGRESS}/{kind}-{uuid.uuid4().hex}.json"
        self._last = 0.0

    def _put(self, value: dict[str, object], *, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now - self._last >= SECONDS:
            self._last = now
            self._root.put_json(self._name, value | {"said": time.time()})


class ReadProgress(_Report):
    """Bytes of the input that this process has read and tokenised, and the tokens in them."""

    def __init__(self, root: Root) -> None:
        super().__init__(root, "read")
        self._bytes = self._tokens = self._tasks = 0

    def reading(self, n_bytes: int) -> None:
        """So much of the present task is read."""
        self._put(self._value(n_bytes), at_once=False)

    def done(self, result: TaskResult) -> None:
        """A task is done, now or by an earlier run."""
        self._bytes += result.bytes_read
        self._tokens += result.n_tokens
        self._tasks += 1
        self._put(self._value(0), at_once=False)

    def _value(self, n_bytes: int) -> dict[str, object]:
        return {"bytes": self._bytes + n_bytes, "tokens": self._tokens, "tasks": self._tasks}


class ShardProgress(_Report):
    """Ranges of the shards that this process wrote or saw written, and what its calls of the engine came to."""

    def __init__(self, root: Root) -> None:
        super().__init__(root, "shards")
        self._lock = threading.Lock()  # several threads write shards
        self._ranges: list[list[int]] = []  # [first, stop], in the order in which they were done
        self._calls: dict[float, int] = {}  # begin (Unix seconds) → tokens
        self._ended = 0.0

    def written_before(self, shards: Iterable[int]) -> None:
        """Shards that an earlier run wrote."""
        with self._lock:
            for shard in shards:
                self._add(shard)
            self._put(self._value(), at_once=False)

    def done(self, shard: int, stats: Mapping[str, Any]) -> None:
        """Shard ``shard`` is written; ``stats`` are those of its marker."""
        with self._lock:
            self._add(shard)
            self._ended = max(self._ended, float(stats.get("finished", time.time())))
            began = float(stats.get("call_began", self._ended))
            self._calls[began] = int(stats.get("call_tokens", stats.get("tokens", 0)))
            self._put(self._value(), at_once=False)

    def flush(self) -> None:
        """Put what was not put yet; when a task ends."""
        with self._lock:
            self._put(self._value(), at_once=True)

    def _add(self, shard: int) -> None:
        if self._ranges and self._ranges[-1][1] == shard:
            self._ranges[-1][1] = shard + 1
        else:
            self._ranges.append([shard, shard + 1])

    def _value(self) -> dict[str, object]:
        began = min(self._calls, default=0.0)
        if len(self._calls) > _CALLS:  # the first call's begin and the sum are all that is needed
            self._calls = {began: sum(self._calls.values())}
        return {"ranges": self._ranges, "began": began, "ended": self._ended, "call_tokens": sum(self._calls.values())}
