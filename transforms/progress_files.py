"""What workers say of how far they are: one small object a process, put now and then, so that a look at a job of any size is
a listing and a few reads. May import elmo_store and transforms.records.

Nothing depends on it but what the user sees: what is done is said by markers.
"""

import os
import time
import uuid
from functools import lru_cache

from elmo_store.storage import Root
from transforms.records import TaskResult
from transforms.work import PROGRESS

SECONDS = 2.0  # between two puts of a process


class _Said:
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


class ReadProgress(_Said):
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


class ShardProgress(_Said):
    """Shards that this process has written in this run, as ranges."""

    def __init__(self, root: Root) -> None:
        super().__init__(root, "shards")
        self._ranges: list[list[int]] = []  # [first, stop], in the order in which they were written
        self._tokens = 0

    def done(self, shard: int, tokens: int) -> None:
        """Shard ``shard`` is written."""
        self._tokens += tokens
        if self._ranges and self._ranges[-1][1] == shard:
            self._ranges[-1][1] = shard + 1
        else:
            self._ranges.append([shard, shard + 1])
        self._put({"ranges": self._ranges, "tokens": self._tokens}, at_once=False)


def read_progress(root: Root) -> ReadProgress:
    """This process's `ReadProgress` of the job at ``root``."""
    return _of_process(os.getpid(), root)


@lru_cache(maxsize=4)
def _of_process(pid: int, root: Root) -> ReadProgress:
    return ReadProgress(root)
