"""HDF5 files as ELMo's consumers read them: one dataset per sentence, float32.

docs/export.md has the table: names of groups and datasets, their axes, and the program each was made for.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

import h5py
import numpy as np

from elmo_store.exports.work import Work, average_of
from elmo_store.reading.rows import Array
from elmo_store.reading.sentences import SentenceRecord


def write_allennlp(work: Work, paths: Sequence[str], sentences: range) -> None:
    """Datasets by number, [L+1, n, 2p], or [n, 2p] of one vector per token; sentence_to_index."""
    part = 0 if work.vectors.single else slice(None)
    items = ((str(record.index), record.text, vectors[part]) for record, vectors in _records(work, sentences))
    with h5py.File(paths[0], "w") as file:
        write_sentences(file, items, index=True)


def write_sentences(file: h5py.File, sentences: Iterable[tuple[str, str, Array]], *, index: bool) -> None:
    """Datasets as `allennlp elmo` writes them: name, text and vectors of each; with ``index`` also sentence_to_index."""
    numbers: dict[str, str] = {}
    for name, text, vectors in sentences:
        file.create_dataset(name, data=vectors)
        if text:
            numbers[text] = name  # the last of several wins
    if index:
        dataset = file.create_dataset("sentence_to_index", (1,), dtype=h5py.special_dtype(vlen=str))
        dataset[0] = json.dumps(numbers)


def write_all_layers(work: Work, paths: Sequence[str], sentences: range) -> None:
    """Datasets by number or by document, [K, n, 2p], or [n, 2p, K] where the format's layers come last."""
    last = work.settings.form.layers_last
    items = ((name, "", vectors.transpose(1, 2, 0) if last else vectors) for name, vectors in _named(work, sentences))
    with h5py.File(paths[0], "w") as file:
        write_sentences(file, items, index=False)


def write_tfhub(work: Work, paths: Sequence[str], sentences: range) -> None:
    """A group per sentence with the module's names: word_emb [n, p], lstm_outputs1 … [n, 2p], elmo [n, 2p], default [2p]."""
    with h5py.File(paths[0], "w") as file:
        for name, vectors in _named(work, sentences):
            group = file.create_group(name)
            group.create_dataset("word_emb", data=vectors[0, :, : work.vectors.width // 2])
            for layer in range(1, len(vectors)):
                group.create_dataset(f"lstm_outputs{layer}", data=vectors[layer])
            elmo = average_of(vectors)
            group.create_dataset("elmo", data=elmo)
            mean = elmo.mean(axis=0) if len(elmo) else np.zeros(work.vectors.width, np.float32)
            group.create_dataset("default", data=mean)


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
                    file.create_dataset(key, data=layer)


def _named(work: Work, sentences: range) -> Iterator[tuple[str, Array]]:
    """The dataset's name and vectors of every sentence."""
    for block in work.blocks(sentences, text=False):
        for number, vectors in block:
            yield work.keys[number] if work.keys else str(number), vectors


def _records(work: Work, sentences: range) -> Iterator[tuple[SentenceRecord, Array]]:
    """Record and vectors of every sentence."""
    for block in work.blocks(sentences):
        for record, (_, vectors) in zip(block.records, block, strict=True):
            yield record, vectors
