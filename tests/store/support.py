"""A small store with known contents, written with the package's own writers, and what it must give back."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from safetensors.numpy import save

from elmo_store.format import ids, layout
from elmo_store.format.manifest import (
    Checksums,
    Counts,
    InputInfo,
    Manifest,
    MixInfo,
    ModelInfo,
    StartStateInfo,
    encode_inputs,
    start_state_sha256,
    write_manifest,
)
from elmo_store.format.markers import (
    IdsMarker,
    PartGroupMarker,
    PartRange,
    ShardMarker,
    checksum,
    put_objects,
    write_marker,
)
from elmo_store.format.numbers import Int8Rows, quantized
from elmo_store.format.texts import cut_bytes, hash_texts
from elmo_store.format.version import Version
from elmo_store.forms import shards as forms
from elmo_store.forms import zarr_form
from elmo_store.reading.sentences import encode_part
from elmo_store.storage.root import Root
from elmo_store.store import Store
from elmo_store.writer import complete_store

CHANNELS = 8
SHARD_ROWS = 16
LAYERS = 2
# Sentence 2 is a blank line, 5 a record that was refused.
LENGTHS = (3, 7, 0, 21, 1, 0, 12, 5)
PARTS = (3, 0, 5)  # sentences of each part


@dataclass(frozen=True)
class Written:
    """What was written."""

    root: Root
    manifest: Manifest
    states: npt.NDArray[Any]  # [rows, states, channels], as readers give them
    row_tokens: list[str]
    sentence: npt.NDArray[np.int64]
    index: npt.NDArray[np.int32]
    tokens: list[list[str]]
    starts: list[int]
    raw: Int8Rows | None = None  # of an int8 store, what `states` are products of

    def rows(self, sentence: int) -> slice:
        """Rows of a sentence."""
        return slice(self.starts[sentence], self.starts[sentence + 1])


def token(i: int) -> str:
    return ("the", "naïve", "a\u00a0b", "日本", "</s>", "x" * 60)[i % 6] + str(i)


def make_manifest(
    *,
    lengths: Sequence[int] = LENGTHS,
    parts: Sequence[int] = PARTS,
    store_forms: Sequence[str] = ("zarr", "parquet"),
    dtype: str = "float16",
    compression: str = "none",
    boundaries: bool = False,
    shard_rows: int = SHARD_ROWS,
    channels: int = CHANNELS,
    mix: MixInfo | None = None,
    states: tuple[str, ...] = (),
    **changes: Any,
) -> Manifest:
    rows = sum(n + 2 if boundaries and n else n for n in lengths)
    h, c = start_state()
    counts = Counts(
        sentences=len(lengths), tokens=sum(lengths), rows=rows, rejected=n_rejected(lengths), words_cut=0,
        parts=len(parts), shards=layout.n_shards(rows, shard_rows),
    )  # fmt: skip
    manifest = Manifest(
        kind="mix" if mix else "states",
        complete=True,
        model=ModelInfo("tiny", "sha256:" + "1" * 64, {"lstm": {"n_layers": LAYERS}}),
        tokenizer="spaces",
        start_state=StartStateInfo("warm", start_state_sha256("warm", h, c)),
        dtype=dtype,
        precision="float32",
        boundaries=boundaries,
        states=states
        or (tuple(one.name for one in mix.weight_sets) if mix else layout.state_names(LAYERS)),
        channels=channels,
        shard_rows=shard_rows,
        forms=tuple(store_forms),
        compression=compression,
        counts=counts,
        input=InputInfo("sha256:" + "2" * 64, 1),
        job={"dtype": dtype, "lanes": None, "shard_rows": shard_rows},
        software={"elmo-store": "0"},
        mix=mix,
        checksums=Checksums("3" * 64, "4" * 64, "5" * 64),
    )
    return replace(manifest, **changes)


def document(manifest: Manifest) -> str:
    """What ids of sentences begin with."""
    return str(manifest.job.get("document", "doc.txt"))


def n_rejected(lengths: Sequence[int]) -> int:
    """1 where the last but two sentence has no tokens, as sentence 5 of `LENGTHS`: it stands for a refused record."""
    return 1 if len(lengths) >= 3 and not lengths[-3] else 0


def start_state() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    random = np.random.default_rng(1)
    return (
        random.standard_normal((2, LAYERS, 8)).astype(np.float32),
        random.standard_normal((2, LAYERS, 16)).astype(np.float32),
    )


def make_store(
    url: str,
    *,
    lengths: Sequence[int] = LENGTHS,
    parts: Sequence[int] = PARTS,
    storage_options: Mapping[str, Any] | None = None,
    values: Callable[[int, int], Any] | None = None,
    token: Callable[[int], str] = token,
    **settings: Any,
) -> Written:
    """Write a complete store and say what is in it. ``values``: of rows and states → states, `Int8Rows`; ``token``: of a row."""
    manifest = make_manifest(lengths=lengths, parts=parts, **settings)
    root = Root(url, storage_options)
    rows = [n + 2 if manifest.boundaries and n else n for n in lengths]
    starts = [0, *np.cumsum(rows, dtype=np.int64).tolist()]
    n_rows = starts[-1]
    random = np.random.default_rng(0)
    if values is None:
        given: Any = random.standard_normal((n_rows, len(manifest.states), manifest.channels))
    else:
        given = values(n_rows, len(manifest.states))
    stored: npt.NDArray[Any] | Int8Rows
    if manifest.is_int8:
        stored = given if isinstance(given, Int8Rows) else quantized(given)
    else:
        stored = given.astype(manifest.dtype, copy=False)
    states = stored.floats() if isinstance(stored, Int8Rows) else stored
    tokens = [[token(starts[i] + j) for j in range(n)] for i, n in enumerate(lengths)]
    row_tokens = [
        t
        for ts in tokens
        for t in ([layout.BOS_TOKEN, *ts, layout.EOS_TOKEN] if manifest.boundaries and ts else ts)
    ]
    sentence = np.repeat(np.arange(len(lengths), dtype=np.int64), rows)
    index = np.concatenate([np.zeros(0, np.int32), *(np.arange(n, dtype=np.int32) for n in rows)])
    h, c = start_state()
    root.put(layout.START_STATE, save({"h": h, "c": c}, metadata={"kind": "warm"}))
    file = {
        "url": "input.txt",
        "format": "lines",
        "guessed": True,
        "bytes": 123,
        "version": "mtime=1",
        "pieces": 1,
    }
    root.put(layout.INPUTS, encode_inputs([file]))
    zarr_form.create(root, manifest)
    written = write_sentences(root, manifest, tokens, starts, parts)
    tables = write_ids(root, manifest, tokens)
    markers = [
        write_shard(root, manifest, shard, stored, row_tokens, sentence, index)
        for shard in range(manifest.sizes.shards)
    ]
    complete = complete_store(root, manifest, checksum(markers), [written], [tables])
    if not manifest.complete:
        write_manifest(root, manifest)
    whole = complete if manifest.complete else manifest
    raw = stored if isinstance(stored, Int8Rows) else None
    return Written(root, whole, states, row_tokens, sentence, index, tokens, starts, raw)


def write_shard(
    root: Root,
    manifest: Manifest,
    shard: int,
    states: npt.NDArray[Any] | Int8Rows,
    tokens: list[str],
    sentence: npt.NDArray[np.int64],
    index: npt.NDArray[np.int32],
) -> ShardMarker:
    lo, hi = manifest.shard_range(shard)
    objects = forms.encode_shard(
        manifest, shard, states[lo:hi], tokens[lo:hi], sentence[lo:hi], index[lo:hi]
    )
    marker = ShardMarker(
        shard, lo, hi - lo, put_objects(root, objects)[0], stats={"tokens": hi - lo}
    )
    write_marker(root, marker)
    return marker


def write_ids(root: Root, manifest: Manifest, tokens: list[list[str]]) -> IdsMarker:
    n, bits = manifest.sizes.sentences, layout.id_bits(manifest.sizes.sentences)
    pairs = ids.hashes(f"{document(manifest)}:{i}" for i in range(n))
    texts = hash_texts(tokens, cut_bytes(manifest.model.options))
    tables = ids.encode_lookups(
        [(pairs, np.arange(n)), (texts, np.arange(n))], bits, range(1 << bits)
    )
    marker = IdsMarker(0, 0, 1 << bits, put_objects(root, tables)[0])
    write_marker(root, marker)
    return marker


def write_sentences(
    root: Root, manifest: Manifest, tokens: list[list[str]], starts: list[int], parts: Sequence[int]
) -> PartGroupMarker:
    first = 0
    objects: list[tuple[str, bytes | bytearray]] = []
    ranges = []
    for part, count in enumerate(parts):
        numbers = range(first, first + count)
        table = pa.table(
            {
                "sentence": list(numbers),
                "id": [f"{document(manifest)}:{i}" for i in numbers],
                "source": ["in/doc.txt"] * count,
                "position": list(numbers),
                "first_row": [starts[i] for i in numbers],
                "n_tokens": [len(tokens[i]) for i in numbers],
                "tokens": [tokens[i] for i in numbers],
            },
            schema=layout.SENTENCES_SCHEMA,
        )
        objects.append((layout.sentences_part(part), encode_part(table)))
        ranges.append(
            PartRange(part, first, count, starts[first], starts[first + count] - starts[first])
        )
        first += count
    if manifest.sizes.rejected:
        refused = len(tokens) - 3  # sentence 5 of `LENGTHS`
        reject = {
            "sentence": refused,
            "source": "in/doc.txt",
            "position": 5,
            "reason": "not UTF-8",
            "raw": "?",
        }
        part = next(
            one.part
            for one in ranges
            if one.first_sentence <= refused < one.first_sentence + one.n_sentences
        )
        objects.append((layout.rejects_part(part), (json.dumps(reject) + "\n").encode()))
    for chunk in range(-(-len(starts) // manifest.sentence_chunk)):
        entries = np.array(starts[chunk * manifest.sentence_chunk :][: manifest.sentence_chunk])
        objects.append(zarr_form.encode_sentence_chunk(manifest, chunk, entries))
    marker = PartGroupMarker(0, tuple(ranges), put_objects(root, objects)[0])
    write_marker(root, marker)
    return marker


def version_of(store: Store) -> Version:
    """Return the version of a collection that was opened."""
    assert store.version is not None
    return store.version


def sealed_again(value: Mapping[str, Any]) -> bytes:
    """A marker that says ``value``, with the hash that belongs to it, as somebody who reads the format's page would write it."""
    head = (
        json.dumps({name: one for name, one in value.items() if name != "sha256"}, indent=2)
        .removesuffix("\n}")
        .encode()
    )
    return head + f',\n  "sha256": "{hashlib.sha256(head).hexdigest()}"\n}}\n'.encode()
