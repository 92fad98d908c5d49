"""Files of an export that workers make, wherever they are: each is left in the scratch folder of the output, from where the one
who has the lease takes it. What a worker leaves there late is swept with all else that is not whole."""

import importlib
import os
from contextlib import suppress
from dataclasses import dataclass

from elmo_store.exports.formats import KNOWN, Settings
from elmo_store.exports.outputs import made_name
from elmo_store.exports.work import Work, vectors_of
from elmo_store.exports.writing import Writing
from elmo_store.format.manifest import WeightSet
from elmo_store.reading.store import StoreReader
from elmo_store.storage import lease
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root


@dataclass(frozen=True)
class FileTask:
    """One file of an export to the folder ``output``, by the run that has its lease.

    Attributes:
        name: of the file.
        sentences: the first that it holds, and the one after its last.
    """

    output: Root
    run: str
    name: str
    sentences: tuple[int, int]
    settings: Settings
    weights: tuple[WeightSet, ...]


def make_apart(task: FileTask, store: StoreReader) -> None:
    """Write the file, and leave it for `take_made`. LeaseLostError if another run has the output."""
    lease.check(task.output, task.run)
    work = Work(store, vectors_of(store, task.settings, task.weights), task.settings, "", lambda tokens: None, "")
    with scratch_folder() as folder:
        path = str(folder / "file")
        write(work, {task.name: path}, range(*task.sentences))
        lease.check(task.output, task.run)
        task.output.put_file(made_name(task.run, task.name), path)


def take_made(task: FileTask, writing: Writing) -> bool:
    """Give the file its name, if a worker has left it; whether it has."""
    root, made = task.output, made_name(task.run, task.name)
    if root.size(made) is None:
        return False
    with writing.whole_file(task.name, {}) as path:
        if root.is_local:
            os.replace(root.path(made), path)
        else:
            root.calls.get_file(root.path(made), path)
    with suppress(OSError):  # what stays is swept at the end
        root.remove(made)
    return True


def write(work: Work, paths: dict[str, str], sentences: range) -> None:
    """Write the files of these paths by their format's writer."""
    importlib.import_module(f"elmo_store.exports.{KNOWN[work.settings.format].module}").write(work, paths, sentences)
