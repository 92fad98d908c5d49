"""Do the objects of a store say the same? Sentences, tokens, rows, ids, ``sentence_start``, both forms, all of them.

What `verify` can't see: it compares bytes with checksums, and these are right whatever a writer wrote.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from numcodecs.vlen import VLenUTF8  # type: ignore[import-untyped]
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

from elmo_store.checking.verify import FAULTS_AT_MOST, THREADS, verify
from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.fields import TOKEN
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import PartRange
from elmo_store.forms import zarr_shard
from elmo_store.forms.zarr_form import metadata
from elmo_store.reading.sentences import read_index, read_sentence_chunks
from elmo_store.reading.store import StoreReader
from elmo_store.reading.view import View, text_of_rows
from elmo_store.storage.parquet_files import errors_name, read_footers, read_table
from elmo_store.storage.root import Root
from elmo_store.store import Store

T = TypeVar("T")
ROWS_AT_ONCE = 4096


def all_faults(store: Store) -> list[str]:
    """What `verify` finds wrong with a complete store or each member of a collection, and between its objects; one line each."""
    report = verify(store._view)
    faults = [fault.text for fault in report.faults]
    if any(
        fault.missing for fault in report.faults
    ):  # the store need not be as large as its manifest says
        return faults
    for member in store._view.opened_stores():
        faults += islice(deep_faults(member.store, THREADS), FAULTS_AT_MOST)
    return faults


def deep_faults(store: StoreReader, threads: int) -> Iterator[str]:
    """What is wrong between the objects of a complete store, one line each."""
    root, manifest = store.root, store.manifest
    yield from _guarded(lambda: _zarr_metadata_faults(root, manifest))
    with ThreadPoolExecutor(threads) as pool:
        try:
            parts = read_index(root, manifest)
        except StoreError as error:
            yield str(error)
            return

        def each(items: Iterable[T], faults_of: Callable[[T], Iterable[str]]) -> Iterator[str]:
            return itertools.chain.from_iterable(
                pool.map(lambda item: list(_guarded(lambda: faults_of(item))), items)
            )

        refused: list[int] = []
        yield from each(parts, lambda part: _part_faults(store, part, refused))
        chunks = range(-(-(manifest.sizes.sentences + 1) // manifest.sentence_chunk))
        yield from each(chunks, lambda chunk: _start_faults(store, chunk, parts))
        if sum(refused) != manifest.sizes.rejected:
            yield f"{root.url(layout.REJECTS)} holds {sum(refused)} records, the manifest says {manifest.sizes.rejected}"
        yield from each(range(manifest.sizes.shards), lambda shard: _shard_faults(store, shard))


def _guarded(faults: Callable[[], Iterable[str]]) -> Iterator[str]:
    """The faults; an object that can't be read is one of them, not an end."""
    try:
        yield from faults()
    except StoreError as error:
        yield str(error)
    except (
        ValueError,
        KeyError,
        TypeError,
        OSError,
        RecursionError,
        MemoryError,
        OverflowError,
    ) as error:
        yield f"an object can't be read: {type(error).__name__}: {error}"


def _zarr_metadata_faults(root: Root, manifest: Manifest) -> Iterator[str]:
    """Metadata of the group and of each array against what this package would write for the manifest (shapes, chunks, codecs)."""
    for rel, wanted in metadata(manifest).items():
        if not rel.endswith("zarr.json"):
            if root.get(rel) != wanted:
                yield f"{root.url(rel)} does not hold the names of the states"
            continue
        actual, expected = root.get_json(rel), json.loads(wanted)
        for name in sorted(
            {*actual, *expected} - {"attributes", "storage_transformers", "consolidated_metadata"}
        ):
            if actual.get(name) != expected.get(name):
                yield f"{root.url(rel)}: {name} is {actual.get(name)!r}, the manifest asks for {expected.get(name)!r}"
        for array, value in (actual.get("consolidated_metadata") or {}).get("metadata", {}).items():
            if value != root.get_json(f"{layout.ZARR}/{array}/zarr.json"):
                yield f"{root.url(rel)}: its copy of the metadata of {array} is not what {array}/zarr.json says"


def _part_faults(store: StoreReader, part: PartRange, refused: list[int]) -> Iterator[str]:
    """``refused`` gets the number of the part's rejects."""
    root, boundaries = store.root, store.manifest.boundaries
    rel = layout.sentences_part(part.part)
    where = root.url(rel)
    rejects = _rejects(root, part.part)
    refused.append(len(rejects))
    table = read_table(root, rel, layout.SENTENCES_SCHEMA)
    lengths = table["n_tokens"].to_numpy().astype(np.int64)
    tokens = table["tokens"].combine_chunks()
    listed = tokens.value_lengths().to_numpy(zero_copy_only=False)
    rows = np.where(lengths > 0, lengths + 2, 0) if boundaries else lengths
    if len(lengths) != part.n_sentences or int(rows.sum()) != part.n_rows:
        yield f"{where}: {len(lengths)} sentences, {int(rows.sum())} rows; its marker says {part.n_sentences}, {part.n_rows}"
        return
    numbers = np.arange(part.first_sentence, part.first_sentence + part.n_sentences)
    if not np.array_equal(table["sentence"].to_numpy(), numbers):
        yield f"{where}: its sentences are not numbered from {part.first_sentence} without gaps"
    if not np.array_equal(table["first_row"].to_numpy(), part.first_row + np.cumsum(rows) - rows):
        yield f"{where}: first_row does not follow from the token counts, from row {part.first_row} on"
    if not np.array_equal(listed, lengths):
        yield f"{where}: n_tokens is not the length of tokens everywhere"
    yield from _field_faults(store, part, where, lengths)
    yield from _id_faults(store, table["id"].to_pylist(), part, where)
    for reject in rejects:
        index = reject["sentence"] - part.first_sentence
        if not 0 <= index < len(lengths):
            yield f"{root.url(layout.rejects_part(part.part))}: sentence {reject['sentence']} is not of part {part.part}"
        elif lengths[index]:
            yield f"{root.url(layout.rejects_part(part.part))}: sentence {reject['sentence']} was refused, and has tokens"


def _field_faults(
    store: StoreReader, part: PartRange, where: str, lengths: npt.NDArray[np.int64]
) -> Iterator[str]:
    """The columns of a part must be those of all; a field of tokens has a value for each, or is null."""
    columns = read_footers(store.root, [layout.sentences_part(part.part)])[
        0
    ].schema.to_arrow_schema()
    if columns.names != store.schema.names:
        expected = ", ".join(store.schema.names)
        yield f"{where}: its columns are {', '.join(columns.names)}; of the first part they are {expected}"
        return
    names = [field.name for field in store.manifest.fields if field.per == TOKEN]
    numbers = range(part.first_sentence, part.first_sentence + part.n_sentences)
    table = store.table(numbers, names)
    for name in names if part.n_sentences else ():
        listed = table[name].combine_chunks()
        if (np.array(listed.fill_null([]).value_lengths()) != lengths)[
            np.array(listed.is_valid())
        ].any():
            yield f"{where}: {name} has not a value for each token everywhere"


def _id_faults(store: StoreReader, ids: list[str], part: PartRange, where: str) -> Iterator[str]:
    """Each id must lead to its sentence, or to an earlier one of the same id."""
    other = []
    for number, (sentence_id, hits) in enumerate(
        zip(ids, View.of_store(store).find_ids(ids), strict=True), part.first_sentence
    ):
        if not hits:
            yield f"{where}: sentence {number} has the id {sentence_id!r}, which leads to none"
        elif hits[0] != number:
            other.append((sentence_id, number, hits[0]))
    earlier = store.records([hit for _, _, hit in other])
    for (sentence_id, number, hit), record in zip(other, earlier, strict=True):
        if hit > number or record.id != sentence_id:
            yield f"{where}: sentence {number} has the id {sentence_id!r}, which leads to sentence {hit}"


def _rejects(root: Root, part: int) -> list[dict[str, Any]]:
    try:
        data = root.get(layout.rejects_part(part))
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in BytesIO(data)]


def _start_faults(store: StoreReader, chunk: int, parts: list[PartRange]) -> Iterator[str]:
    """A chunk of sentence_start against the sentences themselves."""
    m = store.manifest
    (entries,) = read_sentence_chunks(store.root, m, [chunk])
    first = chunk * m.sentence_chunk
    stop = min(first + m.sentence_chunk, m.sizes.sentences + 1)
    numbers = range(first, min(stop, m.sizes.sentences))
    wanted = [record.first_row for record in store.records(numbers)]
    if stop == m.sizes.sentences + 1:
        wanted.append(m.sizes.rows)
    where = store.root.url(layout.zarr_sentence_chunk(chunk))
    if entries[: stop - first].tolist() != wanted:
        yield f"{where} does not say where its sentences begin"
    if entries[stop - first :].any():
        yield f"{where} is not filled up with zeros"


def _shard_faults(store: StoreReader, shard: int) -> Iterator[str]:
    """Tokens of the rows against the sentences; vectors that can be decoded; both forms against each other."""
    m = store.manifest
    first, stop = m.shard_range(shard)
    readers = {form: StoreReader(store.root, m, form) for form in m.forms}
    states = range(len(m.states))
    own_tokens: list[str] = []
    if "zarr" in readers:
        yield from _index_faults(store, shard)
        own_tokens = (
            VLenUTF8()
            .decode(Zstd().decode(store.root.get(layout.zarr_token_chunk(shard))))
            .tolist()[: stop - first]
        )
    for lo in range(first, stop, ROWS_AT_ONCE):
        hi = min(lo + ROWS_AT_ONCE, stop)
        tokens, sentence, index = text_of_rows(View.of_store(store), lo, hi)
        columns: dict[str, Any] = {
            "row": np.arange(lo, hi),
            "sentence": sentence,
            "index_in_sentence": index,
        }
        stored_tokens = {}
        if "zarr" in readers:
            stored_tokens["zarr"] = own_tokens[lo - first : hi - first]
        if "parquet" in readers:
            stored = pq.read_table(
                BytesIO(store.root.get(layout.states_part(shard))), columns=["token", *columns]
            )
            stored = stored.slice(lo - first, hi - lo)
            stored_tokens["parquet"] = stored["token"].to_pylist()
            for name, wanted in columns.items():
                if not np.array_equal(stored[name].to_numpy(), wanted):
                    yield f"{store.root.url(layout.states_part(shard))}: column {name} is not what the sentences say"
        blocks: dict[str, tuple[Any, ...]] = {}  # the arrays that each form has for the rows
        for form, reader in readers.items():
            if stored_tokens[form] != tokens:
                yield f"{store.url}: the tokens of rows {lo} … {hi} in the {form} form are not those of their sentences"
            rows = View.of_store(reader).read_span(states, lo, hi, raw=m.is_int8)
            blocks[form] = tuple(rows) if m.is_int8 else (rows,)
            if m.is_int8 and not (np.isfinite(scale := blocks[form][1]) & (scale >= 0)).all():
                yield f"{store.url}: a scale of rows {lo} … {hi} in the {form} form is negative or no finite number"
        if len(blocks) == 2 and any(
            a.tobytes() != b.tobytes() for a, b in zip(*blocks.values(), strict=True)
        ):
            yield f"{store.url}: rows {lo} … {hi} are not the same in both forms"


def _index_faults(store: StoreReader, shard: int) -> Iterator[str]:
    """The indexes of a shard's objects of the Zarr form, which Zarr libraries go by."""
    m, root = store.manifest, store.root
    first, stop = m.shard_range(shard)
    n_chunks, used = m.shard_rows // m.chunk_rows, -(-(stop - first) // m.chunk_rows)
    width = m.channels * layout.NUMBER_BYTES[m.dtype]
    objects = [(layout.zarr_states_shard(shard), len(m.states), width)]
    objects += (
        [(layout.zarr_scale_shard(shard), 1, len(m.states) * layout.SCALE_BYTES)]
        if m.is_int8
        else []
    )
    for rel, n_parts, part_bytes in objects:
        with errors_name(root, rel, (ValueError,)):
            tail = root.get_tails({rel: zarr_shard.index_bytes(n_chunks, n_parts)})[rel]
            entries = zarr_shard.parse_index(tail, n_chunks, n_parts, used)
        if m.compression == m.checksum == "none":
            offsets = np.arange(n_parts * used).reshape(n_parts, used).T * m.chunk_rows * part_bytes
            if (entries[..., 1] != m.chunk_rows * part_bytes).any() or (
                entries[..., 0] != offsets
            ).any():
                yield f"{root.url(rel)}: its index does not name the inner chunks one part after the other, from byte 0 on"
