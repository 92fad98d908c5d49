"""HDF5 files as ELMo's consumers read them: one dataset a sentence, float32.

docs/export.md has the table: names of groups and datasets, their axes, and the program each was made for.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from elmo_store.errors import StoreError
from elmo_store.exports.work import WholeFile, Work
from elmo_store.reading.rows import Array
from elmo_store.reading.sentences import SentenceRecord

if TYPE_CHECKING:
    import h5py

AVERAGE = "-1"  # ELMoForManyLangs' name of the average layer
SENTENCE_INDEX = "sentence_to_index"


def files(work: Work) -> list[str]:
    """Names of the files."""
    if work.settings.format != "elmoformanylangs":
        return [work.output.name]
    return [f"{work.output.name}.ly{layer}.hdf5" for layer in _layer_labels(work)]


def write(work: Work, names: Sequence[str], whole_file: WholeFile) -> None:
    """Write the files of these names."""
    import h5py

    with ExitStack() as stack:
        opened = {}
        for name in names:
            path = stack.enter_context(whole_file(name))
            opened[name] = stack.enter_context(h5py.File(path, "w"))
        if work.settings.format == "elmoformanylangs":
            _by_words(work, {layer: opened[name] for layer, name in enumerate(files(work)) if name in opened})
        elif opened:
            _WRITERS[work.settings.format](work, opened[names[0]])


def _sentences(work: Work, *, text: bool, axes: str = "knd") -> Iterator[tuple[int, SentenceRecord | None, Array]]:
    """Number, record and vectors of every sentence."""
    for block in work.blocks(0, work.store.n_sentences, text=text, axes=axes):
        for number, vectors in block:
            yield number, block.records[number - block.first] if text else None, vectors
        work.on_progress(int(block.offsets[-1]))


def _allennlp(work: Work, file: "h5py.File") -> None:
    """Datasets "0", "1", …: [L+1, n, 2p], or [n, 2p] of one vector a token; sentence_to_index as `allennlp elmo` writes it."""
    import h5py

    indexed = work.settings.sentence_index
    numbers: dict[str, str] = {}
    for number, record, vectors in _sentences(work, text=indexed):
        file.create_dataset(str(number), data=vectors[0] if work.vectors.single else vectors)
        if record is not None and record.tokens:
            numbers[" ".join(record.tokens)] = str(number)  # the last of several wins
    if indexed:
        dataset = file.create_dataset(SENTENCE_INDEX, (1,), dtype=h5py.special_dtype(vlen=str))
        dataset[0] = json.dumps(numbers)


def _bilm(work: Work, file: "h5py.File") -> None:
    """Datasets "0", "1", …: [K, n, 2p]."""
    for number, _, vectors in _sentences(work, text=False):
        file.create_dataset(str(number), data=vectors)


def _documents(work: Work, file: "h5py.File") -> None:
    """A group a document, datasets "0", "1", … of its sentences: [n, 2p, K] (e2e-coref), [K, n, 2p] (lsgn)."""
    group, names = None, set()
    for document, number, begins, vectors in _in_documents(work, axes="ndk" if work.settings.format == "e2e-coref" else "knd"):
        if begins:
            name = document.replace("/", ":")
            if name in names or name == ".":  # the group itself
                raise _twice(name, number)
            names.add(name)
            group = file.create_group(name)
        if group is not None:
            group.create_dataset(str(number), data=vectors)


def _dygie(work: Work, file: "h5py.File") -> None:
    """Datasets DOCUMENT_SENTENCE: [n, 2p, K]. A "/" in a document's name makes groups, as the program's own writer does."""
    for document, number, _, vectors in _in_documents(work, axes="ndk"):
        name = f"{document}_{number}"
        try:
            file.create_dataset(name, data=vectors)
        except (ValueError, TypeError) as error:  # the name is there, or one of the groups in it is a dataset
            raise _twice(document, number) from error


def _in_documents(work: Work, *, axes: str) -> Iterator[tuple[str, int, bool, Array]]:
    """Document, place in it, whether it begins, and vectors of every sentence."""
    document, number = None, 0
    for _, record, vectors in _sentences(work, text=True, axes=axes):
        assert record is not None
        name = document_of(record, work.settings.documents)
        if "\0" in name:
            raise StoreError(f"document {name!r} has a NUL in its name, which HDF5 can't hold: embed it under another name")
        begins = name != document
        document, number = name, 0 if begins else number + 1
        yield name, number, begins, vectors


def document_of(record: SentenceRecord, how: str) -> str:
    """The document that a sentence belongs to. ``how``: "id" (without its last ``:NUMBER``) or "source" (its file's name).

    StoreError for an id that names no document.
    """
    if how == "source":
        return record.source.rpartition("/")[2]
    document, _, number = record.id.rpartition(":")
    if not document or not number.isascii() or not number.isdigit():
        raise StoreError(
            f"the id of sentence {record.index}, {record.id!r}, is not DOCUMENT:NUMBER: give such ids when the text is embedded, "
            "or take the files as documents (documents: source)"
        )
    return document


def _twice(document: str, number: int) -> StoreError:
    return StoreError(
        f"document {document!r} is there already when its sentence {number} comes: its sentences don't follow each other in the "
        "store, or two documents have this name; embed each under a name of its own"
    )


def _tfhub(work: Work, file: "h5py.File") -> None:
    """A group a sentence with the module's names: word_emb [n, p], lstm_outputs1 … [n, 2p], elmo [n, 2p], default [2p]."""
    for number, _, vectors in _sentences(work, text=False):
        group = file.create_group(str(number))
        group.create_dataset("word_emb", data=vectors[0, :, : work.vectors.width // 2])
        for layer in range(1, len(vectors) - 1):
            group.create_dataset(f"lstm_outputs{layer}", data=vectors[layer])
        elmo = vectors[-1]
        group.create_dataset("elmo", data=elmo)
        mean = elmo.mean(axis=0) if len(elmo) else np.zeros(work.vectors.width, np.float32)
        group.create_dataset("default", data=mean)


def _layer_labels(work: Work) -> list[str]:
    """What stands after ``.ly``: a layer's number, -1 for one vector that is no layer, a weight set's name."""
    names = work.vectors.names
    if len(names) == 1 and not names[0].startswith("layer_"):
        return [AVERAGE]
    return [name.removeprefix("layer_") for name in names]


def _by_words(work: Work, opened: dict[int, "h5py.File"]) -> None:
    """A file a layer, datasets [n, 2p] by the words with tabs between them; of several sentences of the same words the first."""
    first_file = next(iter(opened.values()))
    for _, record, vectors in _sentences(work, text=True):
        assert record is not None
        key = "\t".join(record.tokens).replace(".", "$period$").replace("/", "$backslash$")
        if not key or "\0" in key:
            work.left_out["no words" if not key else "NUL in a word"] += 1
        elif key in first_file:
            work.left_out["the same words as a sentence before"] += 1
        else:
            for layer, file in opened.items():
                file.create_dataset(key, data=vectors[layer])


_WRITERS = {
    "allennlp": _allennlp,
    "bilm": _bilm,
    "e2e-coref": _documents,
    "lsgn": _documents,
    "dygie": _dygie,
    "tfhub": _tfhub,
}
