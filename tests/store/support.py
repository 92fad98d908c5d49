"""A small store with known contents, written with the package's own writers, and what it must give back."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from elmo_store import layout, shard_codec, zarr_form
from elmo_store.manifest import Counts, InputInfo, Manifest, MixInfo, ModelInfo, StartStateInfo, write_manifest
from elmo_store.markers import ObjectRecord, ShardMarker, write_marker
from elmo_store.storage import Root
from elmo_store.verify import start_state_sha256

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
    states: npt.NDArray[Any]  # [rows, states, channels]
    row_tokens: list[str]
    sentence: npt.NDArray[np.int64]
    index: npt.NDArray[np.int32]
    tokens: list[list[str]]
    starts: list[int]

    def rows(self, sentence: int) -> slice:
        """Rows of a sentence."""
        return slice(self.starts[sentence], self.starts[sentence + 1])


def token(i: int) -> str:
    return ("the", "naïve", "a\u00a0b", "日本", "</s>", "x" * 60)[i % 6] + str(i)


def make_manifest(
    *,
    lengths: Sequence[int] = LENGTHS,
    parts: Sequence[int] = PARTS,
    forms: Sequence[str] = ("zarr", "parquet"),
    dtype: str = "float16",
    compression: str = "none",
    boundaries: bool = False,
    shard_rows: int = SHARD_ROWS,
    channels: int = CHANNELS,
    mix: MixInfo | None = None,
    **changes: Any,
) -> Manifest:
    rows = sum(n + 2 if boundaries and n else n for n in lengths)
    h, c = start_state()
    counts = Counts(
        sentences=len(lengths), tokens=sum(lengths), rows=rows, rejected=min(1, len(lengths)), words_cut=0,
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
        states=tuple(one.name for one in mix.weight_sets) if mix else layout.state_names(LAYERS),
        channels=channels,
        shard_rows=shard_rows,
        forms=tuple(forms),
        compression=compression,
        counts=counts,
        input=InputInfo("sha256:" + "2" * 64, ({"url": "input.txt", "bytes": 123},)),
        job={"dtype": dtype, "lanes": None, "shard_rows": shard_rows},
        software={"elmo-store": "0"},
        mix=mix,
    )
    return replace(manifest, **changes)


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
    **settings: Any,
) -> Written:
    """Write a complete store and say what is in it."""
    manifest = make_manifest(lengths=lengths, parts=parts, **settings)
    root = Root(url, storage_options)
    rows = [n + 2 if manifest.boundaries and n else n for n in lengths]
    starts = [0, *np.cumsum(rows, dtype=np.int64).tolist()]
    n_rows = starts[-1]
    random = np.random.default_rng(0)
    states = random.standard_normal((n_rows, len(manifest.states), manifest.channels)).astype(manifest.dtype)
    tokens = [[token(starts[i] + j) for j in range(n)] for i, n in enumerate(lengths)]
    row_tokens = [t for ts in tokens for t in ([layout.BOS_TOKEN, *ts, layout.EOS_TOKEN] if manifest.boundaries and ts else ts)]
    sentence = np.repeat(np.arange(len(lengths), dtype=np.int64), rows)
    index = np.concatenate([np.zeros(0, np.int32), *(np.arange(n, dtype=np.int32) for n in rows)])
    h, c = start_state()
    root.put(layout.START_STATE, save({"h": h, "c": c}, metadata={"kind": "warm"}))
    _write_sentences(root, tokens, starts, parts)
    if "zarr" in manifest.forms:
        zarr_form.create(root, manifest)
    for shard in range(manifest.sizes.shards):
        write_shard(root, manifest, shard, states, row_tokens, sentence, index)
    if "zarr" in manifest.forms:
        zarr_form.write_sentence_start(root, manifest, iter([np.array(starts[:-1]), np.array(starts[-1:])]))
        zarr_form.consolidate(root)
    write_manifest(root, manifest)
    return Written(root, manifest, states, row_tokens, sentence, index, tokens, starts)


def write_shard(
    root: Root,
    manifest: Manifest,
    shard: int,
    states: npt.NDArray[Any],
    tokens: list[str],
    sentence: npt.NDArray[np.int64],
    index: npt.NDArray[np.int32],
) -> None:
    lo, hi = manifest.shard_range(shard)
    objects = shard_codec.encode(manifest, shard, states[lo:hi], tokens[lo:hi], sentence[lo:hi], index[lo:hi])
    for path, data in objects:
        root.put(path, data)
    records = tuple(ObjectRecord.of(path, data) for path, data in objects)
    write_marker(root, ShardMarker(shard, lo, hi - lo, records, {"tokens": hi - lo}))


def _write_sentences(root: Root, tokens: list[list[str]], starts: list[int], parts: Sequence[int]) -> None:
    first = 0
    for part, count in enumerate(parts):
        numbers = range(first, first + count)
        table = pa.table(
            {
                "sentence": list(numbers),
                "id": [f"doc.txt:{i}" for i in numbers],
                "source": ["in/doc.txt"] * count,
                "position": list(numbers),
                "first_row": [starts[i] for i in numbers],
                "n_tokens": [len(tokens[i]) for i in numbers],
                "tokens": [tokens[i] for i in numbers],
            },
            schema=layout.SENTENCES_SCHEMA,
        )
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd", row_group_size=2)
        root.put(layout.sentences_part(part), sink.getvalue())
        first += count
    if tokens:
        reject = {"sentence": len(tokens) - 1, "source": "in/doc.txt", "position": 5, "reason": "not UTF-8", "raw": "?"}
        root.put(layout.rejects_part(len(parts) - 1), (json.dumps(reject) + "\n").encode())
