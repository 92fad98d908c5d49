"""The manifest, elmo_store.json: what a store is, and whether it is whole; and inputs.parquet: the files it was made from.

Parsing checks every field and how the fields fit together, so that no reader meets a half-believed number. What each field
means stands in docs/store-format.md; this module and that page change together.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Meta

from elmo_store.errors import (
    ManifestError,
    ShardCorruptError,
    StoreFeatureError,
    StoreIncompleteError,
    StoreNotFoundError,
    StoreVersionError,
)
from elmo_store.format import layout
from elmo_store.format.fields import KeptField, check_fields
from elmo_store.format.layout import MANIFEST
from elmo_store.format.markers import ObjectRecord
from elmo_store.format.typed import Count, Json, Name, Number, Sha256, Size, converted
from elmo_store.storage.json_values import encoded_json
from elmo_store.storage.parquet_files import encoded_table, read_table
from elmo_store.storage.root import Root

UNIQUE = Meta(min_length=1, extra_json_schema={"uniqueItems": True})
Form = Annotated[str, Meta(pattern=f"^({'|'.join(layout.FORMS)})$")]


@dataclass(frozen=True)
class ModelInfo:
    """The biLM: the name it was asked for by, its fingerprint ("sha256:…"), its options.json."""

    name: str
    fingerprint: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class StartStateInfo:
    """What sentences started from: "zero" or "warm", and the hash of its value, which stands in start_state.safetensors."""

    kind: Annotated[str, Meta(pattern="^(zero|warm)$", max_length=4)]
    sha256: Sha256


@dataclass(frozen=True)
class Counts:
    """Sizes of the whole store. ``rows`` = ``tokens`` without boundaries; ``rejected`` are among the ``sentences``."""

    sentences: Count
    tokens: Count
    rows: Count
    rejected: Count
    words_cut: Count
    parts: Count
    shards: Count


@dataclass(frozen=True)
class InputInfo:
    """The input: one fingerprint over all files, and how many there are; inputs.parquet names them."""

    fingerprint: str
    files: Count


@dataclass(frozen=True)
class Checksums:
    """SHA-256 over what the markers of a complete store name: its shards (what the store holds), its parts, its id tables."""

    shards: Sha256
    parts: Sha256
    ids: Sha256


@dataclass(frozen=True)
class WeightSet:
    """One mix, as used: ``s`` [L+1] sums to 1 or was given so; ``w`` [L+1] the logits, None if ``s`` was given."""

    name: Name
    s: tuple[Number, ...]
    gamma: Number
    w: tuple[Number, ...] | None = None


@dataclass(frozen=True)
class MixInfo:
    """Of a store of kind "mix": the store it was mixed from, by URL and by hash of its manifest, and how."""

    source: str
    source_sha256: Sha256
    layer_norm: bool
    weight_sets: Annotated[tuple[WeightSet, ...], Meta(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about a store but its contents. Fields in the order of docs/store-format.md.

    ``counts`` is None only while the corpus is still being read; ``mix`` is None unless ``kind`` is "mix"; ``objects`` and
    ``checksums`` are empty and None until the store is complete. ``chunk_rows`` 0 stands for what this version writes.
    ``fields``, what sentences keep of their records, is absent from the JSON where it is empty.
    """

    format_version: Literal[1] = layout.FORMAT_VERSION
    kind: Annotated[str, Meta(pattern="^(states|mix)$")]
    complete: bool
    model: ModelInfo
    tokenizer: str
    start_state: StartStateInfo
    dtype: Annotated[str, Meta(pattern=f"^({'|'.join(layout.DTYPES)})$")]
    precision: str
    boundaries: bool
    states: Annotated[tuple[Name, ...], UNIQUE]
    channels: Size
    shard_rows: Size
    chunk_rows: Size = 0
    sentence_chunk: Size = layout.SENTENCE_CHUNK
    forms: Annotated[tuple[Form, ...], UNIQUE]
    compression: Annotated[str, Meta(pattern=f"^({'|'.join(layout.COMPRESSIONS)})$")]
    checksum: Annotated[str, Meta(pattern=f"^({'|'.join(layout.CHECKSUMS)})$")] = "none"
    counts: Counts | None
    input: InputInfo
    job: Mapping[str, Json] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    mix: MixInfo | None = None
    fields: tuple[KeptField, ...] = ()
    objects: tuple[ObjectRecord, ...] = ()
    checksums: Checksums | None = None

    def __post_init__(self) -> None:
        if not self.chunk_rows:  # a store that is to be written
            object.__setattr__(self, "chunk_rows", layout.chunk_rows(self.shard_rows))

    @property
    def is_int8(self) -> bool:
        """Whether vectors are stored in 8 bits, each with a scale."""
        return self.dtype == "int8"

    @property
    def required_features(self) -> tuple[str, ...]:
        """What else a reader must know."""
        return (layout.INT8,) if self.is_int8 else ()

    @property
    def row_bytes(self) -> int:
        """Bytes of all vectors of a row as one form stores them, without compression."""
        return layout.row_bytes(self.dtype, len(self.states), self.channels)

    @property
    def sizes(self) -> Counts:
        """The counts. StoreIncompleteError while they aren't known yet."""
        if self.counts is None:
            raise StoreIncompleteError(
                "the job is still reading its input: how many rows there will be isn't known yet"
            )
        return self.counts

    def shard_range(self, shard: int) -> tuple[int, int]:
        """First row and the row after the last of shard ``shard``."""
        return layout.shard_range(shard, self.sizes.rows, self.shard_rows)

    def to_json(self) -> dict[str, Any]:
        """The JSON object, keys in the order of docs/store-format.md; `parse` gives the same manifest back."""
        first = {"format_version": self.format_version, "required_features": self.required_features}
        value: dict[str, Any] = json.loads(json.dumps(first | asdict(self)))
        if not self.fields:
            del value["fields"]
        return value | {"sha256": own_sha256(value)}

    @classmethod
    def parse(cls, value: Any, where: str = MANIFEST) -> "Manifest":
        """The manifest of a JSON object; unknown keys are ignored (a later minor writer may add some).

        Raises:
            StoreVersionError: another format version, both named.
            StoreFeatureError: a feature, form, codec or number type of a later elmo-store.
            ManifestError: a field, named together with ``where``, is missing or wrong.
        """
        _check_known(value, where)
        try:
            manifest = converted({"fields": []} | value if isinstance(value, dict) else value, cls)
            _check(manifest, value)
        except ValueError as error:
            raise ManifestError(f"{where}: {error}") from error
        return manifest


def own_sha256(value: Mapping[str, Any]) -> str:
    """The manifest's hash of itself: of its JSON without the member ``sha256``, keys sorted, ASCII, without spaces."""
    rest = {name: member for name, member in value.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def start_state_sha256(kind: str, h: npt.NDArray[np.float32], c: npt.NDArray[np.float32]) -> str:
    """The hash of a start state's value, as docs/store-format.md defines it: kind, shapes, little-endian float32 bytes."""
    header = json.dumps({"kind": kind, "h": list(h.shape), "c": list(c.shape)}, sort_keys=True)
    digest = hashlib.sha256(header.encode())
    for tensor in (h, c):
        digest.update(np.ascontiguousarray(tensor, "<f4").tobytes())
    return digest.hexdigest()


def _check_known(value: Any, where: str) -> None:
    """StoreVersionError, StoreFeatureError: what a later version may have written, before it is taken for a wrong value."""
    if not isinstance(value, dict):
        return
    version = value.get("format_version")
    if type(version) is int and 0 <= version < 2**63 and version != layout.FORMAT_VERSION:
        raise StoreVersionError(where, version, layout.FORMAT_VERSION)
    for name, what, known in (
        ("required_features", "the feature", layout.FEATURES),
        ("dtype", "dtype", layout.DTYPES),
        ("forms", "the form", layout.FORMS),
        ("compression", "compression", layout.COMPRESSIONS),
        ("checksum", "checksum", layout.CHECKSUMS),
    ):
        member = value.get(name)
        for text in member if isinstance(member, list) else [member]:
            if isinstance(text, str) and text not in known:
                raise StoreFeatureError(where, f"{what} {text!r}")


def check_layout(manifest: Manifest) -> None:
    """ValueError for sizes that memory is taken by, and codecs, that no store can have."""
    for name, known in (("compression", layout.COMPRESSIONS), ("checksum", layout.CHECKSUMS)):
        if getattr(manifest, name) not in known:
            raise ValueError(f"{name} is {getattr(manifest, name)!r:.80}, not {' or '.join(known)}")
    if manifest.channels > layout.MOST_CHANNELS:
        raise ValueError(
            f"channels is {manifest.channels}, more than the {layout.MOST_CHANNELS:,} that a state may have"
        )
    if manifest.sentence_chunk > layout.MOST_SENTENCE_CHUNK:
        raise ValueError(
            f"sentence_chunk is {manifest.sentence_chunk}, more than {layout.MOST_SENTENCE_CHUNK:,}"
        )
    if manifest.shard_rows % manifest.chunk_rows:
        raise ValueError(
            f"chunk_rows is {manifest.chunk_rows}, which does not divide shard_rows, {manifest.shard_rows}"
        )
    row_bytes = manifest.channels * layout.NUMBER_BYTES[manifest.dtype]
    row_bytes = max(row_bytes, len(manifest.states) * layout.SCALE_BYTES)
    if manifest.chunk_rows * row_bytes > layout.MOST_CHUNK_BYTES:
        raise ValueError(
            f"chunk_rows is {manifest.chunk_rows}: a chunk would have more than {layout.MOST_CHUNK_BYTES:,} bytes"
        )
    if manifest.shard_rows // manifest.chunk_rows * len(manifest.states) > layout.MOST_CHUNKS:
        raise ValueError(
            f"shard_rows is {manifest.shard_rows}: a shard would have more than {layout.MOST_CHUNKS:,} inner chunks"
        )


def _check_columns(manifest: Manifest, value: Mapping[str, Any]) -> None:
    """Names of forms and of the stored vectors, and the mixes that these may be."""
    for name in ("states", "forms"):
        if len(set(value[name])) < len(value[name]):
            raise ValueError(f"{name} is {value[name]!r}, not a list of different names")
    try:
        (layout.check_states if manifest.kind == "states" else layout.check_set_names)(
            manifest.states
        )
        if manifest.is_int8:
            layout.check_scale_columns(manifest.states)
    except ValueError as error:
        raise ValueError(f"states: {error}") from error
    if (manifest.mix is None) != (manifest.kind == "states"):
        raise ValueError(f"mix is {value['mix']!r:.80} in a store of kind {manifest.kind!r}")
    if manifest.mix is not None:
        names = tuple(weights.name for weights in manifest.mix.weight_sets)
        if names != manifest.states:
            raise ValueError(f"mix.weight_sets are named {names}, states are {manifest.states}")
        if any("w" not in weights for weights in value["mix"]["weight_sets"]):
            raise ValueError("mix.weight_sets: w is missing")
    try:
        check_fields(manifest.fields)
    except ValueError as error:
        raise ValueError(f"fields: {error}") from error


def _check_counts(manifest: Manifest, counts: Counts) -> None:
    """How the counts must fit together."""
    shards = layout.n_shards(counts.rows, manifest.shard_rows)
    if counts.shards != shards:
        raise ValueError(
            f"counts.shards is {counts.shards}; {counts.rows} rows in shards of {manifest.shard_rows} are {shards}"
        )
    extra = counts.rows - counts.tokens
    if (
        extra < 0
        or extra % 2
        or (extra and not manifest.boundaries)
        or extra > 2 * counts.sentences
    ):
        raise ValueError(
            f"counts.rows is {counts.rows}; {counts.tokens} tokens in {counts.sentences} sentences "
            f"{'with' if manifest.boundaries else 'without'} boundaries can't be that many rows"
        )
    if counts.rejected > counts.sentences:
        raise ValueError(f"counts.rejected is {counts.rejected} of {counts.sentences} sentences")


def _check(manifest: Manifest, value: Mapping[str, Any]) -> None:
    """How the fields must fit together. ValueError."""
    check_layout(manifest)
    _check_columns(manifest, value)
    if value.get("required_features") != list(manifest.required_features):
        raise ValueError(
            f"required_features must be {list(manifest.required_features)} where dtype is {manifest.dtype!r}"
        )
    for name in ("counts", "checksums"):
        if manifest.complete and value[name] is None:
            raise ValueError(f"{name} is null in a store that says it is complete")
    if manifest.counts is not None:
        _check_counts(manifest, manifest.counts)
    if value.get("sha256") != own_sha256(value):
        raise ValueError(
            f"sha256 is {value.get('sha256')!r:.80}, the manifest's own hash is {own_sha256(value)}: it was changed or damaged"
        )


def write_manifest(root: Root, manifest: Manifest, *, create: bool = False) -> None:
    """Put the manifest, after checking that it can be read back. ``create``: as of `Root.create`."""
    value = manifest.to_json()
    Manifest.parse(value, root.url(layout.MANIFEST))
    if create:
        root.create(layout.MANIFEST, encoded_json(value))
    else:
        root.put_json(layout.MANIFEST, value)


def read_manifest(root: Root) -> Manifest:
    """The manifest of the store at ``root``, complete or not.

    Raises:
        StoreNotFoundError: there is none.
        StoreVersionError, ManifestError: as `Manifest.parse`.
    """
    where = root.url(layout.MANIFEST)
    try:
        value = root.get_json(layout.MANIFEST)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreNotFoundError(
            f"no store at {root}: there is no {where}; is the location right?"
        ) from error
    except ShardCorruptError as error:
        raise ManifestError(str(error)) from error
    except ValueError as error:
        raise ManifestError(
            f"{where} is not JSON in UTF-8 ({error}): restore it, or write the store again"
        ) from error
    return Manifest.parse(value, where)


def encode_inputs(files: Sequence[Mapping[str, Any]]) -> bytes:
    """The table of the input's files, in input order; each has the columns of `layout.INPUTS_SCHEMA`."""
    columns = {name: [file[name] for file in files] for name in layout.INPUTS_SCHEMA.names}
    return encoded_table(pa.table(columns, schema=layout.INPUTS_SCHEMA))


def read_inputs(root: Root) -> list[dict[str, Any]]:
    """The input's files, in input order. ShardMissingError, ShardCorruptError."""
    files: list[dict[str, Any]] = read_table(root, layout.INPUTS, layout.INPUTS_SCHEMA).to_pylist()
    return files
