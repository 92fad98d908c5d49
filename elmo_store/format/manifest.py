"""The manifest, elmo_store.json: what a store is, and whether it is whole.

Parsing checks every field and how the fields fit together, so that no reader meets a half-believed number. What each field
means stands in docs/store-format.md; this module and that page change together.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from elmo_store.errors import (
    ManifestError,
    ShardCorruptError,
    StoreFeatureError,
    StoreIncompleteError,
    StoreNotFoundError,
    StoreVersionError,
)
from elmo_store.format import layout
from elmo_store.format.manifest_fields import Fields, Json
from elmo_store.format.markers import ObjectRecord
from elmo_store.storage.paths import is_inside
from elmo_store.storage.root import Root

Kind = Literal["states", "mix"]


@dataclass(frozen=True)
class ModelInfo:
    """The biLM: the name it was asked for by, its fingerprint ("sha256:…"), its options.json."""

    name: str
    fingerprint: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class StartStateInfo:
    """What sentences started from: "zero" or "warm", and the hash of its value, which stands in start_state.safetensors."""

    kind: str
    sha256: str


@dataclass(frozen=True)
class Counts:
    """Sizes of the whole store. ``rows`` = ``tokens`` without boundaries; ``rejected`` are among the ``sentences``."""

    sentences: int
    tokens: int
    rows: int
    rejected: int
    words_cut: int
    parts: int
    shards: int


@dataclass(frozen=True)
class InputInfo:
    """The input: one fingerprint over all files, and how many there are; inputs.parquet names them."""

    fingerprint: str
    files: int


@dataclass(frozen=True)
class Checksums:
    """SHA-256 over what the markers of a complete store name: its shards (what the store holds), its parts, its id tables."""

    shards: str
    parts: str
    ids: str


@dataclass(frozen=True)
class WeightSet:
    """One mix, as used: ``s`` [L+1] sums to 1 or was given so; ``w`` [L+1] the logits, None if ``s`` was given."""

    name: str
    s: tuple[float, ...]
    gamma: float
    w: tuple[float, ...] | None = None


@dataclass(frozen=True)
class MixInfo:
    """Of a store of kind "mix": the store it was mixed from, by URL and by hash of its manifest, and how."""

    source: str
    source_sha256: str
    layer_norm: bool
    weight_sets: tuple[WeightSet, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything about a store but its contents. Fields in the order of docs/store-format.md.

    ``counts`` is None only while the corpus is still being read; ``mix`` is None unless ``kind`` is "mix"; ``objects`` and
    ``checksums`` are empty and None until the store is complete. ``chunk_rows`` 0 stands for what this version writes.
    """

    kind: Kind
    complete: bool
    model: ModelInfo
    tokenizer: str
    start_state: StartStateInfo
    dtype: str
    precision: str
    boundaries: bool
    states: tuple[str, ...]
    channels: int
    shard_rows: int
    forms: tuple[str, ...]
    compression: str
    counts: Counts | None
    input: InputInfo
    checksum: str = "none"
    chunk_rows: int = 0
    sentence_chunk: int = layout.SENTENCE_CHUNK
    job: Mapping[str, Json] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    mix: MixInfo | None = None
    objects: tuple[ObjectRecord, ...] = ()
    checksums: Checksums | None = None
    format_version: int = layout.FORMAT_VERSION

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
            raise StoreIncompleteError("the job is still reading its input: how many rows there will be isn't known yet")
        return self.counts

    def shard_range(self, shard: int) -> tuple[int, int]:
        """First row and the row after the last of shard ``shard``."""
        return layout.shard_range(shard, self.sizes.rows, self.shard_rows)

    def to_json(self) -> dict[str, Any]:
        """The JSON object, keys in the order of docs/store-format.md; `parse` gives the same manifest back."""
        mix = self.mix and {
            "source": self.mix.source,
            "source_sha256": self.mix.source_sha256,
            "layer_norm": self.mix.layer_norm,
            "weight_sets": [
                {"name": ws.name, "s": list(ws.s), "gamma": ws.gamma, "w": None if ws.w is None else list(ws.w)}
                for ws in self.mix.weight_sets
            ],
        }
        value: dict[str, Any] = {
            "format_version": self.format_version,
            "required_features": list(self.required_features),
            "kind": self.kind,
            "complete": self.complete,
            "model": {
                "name": self.model.name,
                "fingerprint": self.model.fingerprint,
                "options": dict(self.model.options),
            },
            "tokenizer": self.tokenizer,
            "start_state": vars(self.start_state).copy(),
            "dtype": self.dtype,
            "precision": self.precision,
            "boundaries": self.boundaries,
            "states": list(self.states),
            "channels": self.channels,
            "shard_rows": self.shard_rows,
            "chunk_rows": self.chunk_rows,
            "sentence_chunk": self.sentence_chunk,
            "forms": list(self.forms),
            "compression": self.compression,
            "checksum": self.checksum,
            "counts": None if self.counts is None else vars(self.counts).copy(),
            "input": vars(self.input).copy(),
            "job": dict(self.job),
            "software": dict(self.software),
            "mix": mix,
            "objects": [record.to_json() for record in self.objects],
            "checksums": None if self.checksums is None else vars(self.checksums).copy(),
        }
        return value | {"sha256": own_sha256(value)}

    @classmethod
    def parse(cls, value: Any, where: str = layout.MANIFEST) -> "Manifest":
        """The manifest of a JSON object; unknown keys are ignored (a later minor writer may add some).

        Raises:
            StoreVersionError: another format version, both named.
            StoreFeatureError: a feature, form, codec or number type of a later elmo-store.
            ManifestError: a field, named together with ``where``, is missing or wrong.
        """
        fields = Fields(value, where)
        version = fields.count("format_version")
        if version != layout.FORMAT_VERSION:
            raise StoreVersionError(where, version, layout.FORMAT_VERSION)
        for feature in fields.names("required_features"):
            if feature not in layout.FEATURES:
                raise StoreFeatureError(where, f"the feature {feature!r}")
        model, start = fields.child("model"), fields.child("start_state")
        source = fields.child("input")
        kind = fields.one_of("kind", ("states", "mix"))
        manifest = cls(
            kind="mix" if kind == "mix" else "states",
            complete=fields.flag("complete"),
            model=ModelInfo(model.text("name"), model.text("fingerprint"), model.mapping("options")),
            tokenizer=fields.text("tokenizer"),
            start_state=StartStateInfo(start.one_of("kind", ("zero", "warm")), start.sha256("sha256")),
            dtype=_known(fields, "dtype", layout.DTYPES),
            precision=fields.text("precision"),
            boundaries=fields.flag("boundaries"),
            states=fields.names("states"),
            channels=fields.count("channels", at_least=1),
            shard_rows=fields.count("shard_rows", at_least=1),
            forms=_known_forms(fields),
            compression=_known(fields, "compression", layout.COMPRESSIONS),
            checksum=_known(fields, "checksum", layout.CHECKSUMS),
            chunk_rows=fields.count("chunk_rows", at_least=1),
            sentence_chunk=fields.count("sentence_chunk", at_least=1),
            counts=_counts(fields),
            input=InputInfo(source.text("fingerprint"), source.count("files")),
            job=fields.scalars("job"),
            software=fields.texts("software"),
            mix=_mix(fields, kind),
            objects=_object_records(fields),
            checksums=_checksums(fields),
        )
        _check(manifest, fields)
        found = fields.sha256("sha256")
        if found != own_sha256(value):
            raise fields.error("sha256", f"is {found}, the manifest's own hash is {own_sha256(value)}: it was changed or damaged")
        return manifest


def own_sha256(value: Mapping[str, Any]) -> str:
    """The manifest's hash of itself: of its JSON without the member ``sha256``, keys sorted, ASCII, without spaces."""
    rest = {name: member for name, member in value.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _known(fields: Fields, name: str, known: tuple[str, ...]) -> str:
    """A string that this package knows. StoreFeatureError for any other: a later one may have written it."""
    value = fields.text(name)
    if value not in known:
        raise StoreFeatureError(fields.where, f"{name} {value!r}")
    return value


def _known_forms(fields: Fields) -> tuple[str, ...]:
    """The store's forms. A form of a later version is a StoreFeatureError: its rooms would not be verified."""
    forms = fields.names("forms")
    for form in forms:
        if form not in layout.FORMS:
            raise StoreFeatureError(fields.where, f"the form {form!r}")
    return forms


def _object_records(fields: Fields) -> tuple[ObjectRecord, ...]:
    records = [ObjectRecord(one.text("path"), one.count("bytes"), one.sha256("sha256")) for one in fields.children("objects")]
    if outside := [record.path for record in records if not is_inside(record.path)]:
        raise fields.error("objects", f"names {outside[0]!r}, which is no path inside the store")
    return tuple(records)


def _checksums(fields: Fields) -> Checksums | None:
    if fields.is_null("checksums"):
        return None
    sums = fields.child("checksums")
    return Checksums(**{name: sums.sha256(name) for name in Checksums.__dataclass_fields__})


def _counts(fields: Fields) -> Counts | None:
    if fields.is_null("counts"):
        return None
    counts = fields.child("counts")
    return Counts(**{name: counts.count(name) for name in Counts.__dataclass_fields__})


def _mix(fields: Fields, kind: str) -> MixInfo | None:
    if kind != "mix":
        if not fields.is_null("mix"):
            raise fields.error("mix", "is there in a store of states, which is not mixed")
        return None
    mix = fields.child("mix")
    weight_sets = tuple(
        WeightSet(
            name=one.text("name"),
            s=one.numbers("s"),
            gamma=one.number("gamma"),
            w=None if one.is_null("w") else one.numbers("w"),
        )
        for one in mix.children("weight_sets")
    )
    return MixInfo(mix.text("source"), mix.sha256("source_sha256"), mix.flag("layer_norm"), weight_sets)


def _check_sizes(manifest: Manifest, fields: Fields) -> None:
    """Sizes that memory is taken by."""
    if manifest.channels > layout.MOST_CHANNELS:
        raise fields.error("channels", f"is {manifest.channels}, more than the {layout.MOST_CHANNELS:,} that a state may have")
    if manifest.sentence_chunk > layout.MOST_SENTENCE_CHUNK:
        raise fields.error("sentence_chunk", f"is {manifest.sentence_chunk}, more than {layout.MOST_SENTENCE_CHUNK:,}")
    if manifest.shard_rows % manifest.chunk_rows:
        raise fields.error("chunk_rows", f"is {manifest.chunk_rows}, which does not divide shard_rows, {manifest.shard_rows}")
    row_bytes = max(manifest.channels * layout.NUMBER_BYTES[manifest.dtype], len(manifest.states) * layout.SCALE_BYTES)
    if manifest.chunk_rows * row_bytes > layout.MOST_CHUNK_BYTES:
        raise fields.error(
            "chunk_rows", f"is {manifest.chunk_rows}: a chunk would have more than {layout.MOST_CHUNK_BYTES:,} bytes"
        )
    if manifest.shard_rows // manifest.chunk_rows * len(manifest.states) > layout.MOST_CHUNKS:
        raise fields.error(
            "shard_rows", f"is {manifest.shard_rows}: a shard would have more than {layout.MOST_CHUNKS:,} inner chunks"
        )


def _check(manifest: Manifest, fields: Fields) -> None:
    """How the fields must fit together."""
    _check_sizes(manifest, fields)
    if not manifest.states:
        raise fields.error("states", "is empty: a store holds one column or more")
    try:
        if manifest.kind == "states":
            layout.check_states(manifest.states)
        else:
            layout.check_set_names(manifest.states)
    except ValueError as error:
        raise fields.error("states", str(error)) from error
    if manifest.mix is not None:
        names = tuple(weights.name for weights in manifest.mix.weight_sets)
        if names != manifest.states:
            raise fields.error("mix.weight_sets", f"are named {names}, states are {manifest.states}")
    if manifest.is_int8 != (layout.INT8 in fields.names("required_features")):
        raise fields.error(
            "required_features", f"must name {layout.INT8!r} if dtype is 'int8', and only then; it is {manifest.dtype!r}"
        )
    if manifest.is_int8:
        try:
            layout.check_scale_columns(manifest.states)
        except ValueError as error:
            raise fields.error("states", str(error)) from error
    if not manifest.forms:
        raise fields.error("forms", f"is empty: one or both of {', '.join(layout.FORMS)}")
    if manifest.complete and (manifest.counts is None or manifest.checksums is None):
        raise fields.error("counts" if manifest.counts is None else "checksums", "is null in a store that says it is complete")
    counts = manifest.counts
    if counts is None:
        return
    shards = layout.n_shards(counts.rows, manifest.shard_rows)
    if counts.shards != shards:
        raise fields.error(
            "counts.shards", f"is {counts.shards}; {counts.rows} rows in shards of {manifest.shard_rows} are {shards}"
        )
    extra = counts.rows - counts.tokens
    if extra < 0 or extra % 2 or (extra and not manifest.boundaries) or extra > 2 * counts.sentences:
        raise fields.error(
            "counts.rows",
            f"is {counts.rows}; {counts.tokens} tokens in {counts.sentences} sentences "
            f"{'with' if manifest.boundaries else 'without'} boundaries can't be that many rows",
        )
    if counts.rejected > counts.sentences:
        raise fields.error("counts.rejected", f"is {counts.rejected} of {counts.sentences} sentences")


def write_manifest(root: Root, manifest: Manifest) -> None:
    """Put the manifest, after checking that it can be read back."""
    value = manifest.to_json()
    Manifest.parse(value, root.url(layout.MANIFEST))
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
        raise StoreNotFoundError(f"no store at {root}: there is no {where}; is the location right?") from error
    except ShardCorruptError as error:
        raise ManifestError(str(error)) from error
    except ValueError as error:
        raise ManifestError(f"{where} is not JSON in UTF-8 ({error}): restore it, or write the store again") from error
    return Manifest.parse(value, where)
