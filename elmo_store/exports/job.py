"""`export`: one export from its settings to its finished files."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypedDict, Unpack

from elmo_store.errors import StoreError, WeightSetError
from elmo_store.exports.apart import FileTask, take_made, write
from elmo_store.exports.formats import KNOWN, POOLED, Settings, settled
from elmo_store.exports.keys import keys_of
from elmo_store.exports.outputs import Output, Record
from elmo_store.exports.work import Work, of_average, vectors_of
from elmo_store.exports.writing import Writing
from elmo_store.format.manifest import WeightSet, own_sha256
from elmo_store.mixing.weights import read_weight_sets
from elmo_store.reading.store import StoreReader
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import check_apart


@dataclass(frozen=True)
class Report:
    """What an export wrote.

    Attributes:
        files: names of all its files, those that stood there already too.
        written: names of those that this call wrote.
        sentences, tokens: of the store.
        left_out: why a sentence is not in the output → how many; {} for all formats but those that can't hold some.
    """

    files: tuple[str, ...]
    written: tuple[str, ...]
    sentences: int
    tokens: int
    left_out: Mapping[str, int] = field(default_factory=dict)


# Has all the tasks made, and calls its second argument from time to time, and at the end: it takes what is made so far.
Workers = Callable[[Sequence[FileTask], Callable[[], None]], None]


class Options(TypedDict, total=False):
    """What of a store is exported, and how; all of it may be left out.

    Attributes:
        layers: "all" (default; npz: "average"), "top" or "average".
        weights: a weight set or a file with one, as ``elmo-store mix`` takes them: the vectors are this mix.
        weight_set: its name, where the file or the store of mixes has several.
        layer_norm: normalise each layer of each token before it is mixed.
        dtype: "float16" or "float32"; the store's own by default where the format can have both, otherwise float32.
        documents: what a document is for the formats that keep sentences by document: "id" (default) or "source".
        layout: lsgn's: "documents" (default), "conll05" or "ontonotes5".
        id_prefix: where ids name documents, leave out sentences whose ids don't begin so; several have commas between them.
        sentence_index: False leaves out sentence_to_index (`allennlp elmo --forget-sentences`).
        sentence_keys: allennlp's datasets have the sentences as names, not their numbers (`allennlp elmo --use-sentence-keys`).
        file_bytes: of vectors in each file of a folder, about.
        pool: of the format "pooled", which is ``elmo-store mix --pool``: "mean", "max", "first" or "last".
        per: of it: a row a "sentence" (default) or a "document".
        on_wait: called with a line for people when this has to wait for another run's lease to run out.
        workers: of "pooled": makes the files elsewhere (`elmo_store.exports.apart.make_apart`); by default they are made here.
    """

    layers: str | None
    weights: str | WeightSet | Sequence[WeightSet] | None
    weight_set: str | None
    layer_norm: bool
    dtype: str | None
    documents: str
    layout: str
    id_prefix: str
    sentence_index: bool
    sentence_keys: bool
    file_bytes: int
    pool: str
    per: str
    on_wait: Callable[[str], None]
    workers: Workers


def export(
    store: StoreReader,
    output: str | os.PathLike[str],
    format: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    take_over: bool = False,
    on_progress: Callable[[int], None] = lambda tokens: None,
    **options: Unpack[Options],
) -> Report:
    """Write a complete store's vectors as a file, or files, of another program; rows of BOS and EOS are left out.

    Memory does not grow with the store, but for what a format has to hold at once: names of datasets or entries, and
    sentence_to_index. A folder of files that was interrupted is continued by the same call.

    Args:
        store: of states or of mixes.
        output: the file; the folder of safetensors, datasets, webdataset; how the names of elmoformanylangs' files begin. Any
            fsspec URL; files that need seeking are made on this machine first.
        format: a name of `FORMATS`.
        storage_options: what the output's filesystem takes.
        overwrite: remove what an earlier export wrote there, as far as it is still as its record says.
        take_over: take the output from another run that writes to it; that run stops before its next file.
        on_progress: called with tokens written since it was called last.
        options: see `Options`.

    Raises:
        StoreError: settings that the store or the format can't have; ids that don't say which sentence of which document each is;
            a store that is not complete.
        OverlapError: the output overlaps the store.
        JobMismatchError, ExportRefusedError: something else stands at the output.
        LeaseHeldError: another run writes to the output, and lives.
        LeaseLostError: another run took the output over; nothing of its was touched.
        ImportError: HDF5 without h5py.
    """
    if not store.manifest.complete:
        raise StoreError(f"{store.url} is not complete: run its job again to continue it, then export it")
    read = Location("store", store.url, store.root.storage_options)
    check_apart(Location("output", os.fspath(output), storage_options), [read])
    on_wait, workers = options.pop("on_wait", lambda text: None), options.pop("workers", None)
    weights = _chosen(options, storage_options, several=format == POOLED)
    settings = _settings(store, format, options, weights)
    vectors = vectors_of(store, settings, weights)
    target = Output(output, storage_options, folder=KNOWN[format].folder, average=of_average(vectors, settings))
    work = Work(store, vectors, settings, target.name, on_progress, own_sha256(store.manifest.to_json()))
    names, record = list(work.files), _record(work)
    standing = target.examine(record.job, names, overwrite=overwrite, deep=False)  # refused before anything is written
    done = None if overwrite else standing.complete(names)
    if done is not None:
        if any(target.leftovers()):
            with suppress(OSError), target.held(take_over=take_over, on_wait=on_wait):  # a place that can only be read
                pass
        return _report(names, [], done)
    if settings.by_key:
        work = replace(work, keys=keys_of(store, settings))  # refused before anything is written
    with target.held(take_over=take_over, on_wait=on_wait) as holder:
        writing = Writing(target, holder, record)
        write_names = partial(_write, work, writing) if workers is None else partial(_have_made, work, weights, writing, workers)
        return _written(list(work.files), target, writing, write_names, overwrite=overwrite)


def _record(work: Work) -> Record:
    counts = {"sentences": work.store.n_sentences, "tokens": work.store.n_tokens}
    return Record({"store_sha256": work.store_sha256, **work.settings.to_json()}, counts=counts)


def _written(
    names: Sequence[str], target: Output, writing: Writing, write_names: Callable[[Sequence[str]], None], *, overwrite: bool
) -> Report:
    """Write what is not there yet, by the lease."""
    standing = target.examine(writing.record.job, names, overwrite=overwrite, deep=True)
    done = None if overwrite else standing.complete(names)
    if done is not None:  # another run has just ended
        return _report(names, [], done)
    writing.begin(standing, overwrite=overwrite)
    left = [name for name in names if name not in writing.record.files]
    write_names(left)
    writing.finish(names)
    return _report(names, left, writing.record)


def _settings(store: StoreReader, format: str, options: Options, weights: Sequence[WeightSet]) -> Settings:
    """The settings that are asked for, with their defaults. StoreError for what can't be."""
    chosen: dict[str, Any] = {**options}
    layer_norm = chosen.pop("layer_norm", False)
    if layer_norm and not weights:
        raise StoreError("only layers that are mixed are normalised: give their --weights, or leave --layer-norm out")
    if weights:
        chosen["weight_set"] = None
        sets = [{"s": list(own.s), "gamma": own.gamma, "name": own.name} for own in weights]
        chosen["weights"] = {**({"sets": sets} if format == POOLED else sets[0]), "layer_norm": layer_norm}
    if chosen.get("dtype") is None:
        form = KNOWN.get(format)
        chosen["dtype"] = str(store.dtype) if form is not None and form.any_dtype else "float32"
    return settled(Settings(format, **chosen), mixed=store.manifest.kind == "mix" or bool(weights))


def _write(work: Work, writing: Writing, names: Sequence[str]) -> None:
    """Write the files of these names: those of a folder one after the other, others at once."""
    for group in [[name] for name in names] if KNOWN[work.settings.format].folder else [names] if names else []:
        with ExitStack() as stack:
            paths = {name: stack.enter_context(writing.whole_file(name, work.left_out)) for name in group}
            write(work, paths, work.files[group[0]])


def _have_made(work: Work, weights: tuple[WeightSet, ...], writing: Writing, workers: Workers, names: Sequence[str]) -> None:
    """Have the files of these names made by ``workers``, and take each when it is."""
    root, run = writing.output.root, writing.record.run
    spans = {name: work.files[name] for name in names}
    tasks = [FileTask(root, run, name, (own.start, own.stop), work.settings, weights) for name, own in spans.items()]
    left = list(tasks)

    def take() -> None:
        for task in list(left):
            if take_made(task, writing):
                left.remove(task)
                first, stop = task.sentences
                work.on_progress(work.store[stop - 1].span[1] - work.store[first].first_row if stop > first else 0)

    if tasks:
        workers(tasks, take)
    take()
    if left:
        raise StoreError(f"{root.url(left[0].name)} was not made: give the same command again")


def _report(names: Sequence[str], written: Sequence[str], record: Record) -> Report:
    return Report(tuple(names), tuple(written), record.counts["sentences"], record.counts["tokens"], dict(record.left_out))


def _chosen(options: Options, storage_options: Mapping[str, Any] | None, *, several: bool) -> tuple[WeightSet, ...]:
    """The weight sets that are meant, of a file those of the name that is given. WeightSetError unless one is, or ``several``."""
    weights, name = options.get("weights"), options.get("weight_set")
    if weights is None:
        return ()
    if not isinstance(weights, str):
        return (weights,) if isinstance(weights, WeightSet) else tuple(weights)
    sets = read_weight_sets(weights, storage_options if "://" in weights else None)
    matching = tuple(weight_set for weight_set in sets if name in (None, weight_set.name))
    if not matching or (len(matching) > 1 and not several):
        unknown = "" if matching else f", and none called {name!r}"
        names = ", ".join(weight_set.name for weight_set in sets)
        raise WeightSetError(f"{weights} has the weight sets {names}{unknown}: name one of them with --weight-set")
    return matching
