"""The list of the input's tasks in the scratch area.

As a part of the job's graph it would meet runners' limits on its size.
"""

import json
from collections.abc import Iterable, Iterator

from elmo_store.storage.root import Root
from transforms.inputs.records import ReadTask
from transforms.runtime.work import TASK_LIST
from transforms.stages.unpack import unpacked


def write_tasks(root: Root, tasks: Iterable[ReadTask]) -> None:
    """Leave the tasks of the job in the scratch area."""
    root.put(TASK_LIST, "".join(json.dumps(task.to_dict()) + "\n" for task in tasks).encode())


def listed_tasks(root: Root) -> list[ReadTask]:
    """The tasks of the job as they were listed, in input order."""
    return [ReadTask.from_dict(json.loads(line)) for line in root.get(TASK_LIST).decode().split("\n") if line]


def all_tasks(root: Root) -> Iterator[ReadTask]:
    """The tasks of the job in input order, those of blobs in place of what was unpacked into them.

    RuntimeError for a stream that is not unpacked.
    """
    for task in listed_tasks(root):
        if not task.pieces[0].unpack:
            yield task
            continue
        blobs = unpacked(root, task)
        if blobs is None:
            raise RuntimeError(f"{task.pieces[0].url} is not unpacked: run the same command again")
        yield from blobs
