"""`export`: one export from its settings to its finished files."""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo_store.errors import StoreError, StoreIncompleteError
from elmo_store.exports.formats import Format, Settings, settled
from elmo_store.exports.place import Place, Writing
from elmo_store.exports.work import Work, vectors_of
from elmo_store.extras import missing_package
from elmo_store.format.layout import WORK
from elmo_store.format.manifest import own_sha256
from elmo_store.mixing.weights import read_weight_sets
from elmo_store.reading.view import View
from elmo_store.storage import lease
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import check_apart
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root

if TYPE_CHECKING:
    from elmo_store.store import Store


@dataclass(frozen=True)
class Report:
    """What an export wrote.

    Attributes:
        files: names of its files.
        sentences, tokens: of the store.
        left_out: why a sentence is not in the output → how many; {} for all formats but those that can't hold some.
    """

    files: tuple[str, ...]
    sentences: int
    tokens: int
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FileTask:
    """A file of a folder's export, which a worker makes for the run that has the lease of ``scratch``."""

    scratch: Root
    run: str
    name: str
    sentences: range  # that it holds
    settings: Settings

    @property
    def made(self) -> str:
        """Where the worker leaves it in ``scratch``."""
        return f"{WORK}/{self.run}.made/{self.name}"


# Has all the tasks made; calls its second argument from time to time, which counts what is made so far.
Workers = Callable[[Sequence[FileTask], Callable[[], None]], None]


def export(
    store: "Store",
    output: str | os.PathLike[str],
    format: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    take_over: bool = False,
    on_progress: Callable[[int], None] = lambda tokens: None,
    **settings: Any,
) -> Report:
    """Write a complete store's vectors as a file, or files, of another program; rows of BOS and EOS are left out.

    Files are made beside the output and take their names when they are whole. Memory does not grow with the store, but for what
    a format has to hold at once: names of datasets or entries, and sentence_to_index.

    Args:
        store: of states or of mixes.
        output: the file; the folder of safetensors, datasets, webdataset; how the names of elmoformanylangs' files begin. A path,
            or a URL of an object store, whose files are made on this machine first.
        format: a name of `FORMATS`.
        storage_options: what the output's filesystem takes.
        overwrite: replace a finished export, as far as its files are still as its record says.
        take_over: take the output from another run that writes to it; that run stops before its next file.
        on_progress: called with tokens written since it was called last.
        settings: fields of `Settings`; of "pooled" also ``workers``, which make the files elsewhere (`make_file`).

    Raises:
        StoreError: settings that the store or the format can't have; ids that don't say which sentence of which document each is.
        StoreIncompleteError: the store's job has not finished.
        WeightSetError: weights that can't be read, or belong to another model.
        OverlapError: the output overlaps the store.
        ExportRefusedError: the output holds a finished export, or something else.
        IsADirectoryError, NotADirectoryError: a folder stands where the file goes, or a file where the folder goes.
        LeaseHeldError: another run writes to the output, and lives.
        LeaseLostError: another run took the output over; nothing of its was touched.
        MissingPackageError: HDF5 without h5py.
    """
    if not store.manifest.complete:
        raise StoreIncompleteError(
            f"{store.url} is not complete: rerun its job to resume it, then export it"
        )
    view = store._view
    check_apart(Location("output", os.fspath(output), storage_options), view.locations())
    workers: Workers | None = settings.pop("workers", None)
    chosen = settled(
        Settings(format, **settings), mixed=store.manifest.kind == "mix", dtype=str(store.dtype)
    )
    if isinstance(chosen.weights, str):
        weights = read_weight_sets(
            chosen.weights, storage_options if "://" in chosen.weights else None
        )
        chosen = replace(chosen, weights=weights)
    vectors = vectors_of(view, chosen)
    _writer(chosen.form)  # a package that is missing is told before anything is written
    place = Place(output, storage_options, chosen.form)
    work = Work(view, vectors, chosen, place.name, on_progress)
    names = list(work.files)
    counts = {"sentences": store.n_sentences, "tokens": store.n_tokens}
    about = {"store_sha256": own_sha256(store.manifest.to_json()), **asdict(chosen), **counts}
    with place.writing(about, names, overwrite=overwrite, take_over=take_over) as writing:
        if workers is not None:
            _have_made(work, workers, writing)
        else:
            for group in [[name] for name in names] if chosen.form.folder else [names]:
                _write(work, [writing.path(name) for name in group], work.files[group[0]])
                writing.publish(group)
        writing.finish(work.left_out)
    return Report(tuple(names), left_out=dict(work.left_out), **counts)


def make_file(task: FileTask, store: View) -> None:
    """Make a file of the store, and leave it where the run takes it. LeaseLostError if another run has the output."""
    lease.check(task.scratch, task.run)  # before hours of work
    work = Work(store, vectors_of(store, task.settings), task.settings)
    with scratch_folder() as folder:
        path = str(folder / "file")
        _write(work, [path], task.sentences)
        scratch = task.scratch.owned_by(lease.Fence(task.scratch, task.run))
        scratch.put(task.made, Path(path))


def _have_made(work: Work, workers: Workers, writing: Writing) -> None:
    """Have all files made by ``workers``, and publish them."""
    scratch = writing.place.scratch
    tasks = {
        name: FileTask(scratch, writing.run, name, own, work.settings)
        for name, own in work.files.items()
    }
    uncounted = dict(tasks)

    def count() -> None:
        for made in scratch.list(f"{WORK}/{writing.run}.made"):
            task = uncounted.pop(made.partition(".made/")[2], None)
            if task is not None and task.sentences:
                first_row = work.store.span(task.sentences[0])[0]
                work.on_progress(work.store.span(task.sentences[-1])[1] - first_row)

    workers(list(tasks.values()), count)
    count()
    for name, task in tasks.items():
        try:
            scratch.calls.get_file(scratch.path(task.made), writing.path(name))
            writing.scratch.remove(task.made)
        except FileNotFoundError as error:
            raise StoreError(
                f"{scratch.url(task.made)} was not made: rerun the same command"
            ) from error
        writing.publish([name])


def _write(work: Work, paths: Sequence[str], sentences: range) -> None:
    """Write files by their format's function."""
    _writer(work.settings.form)(work, paths, sentences)


def _writer(form: Format) -> Callable[[Work, Sequence[str], range], None]:
    """Return the function that writes a format's files. MissingPackageError if it needs what is not installed."""
    module, _, name = form.writer.partition(".")
    try:
        imported = importlib.import_module(f"elmo_store.exports.{module}")
    except ModuleNotFoundError as error:
        missing = missing_package(error, "this format")
        if missing is None:
            raise
        raise missing from error
    writer: Callable[[Work, Sequence[str], range], None] = getattr(imported, name)
    return writer
