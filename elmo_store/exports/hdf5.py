"""HDF5 files as ELMo's consumers read them: one dataset a sentence, float32.

docs/export.md has the table: names of groups and datasets, their axes, and the program each was made for.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from elmo_store.exports.work import Work
from elmo_store.reading.rows import Array
from elmo_store.reading.sentences import SentenceRecord

if TYPE_CHECKING:
    import h5py


def write(work: Work, paths: Mapping[str, str], sentences: range) -> None:
    """Write files, name → path, each with these sentences; of elmoformanylangs several at once."""
    import h5py

    with ExitStack() as stack:
        files = {name: stack.enter_context(h5py.File(path, "w")) for name, path in paths.items()}
        if work.settings.format == "elmoformanylangs":
            _write_by_words(work, {layer: files[name] for layer, name in enumerate(work.files) if name in files})
        else:
            (file,) = files.values()
            (_write_by_key if work.settings.by_key else _WRITERS[work.settings.format])(work, file)


def _vectors(work: Work, *, axes: str = "knd") -> Iterator[tuple[int, Array]]:
    """Number and vectors of every sentence."""
    for block in work.blocks(range(work.store.n_sentences), text=False, axes=axes):
        yield from block
        work.on_progress(int(block.offsets[-1]))


def _records(work: Work) -> Iterator[tuple[SentenceRecord, Array]]:
    """Record and vectors of every sentence."""
    for block in work.blocks(range(work.store.n_sentences)):
        for record, (_, vectors) in zip(block.records, block, strict=True):
            yield record, vectors
        work.on_progress(int(block.offsets[-1]))


def _write_allennlp(work: Work, file: "h5py.File") -> None:
    """Datasets "0", "1", …: [L+1, n, 2p], or [n, 2p] of one vector a token; sentence_to_index as `allennlp elmo` writes it."""
    if work.settings.sentence_index:
        sentences = ((str(record.index), record.text, vectors) for record, vectors in _records(work))
    else:
        sentences = ((str(number), "", vectors) for number, vectors in _vectors(work))
    put = itemgetter(0) if work.vectors.single else itemgetter(slice(None))
    write_sentences(file, ((name, text, put(vectors)) for name, text, vectors in sentences), index=work.settings.sentence_index)


def write_sentences(file: "h5py.File", sentences: Iterable[tuple[str, str, Array]], *, index: bool) -> None:
    """Datasets as `allennlp elmo` writes them: name, text and vectors of each; with ``index`` also sentence_to_index."""
    import h5py

    numbers: dict[str, str] = {}
    for name, text, vectors in sentences:
        file.create_dataset(name, data=vectors)
        if text:
            numbers[text] = name  # the last of several wins
    if index:
        dataset = file.create_dataset("sentence_to_index", (1,), dtype=h5py.special_dtype(vlen=str))
        dataset[0] = json.dumps(numbers)


def _write_bilm(work: Work, file: "h5py.File") -> None:
    """Datasets "0", "1", …: [K, n, 2p]."""
    for number, vectors in _vectors(work):
        file.create_dataset(str(number), data=vectors)


def _write_by_key(work: Work, file: "h5py.File") -> None:
    """Datasets by `elmo_store.exports.keys`: [n, 2p, K] (e2e-coref, dygie), [K, n, 2p] (lsgn), as by number (allennlp)."""
    flat = work.settings.format == "allennlp" and work.vectors.single
    for number, vectors in _vectors(work, axes="ndk" if work.settings.format in ("e2e-coref", "dygie") else "knd"):
        key = work.keys[number]
        if key is None:
            work.left_out["no words" if work.settings.sentence_keys else "another --id-prefix"] += 1
        else:
            file.create_dataset(key, data=vectors[0] if flat else vectors)


def _write_tfhub(work: Work, file: "h5py.File") -> None:
    """A group a sentence with the module's names: word_emb [n, p], lstm_outputs1 … [n, 2p], elmo [n, 2p], default [2p]."""
    for number, vectors in _vectors(work):
        group = file.create_group(str(number))
        group.create_dataset("word_emb", data=vectors[0, :, : work.vectors.width // 2])
        for layer in range(1, len(vectors) - 1):
            group.create_dataset(f"lstm_outputs{layer}", data=vectors[layer])
        elmo = vectors[-1]
        group.create_dataset("elmo", data=elmo)
        mean = elmo.mean(axis=0) if len(elmo) else np.zeros(work.vectors.width, np.float32)
        group.create_dataset("default", data=mean)


def _write_by_words(work: Work, files: dict[int, "h5py.File"]) -> None:
    """A file a layer, datasets [n, 2p] by the words with tabs between them; of several sentences of the same words the first."""
    first_file = next(iter(files.values()))
    for record, vectors in _records(work):
        key = "\t".join(record.tokens).replace(".", "$period$").replace("/", "$backslash$")
        if not key or "\0" in key:
            work.left_out["no words" if not key else "NUL in a word"] += 1
        elif key in first_file:
            work.left_out["the same words as a sentence before"] += 1
        else:
            for layer, file in files.items():
                file.create_dataset(key, data=vectors[layer])


_WRITERS = {
    "allennlp": _write_allennlp,
    "bilm": _write_bilm,
    "tfhub": _write_tfhub,
}
