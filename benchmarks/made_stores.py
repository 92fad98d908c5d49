"""Stores and HDF5 files of made-up states, any number of sentences, written in this process with the package's own encoders.

No model and no Beam: what is measured is reading, so the states are random numbers and the tokens come out of a list of made-up
words. The same arguments give the same bytes, and a file that is there already is taken as it is, so a folder is a cache
between runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import elmo_store as stores
from elmo_store.errors import StoreError
from elmo_store.format import ids, layout
from elmo_store.format.inputs import encode_inputs
from elmo_store.format.manifest import Counts, InputInfo, Manifest, ModelInfo, StartStateInfo, write_manifest
from elmo_store.format.markers import IdsMarker, ObjectRecord, PartRange, ShardMarker, StretchMarker, checksum, write_marker
from elmo_store.forms import shards as forms
from elmo_store.forms import zarr_form
from elmo_store.reading.sentences import encode_part
from elmo_store.reading.writer import complete_store, encode_id_tables
from elmo_store.storage.root import Root

Int64 = npt.NDArray[np.int64]
LAYERS = 2
SHORTEST, LONGEST = 8, 19  # tokens of a sentence: 13.5 on average
WORDS = 20_000
PART_SENTENCES = 16_384
POOL_ROWS = 1 << 15  # distinct rows of states, used over and over: making random numbers would take longer than writing


@dataclass(frozen=True)
class Shape:
    """What a made-up store holds."""

    sentences: int
    channels: int = 16
    dtype: str = "float16"
    forms: tuple[str, ...] = layout.FORMS
    shard_rows: int = 16_384
    chunk_rows: int = layout.CHUNK_ROWS
    compression: str = "none"
    checksum: str = "none"

    @property
    def name(self) -> str:
        """Of its folder in a cache: different for different contents."""
        numbers = f"{self.sentences}x{self.channels}-{self.dtype}"
        sizes = f"{self.shard_rows}-{self.chunk_rows}-{layout.SENTENCE_CHUNK}"
        return "-".join([numbers, "+".join(self.forms), sizes, self.compression, self.checksum])


def lengths(sentences: int) -> Int64:
    """Tokens of each sentence [n]."""
    return np.random.default_rng(0).integers(SHORTEST, LONGEST + 1, sentences)


def starts(sentences: int) -> Int64:
    """First row of each sentence, and at last the number of rows [n + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths(sentences))])


def words() -> npt.NDArray[Any]:
    """Made-up words [WORDS], 3 to 9 letters."""
    random = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    return np.array(["".join(random.choice(letters, n)) for n in random.integers(3, 10, WORDS)], object)


def word_numbers(rows: int) -> Int64:
    """Which of `words` each row's token is [rows]."""
    return np.random.default_rng(2).integers(0, WORDS, rows)


def pool(channels: int, dtype: str) -> npt.NDArray[Any]:
    """States that are used over and over: [POOL_ROWS, 2L+1, channels]; of an int8 store in float32, as encoders quantise them."""
    states = np.random.default_rng(3).standard_normal((POOL_ROWS, 2 * LAYERS + 1, channels), np.float32)
    return states if dtype == "int8" else states.astype(dtype)


def pool_rows(states: npt.NDArray[Any], first: int, stop: int) -> npt.NDArray[Any]:
    """Rows ``first … stop`` of an endless repetition of ``states``."""
    return states[np.arange(first, stop) % len(states)]


def make_store(url: str, shape: Shape) -> None:
    """Write a complete store of this shape at ``url``; what stands there complete already stays."""
    root = Root(url)
    try:
        stores.open(url)
        return
    except StoreError:
        root.remove_tree()
    edges = starts(shape.sentences)
    manifest = _manifest(shape, int(edges[-1]))
    root.put(layout.START_STATE, b"\x02\x00\x00\x00\x00\x00\x00\x00{}")  # nobody asks for it here
    file = {"url": "made-up.txt", "format": "lines", "guessed": True, "bytes": 0, "version": "", "pieces": 1}
    root.put(layout.INPUTS, encode_inputs([file]))
    write_manifest(root, manifest)
    zarr_form.create(root, manifest)
    tokens = words()[word_numbers(manifest.sizes.rows)]
    stretch = _write_sentences(root, manifest, edges, tokens)
    tables = _write_ids(root, shape.sentences)
    complete_store(root, manifest, checksum(_write_shards(root, manifest, edges, tokens)), [stretch], [tables])


def make_hdf5(path: Path, sentences: int, channels: int = 16) -> None:
    """One dataset a sentence, as the tools before this one write it: "0", "1", …, each float32 [L+1, n, 2 × channels].

    What they call layers: [x; x], [fwd1; bwd1], [fwd2; bwd2]. A file that is there already stays.
    """
    if path.exists():
        return
    import h5py

    states = pool(channels, "float16").astype(np.float32).transpose(1, 0, 2)  # [2L+1, rows, channels]
    layers = np.concatenate([states[[0, 1, 3]], states[[0, 2, 4]]], axis=2)  # [L+1, rows, 2 × channels]
    edges = starts(sentences)
    unfinished = path.with_suffix(".writing")
    with h5py.File(unfinished, "w") as file:
        for number in range(sentences):
            first = int(edges[number]) % (POOL_ROWS - LONGEST)
            rows = layers[:, first : first + int(edges[number + 1] - edges[number])]
            file.create_dataset(str(number), rows.shape, dtype="float32", data=rows)
    unfinished.rename(path)


def _manifest(shape: Shape, rows: int) -> Manifest:
    parts = -(-shape.sentences // PART_SENTENCES)
    counts = Counts(shape.sentences, rows, rows, 0, 0, parts, layout.n_shards(rows, shape.shard_rows))
    return Manifest(
        kind="states",
        complete=False,
        model=ModelInfo("made-up", "sha256:" + "0" * 64, {}),
        tokenizer="made-up",
        start_state=StartStateInfo("zero", "0" * 64),
        dtype=shape.dtype,
        precision="float32",
        boundaries=False,
        states=layout.state_names(LAYERS),
        channels=shape.channels,
        shard_rows=shape.shard_rows,
        chunk_rows=shape.chunk_rows,
        forms=shape.forms,
        compression=shape.compression,
        checksum=shape.checksum,
        counts=counts,
        input=InputInfo("made-up", 1),
    )


def _write_sentences(root: Root, manifest: Manifest, edges: Int64, tokens: npt.NDArray[Any]) -> StretchMarker:
    parts: list[PartRange] = []
    objects: list[ObjectRecord] = []
    for part in range(manifest.sizes.parts):
        first = part * PART_SENTENCES
        stop = min(first + PART_SENTENCES, manifest.sizes.sentences)
        numbers = np.arange(first, stop)
        own = edges[first : stop + 1]
        lists = pa.ListArray.from_arrays(
            pa.array((own - own[0]).astype(np.int32)),
            pa.array(tokens[own[0] : own[-1]], pa.string()),
            type=layout.SENTENCES_SCHEMA.field("tokens").type,
        )
        columns = [
            pa.array(numbers),
            pa.array([_id(n) for n in numbers.tolist()]),
            pa.array(["made-up.txt"] * len(numbers)),
            pa.array(numbers),
            pa.array(own[:-1]),
            pa.array(np.diff(own).astype(np.int32)),
            lists,
        ]
        parts.append(PartRange(part, first, stop - first, int(own[0]), int(own[-1] - own[0])))
        table = pa.Table.from_arrays(columns, schema=layout.SENTENCES_SCHEMA)
        objects += _put(root, [(layout.sentences_part(part), encode_part(table))])
    size = manifest.sentence_chunk
    for chunk in range(-(-len(edges) // size)):
        objects += _put(root, [zarr_form.encode_sentence_chunk(manifest, chunk, edges[chunk * size : (chunk + 1) * size])])
    marker = StretchMarker(0, tuple(parts), tuple(objects))
    write_marker(root, marker)
    return marker


def _write_ids(root: Root, sentences: int) -> IdsMarker:
    bits = layout.id_bits(sentences)
    pairs = ids.hashes(_id(n) for n in range(sentences))
    tables = encode_id_tables(pairs, np.arange(sentences), bits, range(1 << bits))
    marker = IdsMarker(0, 0, 1 << bits, tuple(_put(root, tables)))
    write_marker(root, marker)
    return marker


def _write_shards(root: Root, manifest: Manifest, edges: Int64, tokens: npt.NDArray[Any]) -> Iterator[ShardMarker]:
    states = pool(manifest.channels, manifest.dtype)
    for shard in range(manifest.sizes.shards):
        first, stop = manifest.shard_range(shard)
        rows = np.arange(first, stop)
        sentence = np.searchsorted(edges, rows, "right") - 1
        index = (rows - edges[sentence]).astype(np.int32)
        objects = forms.encode_shard(
            manifest, shard, pool_rows(states, first, stop), tokens[first:stop].tolist(), sentence, index
        )
        marker = ShardMarker(shard, first, stop - first, tuple(_put(root, objects)))
        write_marker(root, marker)
        yield marker


def _id(number: int) -> str:
    return f"made-up.txt:{number}"


def _put(root: Root, objects: Iterable[tuple[str, bytes | bytearray]]) -> list[ObjectRecord]:
    records = []
    for path, data in objects:
        root.put(path, data)
        records.append(ObjectRecord.of(path, data))
    return records
