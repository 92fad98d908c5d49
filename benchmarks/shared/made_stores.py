"""Stores of made-up states, any number of sentences, written in this process with the package's own encoders.

The same arguments give the same bytes, and a file that exists is taken as it is, so a folder is a cache between runs.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from safetensors.numpy import save

import elmo_store as stores
from benchmarks.shared.texts import made_up_words
from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.manifest import encode_inputs
from elmo_store.format.markers import ObjectRecord, PartGroupMarker, PartRange, checksum
from elmo_store.forms import zarr_form
from elmo_store.reading.sentences import encode_part
from elmo_store.storage.root import Root
from elmo_store.writer import complete_store
from tests.store import support

SHORTEST, LONGEST = 8, 19  # tokens of a sentence
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
    ids = support.write_ids(root, manifest, texts)
    numbers = np.repeat(np.arange(shape.sentences), lengths)
    index = (np.arange(edges[-1]) - edges[numbers]).astype(np.int32)
    states = pool(shape.channels) if states is None else states
    rows: Any = EndlessRows(states if manifest.is_int8 else states.astype(shape.dtype))  # int8: encoders quantise
    shards = (support.write_shard(root, manifest, i, rows, tokens, numbers, index) for i in range(manifest.sizes.shards))
    complete_store(root, manifest, checksum(shards), [sentences], [ids])
    return url


def make_long_store(folder: Path, sentences: int, distinct_shards: int = 64) -> str:
    """The URL of a store of 5 x 16 in Zarr, of so many sentences: shards repeat, as links to the same files.

    It takes a twentieth of its size on the disk. Its tokens have no array ``token``; rows and the sentences' text are read.
    """
    shape = Shape(sentences, forms=("zarr",))
    url = str(folder / f"long-{shape.name}")
    if (Path(url) / layout.MANIFEST).exists():
        return url
    root, edges, random = Root(url), starts(sentences), np.random.default_rng(2)
    parts = [min(PART_SENTENCES, sentences - first) for first in range(0, sentences, PART_SENTENCES)]
    manifest = support.make_manifest(
        lengths=np.diff(edges).tolist(), parts=parts, store_forms=shape.forms, shard_rows=shape.shard_rows, channels=16
    )
    h, c = support.start_state()
    root.put(layout.START_STATE, save({"h": h, "c": c}, metadata={"kind": "warm"}))
    root.put(layout.INPUTS, encode_inputs([]))
    zarr_form.create(root, manifest)
    words, ranges, objects = pa.array(made_up_words(WORDS)), [], []
    for part, count in enumerate(parts):
        first = part * PART_SENTENCES
        own = edges[first : first + count + 1]
        ids = [f"doc.txt:{number}" for number in range(first, first + count)]
        tokens = words.take(pa.array(random.integers(0, WORDS, int(own[-1] - own[0]), np.int32)))
        lists = pa.ListArray.from_arrays(pa.array((own - own[0]).astype(np.int32)), tokens)
        numbers = np.arange(first, first + count)
        columns = [numbers, ids, ["made-up.txt"] * count, numbers, own[:-1], np.diff(own).astype(np.int32), lists]
        table = pa.table(dict(zip(layout.SENTENCES_SCHEMA.names, columns, strict=True))).cast(layout.SENTENCES_SCHEMA)
        data = encode_part(table)
        root.put(layout.sentences_part(part), data)
        objects.append(ObjectRecord.of(layout.sentences_part(part), data))
        ranges.append(PartRange(part, first, count, int(own[0]), int(own[-1] - own[0])))
    for chunk in range(sentences // manifest.sentence_chunk + 1):
        entries = edges[chunk * manifest.sentence_chunk :][: manifest.sentence_chunk]
        root.put(*zarr_form.encode_sentence_chunk(manifest, chunk, entries))
    rows = EndlessRows(pool(16).astype(np.float16))
    for shard in range(manifest.sizes.shards):
        first, stop = manifest.shard_range(shard)
        if shard < distinct_shards or shard == manifest.sizes.shards - 1:
            for rel, encoded in zarr_form.encode_shard(manifest, shard, rows[slice(first + 37 * shard, stop + 37 * shard)]):
                root.put(rel, encoded)
        else:
            path = Path(root.path(layout.zarr_states_shard(shard)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.hardlink_to(root.path(layout.zarr_states_shard(shard % distinct_shards)))
    part_groups = [PartGroupMarker(0, tuple(ranges), tuple(objects))]
    complete_store(root, manifest, "0" * 64, part_groups, [support.write_ids(root, manifest, [[]] * sentences)])
    return url
