"""HDF5 files as ELMo's consumers read them: one dataset per sentence, float32.

docs/export.md has the table: names of groups and datasets, their axes, and the program each was made for.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import h5py
import numpy as np

from elmo_store.errors import StoreError
from elmo_store.exports.work import Work
from elmo_store.format.numbers import Array
from elmo_store.reading.sentences import SentenceRecord
from elmo_store.reading.view import View, all_records
from elmo_store.storage.local_disk import check_room

# The number is what follows the last ":" or "/", in at most 18 digits without a zero before them: ``bc/cctv/00`` names none.
NUMBERED = re.compile(r"(.+)[:/](0|[1-9][0-9]{0,17})", re.DOTALL)
REMEDY = "embed the text with ids DOCUMENT:0, DOCUMENT:1, …"


def write_allennlp(work: Work, paths: Sequence[str], sentences: range) -> None:
    """Datasets by number, [L+1, n, 2p], or [n, 2p] of one vector per token; sentence_to_index."""
    part = 0 if work.vectors.single else slice(None)
    items = (
        (str(record.index), record.text, vectors[part])
        for record, vectors in _records(work, sentences)
    )
    with h5py.File(paths[0], "w") as file:
        write_sentences(file, items, index=True)


def write_sentences(
    file: h5py.File, sentences: Iterable[tuple[str, str, Array]], *, index: bool
) -> None:
    """Datasets as `allennlp elmo` writes them: name, text and vectors of each; with ``index`` also sentence_to_index.

    StoreError for a name that HDF5 can't hold, has already, or has as a group.
    """
    numbers: dict[str, str] = {}
    for name, text, vectors in sentences:
        try:
            if "\0" in name or "." in name.split("/"):
                raise ValueError('NUL ends a name, and "." is the group that it stands in')
            _create(file, name, vectors)
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{name!r} can't name a dataset in HDF5 ({error}): give the sentence another name"
            ) from error
        if text:
            numbers[text] = name  # the last of several wins
    if index:
        dataset = file.create_dataset("sentence_to_index", (1,), dtype=h5py.special_dtype(vlen=str))
        dataset[0] = json.dumps(numbers)


def write_all_layers(work: Work, paths: Sequence[str], sentences: range) -> None:
    """Datasets by number or by document, [K, n, 2p], or [n, 2p, K] where the format's layers come last."""
    form = work.settings.form
    names = (
        keys_of(work.store, work.settings.format) if form.by_document else list(map(str, sentences))
    )
    items = (
        (names[number], "", vectors.transpose(1, 2, 0) if form.layers_last else vectors)
        for block in work.blocks(sentences, text=False)
        for number, vectors in block
    )
    with h5py.File(paths[0], "w") as file:
        write_sentences(file, items, index=False)


def keys_of(store: View, format: str) -> list[str]:
    """The dataset's name of each sentence, of its document and number there, "/" between groups.

    StoreError for ids that do not say which sentence of which document each is.
    """
    keys = []
    documents: defaultdict[str, set[int]] = defaultdict(set)
    for record in all_records(store):
        match = NUMBERED.fullmatch(record.id)
        if match is None:
            raise StoreError(
                f"the id of sentence {record.index}, {record.id!r}, is not DOCUMENT:NUMBER or DOCUMENT/NUMBER: {REMEDY}"
            )
        document, number = match.groups()
        documents[document].add(int(number))
        keys.append(
            f"{document}_{number}"
            if format == "dygie"
            else f"{document.replace('/', ':')}/{number}"
        )
    for document, numbers in documents.items():
        if max(numbers) >= len(numbers):
            missing = next(number for number in range(len(numbers)) if number not in numbers)
            raise StoreError(
                f"document {document!r} has no sentence {missing}, but {max(numbers)}: "
                f"readers count a document's sentences from 0 without a gap; {REMEDY}"
            )
    return keys


def write_tfhub(work: Work, paths: Sequence[str], sentences: range) -> None:
    """A group per sentence with the module's names: word_emb [n, p], lstm_outputs1 … [n, 2p], elmo [n, 2p], default [2p]."""
    with h5py.File(paths[0], "w") as file:
        for block in work.blocks(sentences, text=False):
            for number, vectors in block:
                group = file.create_group(str(number))
                _create(group, "word_emb", vectors[0, :, : work.vectors.width // 2])
                for layer in range(1, len(vectors)):
                    _create(group, f"lstm_outputs{layer}", vectors[layer])
                elmo = vectors.mean(axis=0)
                _create(group, "elmo", elmo)
                mean = elmo.mean(axis=0) if len(elmo) else np.zeros(work.vectors.width, np.float32)
                _create(group, "default", mean)


def write_by_words(work: Work, paths: Sequence[str], sentences: range) -> None:
    """A file per layer, datasets [n, 2p] by the words with tabs between them; of sentences of the same words the first."""
    with ExitStack() as stack:
        files = [stack.enter_context(h5py.File(path, "w")) for path in paths]
        for record, vectors in _records(work, sentences):
            key = "\t".join(record.tokens).replace(".", "$period$").replace("/", "$backslash$")
            if not key or "\0" in key:
                work.left_out["no words" if not key else "NUL in a word"] += 1
            elif key in files[0]:
                work.left_out["the same words as a sentence before"] += 1
            else:
                for file, layer in zip(files, vectors, strict=True):
                    _create(file, key, layer)


def _create(group: h5py.Group, name: str, values: Array) -> None:
    """Create a dataset. DiskFullError before the disk is full: HDF5 does not stop then, and ends in a crash of the process."""
    check_room(group.file.filename, values.nbytes)
    group.create_dataset(name, data=values)


def _records(work: Work, sentences: range) -> Iterator[tuple[SentenceRecord, Array]]:
    """Record and vectors of every sentence."""
    for block in work.blocks(sentences):
        for record, (_, vectors) in zip(block.records, block, strict=True):
            yield record, vectors
