"""The one way to write a store: functions over a task, the source, the target and its manifest.

A task is a shard, a group of parts, or a run of id tables. Its function puts the task's objects, then the marker that names them,
so that doing it twice writes the same bytes twice. Workers of a job (`transforms.stages`) call these functions, and so does the
loop of `write_store`, in this process: for a view (`Store.select`, `Store.slice`) and for a member that is compacted.
`complete_store` is the last step of all of them: the table of parts, consolidated metadata, checksums, the complete manifest.

`write_store` writes to a root that confirms the lease before each change (`LeaseHolder.writable`). A process can still be
suspended between that look and its put, so a late put must do no harm. The manifest is created first, and says which bytes the
store will have: whoever goes on after this run writes the same store, or is refused. What has a marker is created and not
written over, so a late put of it changes nothing, whatever versions of libraries wrote it.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo_store.errors import ShardMissingError, StoreError, StoreNotFoundError
from elmo_store.format import ids, layout
from elmo_store.format.manifest import (
    Checksums,
    Counts,
    InputInfo,
    Manifest,
    encode_inputs,
    read_inputs,
    read_manifest,
    write_manifest,
)
from elmo_store.format.markers import (
    IdsMarker,
    M,
    ObjectRecord,
    PartGroupMarker,
    PartRange,
    ShardMarker,
    Stats,
    checksum,
    finished,
    put_objects,
    write_marker,
)
from elmo_store.format.numbers import Array, Int8Rows
from elmo_store.format.texts import hash_texts
from elmo_store.forms import shards as forms
from elmo_store.forms import zarr_form
from elmo_store.mixing.scalar_mix import mix_rows
from elmo_store.reading.sentence import read_rows
from elmo_store.reading.sentences import encode_index, encode_part, index_fault
from elmo_store.reading.view import StoreInView, View, text_of_rows
from elmo_store.storage.lease import LEASES, LeaseHolder
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import check_apart
from elmo_store.storage.root import Root

Int64 = npt.NDArray[np.int64]
PART_SENTENCES = 16_384  # of a part that `write_view` writes


def complete_store(
    root: Root,
    manifest: Manifest,
    shards_checksum: str,
    part_groups: Sequence[PartGroupMarker],
    id_tables: Sequence[IdsMarker],
) -> Manifest:
    """Write what a complete store has and an unfinished one has not; returns the manifest that stands there now.

    Markers come in order, and every object that they name is there; ``shards_checksum``: `checksum` of those of all shards.
    StoreError: the parts don't follow each other.
    """
    parts = [part for group in part_groups for part in group.parts]
    fault = index_fault(parts)
    if fault:
        raise StoreError(f"{root}: {fault}: run the job again with `overwrite=True`")
    sizes = {record.path: record.bytes for group in part_groups for record in group.objects}
    of_parts = [
        (sizes[layout.sentences_part(p.part)], sizes.get(layout.rejects_part(p.part), 0))
        for p in parts
    ]
    root.put(layout.SENTENCE_INDEX, encode_index(parts, of_parts))
    zarr_form.consolidate(root, manifest)
    complete = replace(
        manifest,
        complete=True,
        objects=tuple(ObjectRecord.of(rel, root.get(rel)) for rel in single_objects(manifest)),
        checksums=Checksums(shards_checksum, checksum(part_groups), checksum(id_tables)),
    )
    root.flush()  # `complete: true` promises all that was written before
    write_manifest(root, complete)
    root.flush()
    return complete


def single_objects(manifest: Manifest) -> list[str]:
    """Paths of the objects that no marker names, whose hashes stand in the manifest."""
    metadata = [
        f"{layout.ZARR}/zarr.json",
        *(f"{layout.ZARR}/{name}/zarr.json" for name in zarr_form.arrays(manifest)),
    ]
    state = [f"{layout.ZARR}/state/c/0"] if "zarr" in manifest.forms else []
    return [layout.START_STATE, layout.INPUTS, layout.SENTENCE_INDEX, *metadata, *state]


@dataclass(frozen=True)
class ViewSettings:
    """Settings of a store that a view is written to; those that are None are of the store that the view is of."""

    shard_rows: int | None = None  # rows of a shard
    dtype: str | None = None  # "float16", "float32" or "int8"
    store_forms: Sequence[str] | None = None  # "zarr", "parquet" or both
    compression: str | None = None  # of the Zarr form's inner chunks
    inner_checksum: str | None = None  # of the Zarr form's inner chunks

    def __post_init__(self) -> None:
        """ValueError for a value that no store has."""
        known = {
            "dtype": layout.DTYPES,
            "compression": layout.COMPRESSIONS,
            "inner_checksum": layout.CHECKSUMS,
        }
        for name, values in known.items():
            if (value := getattr(self, name)) not in (None, *values):
                raise ValueError(f"{name} is {value!r}: known are {', '.join(values)}")
        if self.store_forms is not None and (
            not self.store_forms or not set(self.store_forms) <= set(layout.FORMS)
        ):
            raise ValueError(
                f"store_forms is {self.store_forms!r}: give a list of one or both of {', '.join(layout.FORMS)}"
            )


def write_view(
    view: View,
    url: str | os.PathLike[str],
    settings: ViewSettings,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Root, Manifest]:
    """Write what a view holds as a complete store, in this process.

    Rejects are not copied: the sentences of rejected records stay, without tokens. What an
    interrupted call with the same view and settings wrote is kept, if it is as its markers say.

    Args:
        view: what is written.
        url: where to.
        settings: of the new store.
        storage_options: what the URL's filesystem takes.

    Returns:
        The new store's root and manifest.

    Raises:
        StoreError: something else is at ``url``.
        LeaseHeldError: another run writes there.
        OverlapError: it overlaps a store that the view reads.
    """
    check_apart(Location("output", os.fspath(url), storage_options), view.locations())
    root = Root(url, storage_options)
    manifest = _manifest_of(view, settings)
    _is_interrupted(root, manifest)
    with LeaseHolder.take(root, uuid.uuid4().hex) as holder:
        resumed = _is_interrupted(root, manifest)  # another one may have written since
        return root, write_store(holder.writable(), manifest, view, resumed=resumed)


def write_store(
    root: Root,
    manifest: Manifest,
    view: View,
    rejects_of: Callable[[range], Sequence[Mapping[str, Any]]] = lambda numbers: (),
    *,
    resumed: bool = False,
) -> Manifest:
    """Write the complete store that ``manifest`` begins; returns its manifest.

    Args:
        root: where to, owned by the run that holds the lease.
        manifest: the incomplete manifest.
        view: what is written.
        rejects_of: sentences → their refused records.
        resumed: an interrupted run has put this manifest; what it finished is kept.
    """
    if not resumed:
        write_manifest(root, manifest, create=True)
    start_state = view.opened_stores()[0].store.root.get(layout.START_STATE)
    root.create(layout.START_STATE, start_state)
    root.create(layout.INPUTS, encode_inputs(inputs_of(view)))
    for rel, data in zarr_form.metadata(manifest).items():
        root.create(rel, data)

    def done(kind: type[M], number: int) -> M | None:
        return finished(root, kind, number) if resumed else None

    tables = done(IdsMarker, 0) or write_ids(root, view, create=True)
    more = more_columns(view)
    parts = [
        done(PartGroupMarker, group)
        or write_part_group(root, manifest, view, group, more, rejects_of, create=True)
        for group in range(n_part_groups(manifest))
    ]

    def shard_marker(shard: int) -> ShardMarker:
        if marker := done(ShardMarker, shard):
            return marker
        text, rows = row_text(view, manifest, shard), stored_rows(view, manifest, shard)
        return write_shard(root, manifest, text, rows, create=True)

    shards = checksum(map(shard_marker, range(manifest.sizes.shards)))
    return complete_store(root, manifest, shards, parts, [tables])


def begun(like: Manifest, counts: Counts, **changes: Any) -> Manifest:
    """The manifest of a store that is to be written with the rows of one as ``like``; parts and shards are counted."""
    shard_rows = changes.get("shard_rows", like.shard_rows)
    sizes = {
        "parts": -(-counts.sentences // PART_SENTENCES),
        "shards": layout.n_shards(counts.rows, shard_rows),
    }
    return replace(
        like,
        complete=False,
        objects=(),
        checksums=None,
        chunk_rows=layout.chunk_rows(shard_rows),
        sentence_chunk=layout.SENTENCE_CHUNK,
        counts=replace(counts, **sizes),
        **changes,
    )


def inputs_of(view: View) -> list[dict[str, Any]]:
    """Return the input files that the stores of a view came from, those of each store once."""
    roots = {member.store.url: member.store.root for member in view.opened_stores()}
    return [file for root in roots.values() for file in read_inputs(root)]


def more_columns(view: View) -> list[str]:
    """Return the columns of the sentence table beside those that every store has."""
    return [name for name in view.columns if name not in layout.SENTENCES_SCHEMA.names]


def _is_interrupted(root: Root, manifest: Manifest) -> bool:
    """Return True if an interrupted call began the store of ``manifest`` at ``root``, False if nothing is there.

    Raises:
        StoreError: something else is there.
    """
    try:
        existing = read_manifest(root)
    except StoreNotFoundError:
        if any(not rel.startswith(f"{LEASES}/") for rel in root.list()):
            raise StoreError(f"{root} is not empty: give another folder") from None
        return False
    if existing.complete:
        raise StoreError(f"{root} is not empty: give another folder")
    there, wanted = existing.to_json(), manifest.to_json()
    different = [name for name in wanted if name != "sha256" and there.get(name) != wanted[name]]
    if different:
        raise StoreError(
            f"{root} is not empty: it holds an unfinished store that differs from what this call writes "
            f"({', '.join(different)}): give another folder"
        )
    return True


def _manifest_of(view: View, settings: ViewSettings) -> Manifest:
    """Return the manifest of what `write_view` writes, incomplete."""
    asked = {
        "shard_rows": settings.shard_rows,
        "dtype": settings.dtype,
        "forms": None if settings.store_forms is None else tuple(settings.store_forms),
        "compression": settings.compression,
        "checksum": settings.inner_checksum,
    }
    changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    counts = Counts(view.n_sentences, view.n_tokens, view.n_rows, 0, 0, 0, 0)
    # The fingerprint is of the stores' contents too: vectors that were computed elsewhere may
    # differ in their last bits.
    selected_from = view.stores[0].manifest.input.fingerprint
    job = {"selected_from": selected_from, "input": view.fingerprint}
    inputs = InputInfo(view.fingerprint, len(inputs_of(view)))
    return begun(view.manifest, counts, input=inputs, job=job, **changes)


def n_part_groups(manifest: Manifest) -> int:
    """Groups of a store that is written from a view: one a part, and one without a part where there is no sentence."""
    return max(1, manifest.sizes.parts)


def write_part_group(
    root: Root,
    manifest: Manifest,
    view: View,
    group: int,
    more: Sequence[str],
    rejects_of: Callable[[range], Sequence[Mapping[str, Any]]] = lambda numbers: (),
    plan: str = "",
    *,
    create: bool = False,
) -> PartGroupMarker:
    """Write a part of the view's sentences, the chunks of ``sentence_start`` that begin in it, and their marker.

    ``more``: see `more_columns`; ``rejects_of`` sentences: their refused records. Parts are of as many chunks, all but the last.
    ``create``: as of `put_objects`.
    """
    last, size = group == n_part_groups(manifest) - 1, manifest.sentence_chunk
    numbers = range(group * PART_SENTENCES, min((group + 1) * PART_SENTENCES, view.n_sentences))
    spans = view.spans(numbers)
    entries = np.append(spans[:, 0], [view.n_rows] * last)
    chunks = range(numbers.start // size, -(-(numbers.start + len(entries)) // size))
    objects: list[tuple[str, bytes | bytearray]] = []
    parts = []
    if len(numbers):
        first, rows = int(spans[0, 0]), int(spans[-1, 1] - spans[0, 0])
        parts.append(PartRange(group, numbers.start, len(numbers), first, rows))
        objects.append((layout.sentences_part(group), encode_part(_sentences(view, numbers, more))))
        if refused := "".join(
            json.dumps(reject, ensure_ascii=False) + "\n" for reject in rejects_of(numbers)
        ):
            objects.append((layout.rejects_part(group), refused.encode()))
    for chunk in chunks:
        start = chunk * size - numbers.start
        objects.append(
            zarr_form.encode_sentence_chunk(manifest, chunk, entries[start : start + size])
        )
    records, stamps = put_objects(root, objects, create=create)
    marker = PartGroupMarker(group, tuple(parts), records, plan, stamps)
    return write_marker(root, marker, create=create)


def _sentences(view: View, numbers: range, more: Sequence[str]) -> pa.Table:
    table = view.table(numbers, [*layout.SENTENCES_SCHEMA.names, *more]).combine_chunks()
    return table.cast(pa.schema([*layout.SENTENCES_SCHEMA, *(table.field(name) for name in more)]))


def write_ids(root: Root, view: View, *, create: bool = False) -> IdsMarker:
    """Write all tables of the ids and texts of the view's sentences, and their marker. ``create``: as of `put_objects`."""
    bits, numbers = layout.id_bits(view.n_sentences), np.arange(view.n_sentences, dtype=np.int64)
    blocks = (
        range(first, min(first + PART_SENTENCES, view.n_sentences))
        for first in range(0, view.n_sentences, PART_SENTENCES)
    )
    of_ids, of_texts = [ids.hashes([])], [hash_texts([], None)]
    for names, texts in map(view.texts, blocks):
        of_ids.append(ids.hashes(names))
        of_texts.append(hash_texts(texts, view.cut_bytes))
    keys = [(np.concatenate(pairs), numbers) for pairs in (of_ids, of_texts)]
    tables = ids.encode_lookups(keys, bits, range(1 << bits))
    records, stamps = put_objects(root, tables, create=create)
    return write_marker(root, IdsMarker(0, 0, 1 << bits, records, stats=stamps), create=create)


def write_kept_ids(
    root: Root, view: View, run: int, tables: range, bits: int, plan: str
) -> IdsMarker:
    """Write some of the id and text tables of a view, from the tables of its stores.

    Args:
        root: where to.
        view: whose sentences they are.
        run: the number of their marker.
        tables: which of the 2^``bits`` tables.
        bits: see `layout.id_bits`.
        plan: the id of the plan that they depend on.
    """
    members = view.opened_stores()
    kept = (
        _kept_keys(members, tables, bits, path_of)
        for path_of in (layout.id_table, layout.text_table)
    )
    records, stamps = put_objects(root, ids.encode_lookups(kept, bits, tables))
    return write_marker(root, IdsMarker(run, tables.start, len(tables), records, plan, stamps))


def _kept_keys(
    members: Sequence[StoreInView], tables: range, bits: int, path_of: Callable[[int], str]
) -> ids.Keys:
    """Return the hashes [n, 2] of these tables, and the numbers [n] of their sentences in a view."""
    keys = [_kept_of_store(member, tables, bits, path_of) for member in members]
    pairs, numbers = (np.concatenate(column) for column in zip(*keys, strict=True))
    return pairs, numbers


def _kept_of_store(
    member: StoreInView, tables: range, bits: int, path_of: Callable[[int], str]
) -> ids.Keys:
    """Return `_kept_keys` of one store, whose own tables are finer or coarser."""
    n_sentences = member.store.n_sentences
    reader = ids.HashTables(member.store.root, n_sentences, path_of)
    finer = layout.id_bits(n_sentences) - bits
    if finer >= 0:
        own_tables = range(tables.start << finer, tables.stop << finer)
    else:
        own_tables = range(tables.start >> -finer, ((tables.stop - 1) >> -finer) + 1)
    high, low, sentences = (
        np.concatenate(column) for column in zip(*map(reader.read, own_tables), strict=True)
    )
    found, numbers = member.occurrences(sentences)
    table_of = ids.tables_of(high[found], bits)
    kept = (table_of >= tables.start) & (table_of < tables.stop)
    pairs = np.stack([high, low], axis=1)[found]
    return pairs[kept], numbers[kept]


def copy_marked(
    marker: PartGroupMarker | IdsMarker | None, source: Root, target: Root, plan: str
) -> None:
    """Copy every object that a marker of a store names, then the marker, as of another ``plan``.

    ShardMissingError if there is no marker; ValueError if an object is not what the marker says.
    """
    if marker is None:
        raise ShardMissingError(
            f"{source} lacks the marker of some of its parts or ids: the source is damaged, verify it"
        )

    def objects() -> Iterator[tuple[str, bytes]]:
        for record in marker.objects:
            data = source.get(record.path)
            if ObjectRecord.of(record.path, data) != record:
                raise ValueError(
                    f"{source.url(record.path)} is not what its marker says: the source is damaged, verify it"
                )
            yield record.path, data

    _, stamps = put_objects(target, objects())
    write_marker(target, replace(marker, plan=plan, stats=stamps))


@dataclass(frozen=True)
class RowText:
    """What a store says about each row of a shard."""

    shard: int  # its number
    tokens: Sequence[str]  # [n_rows]
    sentence: Int64  # [n_rows], the number of each row's sentence in the store
    index: npt.NDArray[np.int32]  # [n_rows], each row's place in its sentence

    def n_tokens(self, boundaries: bool) -> int:
        """Rows that are tokens; ``boundaries``: BOS and EOS are rows, and those of a sentence are counted where it begins."""
        return len(self.index) - 2 * boundaries * int((self.index == 0).sum())


def row_text(view: View, manifest: Manifest, shard: int) -> RowText:
    """What a store of the view's rows says about those of a shard."""
    return RowText(shard, *text_of_rows(view, *manifest.shard_range(shard)))


def stored_rows(view: View, manifest: Manifest, shard: int) -> Array | Int8Rows:
    """The rows of a shard as its store holds them: mixed, if that holds mixes of the view's states.

    What is int8 in both stays so, bit by bit. ValueError for a number that float16 can't hold (it ends at 65,504).
    """
    rows, mix = slice(*manifest.shard_range(shard)), manifest.mix
    if (
        mix is not None and view.channels != manifest.channels
    ):  # a mix has twice the channels of a state
        dtype = (
            "float32" if manifest.is_int8 else manifest.dtype
        )  # what is quantised is mixed in float32
        return mix_rows(
            read_rows(view, rows=rows), mix.weight_sets, layer_norm=mix.layer_norm, dtype=dtype
        )
    if manifest.is_int8:
        return (
            read_rows(view, manifest.states, rows, raw=True)
            if view.is_int8
            else read_rows(view, manifest.states, rows)
        )
    rows_read = read_rows(view, manifest.states, rows)
    with np.errstate(over="ignore"):  # reported below, with its place
        numbers = rows_read.astype(manifest.dtype, copy=False)
    if (
        manifest.dtype == "float16"
        and not np.isfinite(numbers).all()
        and np.isfinite(rows_read).all()
    ):
        row = rows.start + int(np.argwhere(~np.isfinite(numbers))[0, 0])
        raise ValueError(
            f"row {row} of {view.url} holds a number that float16 can't hold: keep float32, or take int8"
        )
    return numbers


def write_shard(
    root: Root,
    manifest: Manifest,
    text: RowText,
    states: Array | Int8Rows,
    plan: str = "",
    stats: Stats | None = None,
    *,
    create: bool = False,
) -> ShardMarker:
    """Put ``states`` [n_rows, n_states, p] of a shard in every form of the store (see `forms.encode_shard`), then its marker.

    ``plan``: the id of the plan that the shard follows from. ``stats``: of a run whose progress is watched, to which the seconds
    of encoding and putting are added, and when it was done (Unix seconds). ``create``: as of `put_objects`.
    """
    began = time.perf_counter()
    objects = forms.encode_shard(
        manifest, text.shard, states, text.tokens, text.sentence, text.index
    )
    records, stamps = put_objects(root, objects, create=create)
    if stats is not None:
        stats = {**stats, "seconds_writing": time.perf_counter() - began, "finished": time.time()}
    first, stop = manifest.shard_range(text.shard)
    marker = ShardMarker(
        text.shard, first, stop - first, records, plan, {**(stats or {}), **stamps}
    )
    return write_marker(root, marker, create=create)
