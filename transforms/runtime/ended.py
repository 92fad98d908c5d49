"""Workers of an engine that died: the process that watches one says in its job's output where and how, for the launcher to tell.

A worker that is killed can say nothing, and what its engine says of it is that a call was cancelled.
"""

import os
import pickle
import signal
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass

from elmo_store.format.layout import ENDED
from elmo_store.storage.json_values import convert
from elmo_store.storage.root import Root
from transforms.runtime.work import BROKEN_EXIT, WATCHER

ENDS_SHOWN = 3


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker process ended. ``status``: its exit code, or minus the signal; ``peak_bytes`` of memory it had at most."""

    host: str
    process: int
    status: int
    seconds: float
    peak_bytes: int
    said: float  # Unix seconds

    def __str__(self) -> str:
        if self.status < 0:
            how = f"was killed by {signal.Signals(-self.status).name}"
        else:
            how = f"ended with exit status {self.status}"
        why = {-signal.SIGKILL: ": out of memory?", BROKEN_EXIT: ": its GPU is lost"}.get(
            self.status, ""
        )
        memory = f"{self.peak_bytes / 1e9:.1f} GB of memory at most"
        return f"a worker on {self.host} (process {self.process}) {how} after {self.seconds:.0f} s, {memory}{why}"


def introduce(root: Root) -> bool:
    """Tell the process that watches this one, if any, which job it works for. Only the first call of a process does: True."""
    try:
        pipe = os.environ.pop(WATCHER)
    except KeyError:  # also where another thread takes it between this one's look and removal
        return False
    with os.fdopen(int(pipe), "wb") as stream:
        pickle.dump(root, stream)
    return True


def put_end(introduced: bytes, end: WorkerEnd) -> None:
    """Leave ``end`` in the output of the job for which the worker had introduced itself."""
    root: Root = pickle.loads(introduced)
    root.put_json(f"{ENDED}/{uuid.uuid4().hex}.json", asdict(end))


def read_ends(root: Root, known: Collection[str] = ()) -> dict[str, WorkerEnd]:
    """Object → what it says of a worker that died in the present run; but for the ``known`` ones."""
    ends: dict[str, WorkerEnd] = {}
    for name in root.list(ENDED):
        with suppress(FileNotFoundError, ValueError):  # removed meanwhile
            if name not in known:
                ends[name] = convert(root.get_json(name), WorkerEnd)
    return ends


def described(ends: Collection[WorkerEnd]) -> str:
    """A line for each worker that died, the last ones if they are many."""
    return "\n".join(str(end) for end in sorted(ends, key=lambda end: end.said)[-ENDS_SHOWN:])
