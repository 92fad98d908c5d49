"""`export`: one export from its settings to its finished files."""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from elmo_store.errors import StoreError, WeightSetError
from elmo_store.exports.formats import FILE_BYTES, FORMATS, Settings, settled
from elmo_store.exports.outputs import Output
from elmo_store.exports.record import Record
from elmo_store.exports.scratch import Left
from elmo_store.exports.vectors import HubNames, Vectors, vectors_of
from elmo_store.exports.work import Work
from elmo_store.exports.writing import Writing
from elmo_store.format.manifest import WeightSet, own_sha256
from elmo_store.mixing.weights import read_weight_sets
from elmo_store.reading.store import StoreReader
from elmo_store.storage.location import Location, check_apart


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


def export(
    store: StoreReader,
    output: str | os.PathLike[str],
    format: str,
    *,
    layers: str | None = None,
    weights: str | WeightSet | None = None,
    weight_set: str | None = None,
    layer_norm: bool = False,
    dtype: str | None = None,
    documents: str = "id",
    sentence_index: bool = True,
    file_bytes: int = FILE_BYTES,
    overwrite: bool = False,
    take_over: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    tell: Callable[[int], None] = lambda tokens: None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Write a complete store's vectors as a file, or files, of another program; rows of BOS and EOS are left out.

    Memory does not grow with the store, but for what a format has to hold at once: names of datasets or entries, and
    sentence_to_index. A folder of files that was interrupted is continued by the same call.

    Args:
        store: of states or of mixes.
        output: the file; the folder of safetensors, datasets, webdataset; how the names of elmoformanylangs' files begin. Any
            fsspec URL; files that need seeking are made on this machine first.
        format: a name of `FORMATS`.
        layers: "all" (default; npz: "average"), "top" or "average".
        weights: a weight set or a file with one, as ``elmo-store mix`` takes them: the vectors are this mix.
        weight_set: its name, where the file or the store of mixes has several.
        layer_norm: normalise each layer of each token before it is mixed.
        dtype: "float16" or "float32"; the store's own by default where the format can have both, otherwise float32.
        documents: what a document is for the formats that keep sentences by document: "id" or "source".
        sentence_index: False leaves out sentence_to_index (`allennlp elmo --forget-sentences`).
        file_bytes: of vectors in each file of a folder, about.
        overwrite: remove what an earlier export wrote there, as far as it is still as its record says.
        take_over: take the output from another run that writes to it; that run stops before its next file.
        storage_options: what the output's filesystem takes.
        tell: called with tokens written since it was called last.
        say: called with a line for people when this has to wait for another run's lease to run out.

    Raises:
        StoreError: settings that the store or the format can't have; a store that is not complete.
        OverlapError: the output overlaps the store.
        JobMismatchError, ExportRefusedError: something else stands at the output.
        LeaseHeldError: another run writes to the output, and lives.
        LeaseLostError: another run took the output over; nothing of its was touched.
        ImportError: HDF5 without h5py.
    """
    if not store.manifest.complete:
        raise StoreError(f"{store.url} is not complete: run its job again to continue it, then export it")
    check_apart(
        Location("output", os.fspath(output), storage_options), [Location("store", store.url, store.root.storage_options)]
    )
    mix = _chosen(weights, weight_set, storage_options) if weights is not None else None
    mixed = store.manifest.kind == "mix" or mix is not None
    form = FORMATS.get(format)
    settings = settled(
        Settings(
            format=format,
            layers=layers,
            weights=None if mix is None else {"s": list(mix.s), "gamma": mix.gamma, "name": mix.name, "layer_norm": layer_norm},
            weight_set=weight_set if mix is None else None,
            dtype=dtype or (str(store.dtype) if form is not None and form.any_dtype else "float32"),
            documents=documents,
            sentence_index=sentence_index,
            file_bytes=file_bytes,
        ),
        mixed=mixed,
    )
    store_sha256 = own_sha256(store.manifest.to_json())
    target = Output(output, storage_options, folder=FORMATS[format].folder)
    work = Work(store, _vectors(store, settings, mix, layer_norm), settings, target, tell, store_sha256)
    record = Record(
        {"store_sha256": store_sha256, **settings.to_json()}, counts={"sentences": store.n_sentences, "tokens": store.n_tokens}
    )
    return _run(work, record, overwrite=overwrite, take_over=take_over, say=say)


def _run(work: Work, record: Record, *, overwrite: bool, take_over: bool, say: Callable[[str], None]) -> Report:
    """Write what is not written yet."""
    target = work.output
    writer = importlib.import_module(f"elmo_store.exports.{FORMATS[work.settings.format].module}")
    names: list[str] = writer.files(work)
    standing = target.examine(record.job, names, overwrite=overwrite, deep=False)  # refused before anything is written
    done = None if overwrite else standing.complete(names)
    if done is not None:
        if target.scratch.left() != Left((), ()):
            with suppress(OSError), target.scratch.held(take_over=take_over, say=say):  # a place that can only be read
                pass
        return _report(names, [], done)
    with target.scratch.held(take_over=take_over, say=say) as holder:
        standing = target.examine(record.job, names, overwrite=overwrite, deep=True)
        done = None if overwrite else standing.complete(names)
        if done is not None:  # another run has just ended
            return _report(names, [], done)
        writing = Writing(target, holder, record)
        writing.begin(standing, overwrite=overwrite)
        left = [name for name in names if name not in writing.record.files]
        if left:
            writer.write(work, left, lambda name: writing.whole_file(name, work.left_out))
        writing.finish(names)
    return _report(names, left, writing.record)


def _report(names: Sequence[str], written: Sequence[str], record: Record) -> Report:
    return Report(tuple(names), tuple(written), record.counts["sentences"], record.counts["tokens"], dict(record.left_out))


def _vectors(store: StoreReader, settings: Settings, mix: WeightSet | None, layer_norm: bool) -> Vectors:
    states, channels, kind = store.states, store.channels, store.manifest.kind
    lstm = store.manifest.model.options.get("lstm")
    found = lstm.get("n_layers") if isinstance(lstm, dict) else None
    n_layers = found if isinstance(found, int) and found > 0 else None
    if settings.format != "tfhub":
        pair = None if mix is None else (mix, layer_norm)
        return vectors_of(states, channels, kind, n_layers, settings.layers, pair, settings.weight_set)
    if kind == "mix":
        raise StoreError(f"tfhub's names are of all layers, {store.url} holds mixes: export the store that it came from")
    mixed = vectors_of(
        states, channels, kind, n_layers, "average" if mix is None else None, None if mix is None else (mix, layer_norm), None
    )
    return HubNames(states, channels, mixed)


def _chosen(weights: str | WeightSet, name: str | None, storage_options: Mapping[str, Any] | None) -> WeightSet:
    """The weight set that is meant. WeightSetError unless it is one."""
    if isinstance(weights, WeightSet):
        return weights
    sets = read_weight_sets(weights, storage_options if "://" in weights else None)
    found = [one for one in sets if name in (None, one.name)]
    if len(found) != 1:
        names = ", ".join(one.name for one in sets)
        raise WeightSetError(f"{weights} has the weight sets {names}: name one of them, {name!r} says not which")
    return found[0]
