"""Stores and HDF5 files of made-up states, any number of sentences, written in this process with the package's own encoders.

The same arguments give the same bytes, and a file that exists is taken as it is, so a folder is a cache between runs.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

import elmo_store as stores
from benchmarks.shared.texts import made_up_words
from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.manifest import encode_inputs
from elmo_store.format.markers import checksum
from elmo_store.forms import zarr_form
from elmo_store.reading.writer import complete_store
from elmo_store.storage.root import Root
from tests.store import support

SHORTEST, LONGEST = 8, 19  # tokens of a sentence
MEAN_TOKENS = 13.5
WORDS = 20_000
PART_SENTENCES = 16_384
POOL_ROWS = 1 << 15  # distinct rows of states, used over and over: making random numbers would take longer than writing

States = npt.NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """What a made-up store holds."""

    sentences: int
    channels: int = 16
    dtype: str = "float16"
    forms: tuple[str, ...] = layout.FORMS
    shard_rows: int = 16_384
    compression: str = "none"
    words: int = WORDS

    @classmethod
    def of_tokens(cls, tokens: int, channels: int) -> "Shape":
        """About so many tokens in Zarr."""
        return cls(max(1, round(tokens / MEAN_TOKENS)), channels, forms=("zarr",))

    @property
    def name(self) -> str:
        """Of its folder in a cache: different for different contents."""
        return f"{self.sentences}x{self.channels}-{self.dtype}-{'+'.join(self.forms)}-{self.shard_rows}-{self.compression}" + (
            f"-{self.words}words" if self.words != WORDS else ""
        )


def starts(sentences: int) -> npt.NDArray[np.int64]:
    """First row of each sentence, and at last the number of rows [n + 1]."""
    lengths = np.random.default_rng(0).integers(SHORTEST, LONGEST + 1, sentences)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def pool(channels: int) -> States:
    """States that are used over and over: float32 [POOL_ROWS, 2L+1, channels]."""
    return np.random.default_rng(3).standard_normal((POOL_ROWS, 5, channels), np.float32)


class EndlessRows:
    """Rows of an endless repetition of ``states``."""

    def __init__(self, states: States) -> None:
        self._states = states

    def __getitem__(self, rows: slice) -> States:
        return self._states[np.arange(rows.start, rows.stop) % len(self._states)]


def make_store(folder: Path, shape: Shape, states: States | None = None) -> str:
    """The URL of a complete store of this shape in ``folder``, written if it is not there; ``states``: instead of `pool`'s."""
    url = str(folder / shape.name)
    root = Root(url)
    try:
        stores.open(url)
        return url
    except StoreError:
        root.remove_tree()
    edges = starts(shape.sentences)
    lengths = np.diff(edges)
    parts = [min(PART_SENTENCES, shape.sentences - first) for first in range(0, shape.sentences, PART_SENTENCES)]
    manifest = support.make_manifest(
        lengths=lengths.tolist(), parts=parts, store_forms=shape.forms, dtype=shape.dtype, compression=shape.compression,
        shard_rows=shape.shard_rows, channels=shape.channels,
    )  # fmt: skip
    h, c = support.start_state()
    root.put(layout.START_STATE, save({"h": h, "c": c}, metadata={"kind": "warm"}))
    file = {"url": "made-up.txt", "format": "lines", "guessed": True, "bytes": 0, "version": "", "pieces": 1}
    root.put(layout.INPUTS, encode_inputs([file]))
    zarr_form.create(root, manifest)
    tokens = made_up_words(shape.words)[np.random.default_rng(2).integers(0, shape.words, edges[-1])].tolist()
    texts = [tokens[first:stop] for first, stop in pairwise(edges.tolist())]
    sentences = support.write_sentences(root, manifest, texts, edges.tolist(), parts)
    ids = support.write_ids(root, manifest)
    numbers = np.repeat(np.arange(shape.sentences), lengths)
    index = (np.arange(edges[-1]) - edges[numbers]).astype(np.int32)
    states = pool(shape.channels) if states is None else states
    rows: Any = EndlessRows(states if manifest.is_int8 else states.astype(shape.dtype))  # int8: encoders quantise
    shards = (support.write_shard(root, manifest, i, rows, tokens, numbers, index) for i in range(manifest.sizes.shards))
    complete_store(root, manifest, checksum(shards), [sentences], [ids])
    return url


def make_hdf5(folder: Path, sentences: int, channels: int = 16) -> Path:
    """One dataset a sentence, as the tools before this one write it: "0", "1", …, each float32 [L+1, n, 2 × channels].

    What they call layers: [x; x], [fwd1; bwd1], [fwd2; bwd2]. A file that exists stays.
    """
    import h5py

    path = folder / f"{sentences}x{channels}.hdf5"
    if path.exists():
        return path
    states = pool(channels).transpose(1, 0, 2)  # [2L+1, rows, channels]
    layers = np.concatenate([states[[0, 1, 3]], states[[0, 2, 4]]], axis=2)  # [L+1, rows, 2 × channels]
    edges = starts(sentences)
    unfinished = path.with_suffix(".writing")
    with h5py.File(unfinished, "w") as file:
        for number in range(sentences):
            first = int(edges[number]) % (POOL_ROWS - LONGEST)
            file.create_dataset(str(number), data=layers[:, first : first + int(edges[number + 1] - edges[number])])
    return unfinished.rename(path)
