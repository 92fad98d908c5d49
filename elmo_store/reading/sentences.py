"""What each row of a store is: its sentences, by number and by id, read as they are needed.

Opening costs nothing; the rows of a sentence cost a chunk of ``sentence_start``, its tokens the table of parts, a footer and a
row group. No part is decoded whole for one sentence. Safe for threads; not across a fork (`Store` makes a new one there).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.errors import SentenceNotFoundError, ShardCorruptError, ShardMissingError, StoreError
from elmo_store.format import layout
from elmo_store.format.fields import sentences_schema
from elmo_store.format.ids import HashTables, hashes
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import PartRange, marked, read_part_group_marker
from elmo_store.forms.zarr_form import read_sentence_chunks
from elmo_store.storage.parquet_files import GroupsOf, encoded_table, read_footers, read_table, read_tables, schema_problem
from elmo_store.storage.recent import Recent
from elmo_store.storage.root import Root

Int64 = npt.NDArray[np.int64]
CHUNKS_AT_HAND = 4096  # of sentence_start, 8 KB each
FEW = 128  # sentences
FOOTERS_AT_HAND = 256
GROUPS_AT_HAND = 64  # row groups of 1,024 sentences
GROUPS_AT_ONCE = 16  # that a scan of tokens reads


class SentenceRecord(msgspec.Struct, frozen=True):
    """One sentence: number in the store, id, where it came from, its rows, its tokens (without boundary rows).

    A struct, since it is made in a fifth of a dataclass's time.
    """

    index: int
    id: str
    source: str
    position: int
    first_row: int
    n_rows: int
    tokens: tuple[str, ...]
    line: str = ""  # as it stood in its file; "" where that was not kept

    @property
    def text(self) -> str:
        """Its line without the white space around it, as programs that read lines name it; otherwise its tokens with spaces."""
        return (self.line.strip() or " ".join(self.tokens)) if self.tokens else ""


@dataclass(frozen=True)
class _Footer:
    """A part's footer, and how many of its sentences stand before each row group (and at last, all): [groups + 1]."""

    metadata: pq.FileMetaData
    before: Int64
    columns: tuple[str, ...]  # that a record is made of
    schema: pa.Schema


def encode_part(table: pa.Table) -> bytes:
    """A part as the bytes of one Parquet file of `layout.SENTENCES_SCHEMA`, the same for the same table."""
    return encoded_table(
        table,
        row_group_size=layout.ROW_GROUP_SENTENCES,
        use_dictionary=["source", "tokens.list.element", *_repeated(table.schema)],
        write_statistics=["sentence", "first_row"],
    )


def _repeated(schema: pa.Schema) -> list[str]:
    """Columns beside those of every part whose strings are likely to come again; not those inside objects."""
    more = [field for field in schema if field.name not in (*layout.SENTENCES_SCHEMA.names, layout.TEXT.name)]
    lists = [f"{field.name}.list.element" for field in more if field.type == layout.STRINGS]
    return [field.name for field in more if pa.types.is_string(field.type)] + lists


def encode_index(parts: Sequence[PartRange], sizes: Sequence[tuple[int, int]]) -> bytes:
    """The table of parts; ``sizes``: bytes of each part's file, and of its rejects (0 without any)."""
    columns: dict[str, list[int]] = {name: [getattr(part, name) for part in parts] for name in PartRange.__dataclass_fields__}
    columns |= {"bytes": [part for part, _ in sizes], "rejects_bytes": [rejects for _, rejects in sizes]}
    return encoded_table(pa.table(columns, schema=layout.INDEX_SCHEMA))


def read_index(root: Root, manifest: Manifest) -> list[PartRange]:
    """The parts of a complete store, in order. ShardCorruptError unless they follow each other, up to the manifest's counts."""
    table = read_table(root, layout.SENTENCE_INDEX, layout.INDEX_SCHEMA)
    parts = [PartRange(*row.values()) for row in table.select(list(PartRange.__dataclass_fields__)).to_pylist()]
    counts = manifest.sizes
    fault = index_fault(parts)
    last = parts[-1] if parts else PartRange(-1, 0, 0, 0, 0)
    ends = (len(parts), last.first_sentence + last.n_sentences, last.first_row + last.n_rows)
    if fault or ends != (counts.parts, counts.sentences, counts.rows):
        raise ShardCorruptError(
            f"{root.url(layout.SENTENCE_INDEX)} names {ends[0]} parts of {ends[1]} sentences and {ends[2]} rows, the "
            f"manifest {counts.parts}, {counts.sentences} and {counts.rows}{'; ' + fault if fault else ''}: restore it"
        )
    return parts


def index_fault(parts: Sequence[PartRange]) -> str | None:
    """What is wrong with a table of parts that begins with part 0; None if each follows from the one before."""
    sentence = row = 0
    for number, part in enumerate(parts):
        if (part.part, part.first_sentence, part.first_row) != (number, sentence, row):
            return f"part {number} does not follow from the parts before it"
        sentence, row = sentence + part.n_sentences, row + part.n_rows
    return None


def renumbered(table: pa.Table, numbers: Mapping[str, Any]) -> pa.Table:
    """``table`` with other numbers in those of these columns that it has."""
    for index, name in enumerate(table.column_names):
        if name in numbers:
            table = table.set_column(index, table.field(index), [pa.array(numbers[name], pa.int64())])
    return table


class SentenceTable:
    """The sentences of a store."""

    def __init__(self, root: Root, manifest: Manifest, n_stores: int = 1) -> None:
        """``n_stores``: that these are the sentences of, each with parts of its own."""
        self._root, self._manifest = root, manifest
        self._n_sentences, self._n_rows = manifest.sizes.sentences, manifest.sizes.rows
        self._chunks: Recent[int, Int64] = Recent(CHUNKS_AT_HAND)
        self._footers: Recent[int, _Footer] = Recent(FOOTERS_AT_HAND + n_stores)
        self._groups: Recent[tuple[int, int], dict[str, Any]] = Recent(GROUPS_AT_HAND + n_stores)
        self._columns: Recent[tuple[int, int, tuple[str, ...]], pa.Table] = Recent(GROUPS_AT_HAND + n_stores)
        self._ids = HashTables(root, self._n_sentences)
        self._lock = Lock()
        self._parts: tuple[list[PartRange], Int64, Int64] | None = None

    def span(self, number: int) -> tuple[int, int]:
        """First row and the row after the last of one sentence: the quickest way to them."""
        size = self._manifest.sentence_chunk
        chunk, index = divmod(number, size)
        if 0 <= number < self._n_sentences and index + 1 < size:
            starts = self._chunks.get(chunk, self._read_chunks)
            first, stop = int(starts[index]), int(starts[index + 1])
            if 0 <= first <= stop <= self._n_rows:
                return first, stop
        first, stop = self.rows([number])[0].tolist()
        return first, stop

    def rows(self, numbers: Sequence[int] | Int64) -> Int64:
        """First row and the row after the last of each sentence: [n, 2]."""
        wanted, size = self._checked(numbers), self._manifest.sentence_chunk
        edges: Int64 = wanted[:, None] + np.arange(2)  # [n, 2]
        if isinstance(numbers, range) and numbers and numbers.step == 1:  # neighbours: one table of starts
            low = numbers.start // size
            starts = self._chunks.get_all(range(low, numbers.stop // size + 1), self._read_chunks)
            spans: Int64 = (np.concatenate(starts) if len(starts) > 1 else starts[0])[edges - low * size]
        elif len(wanted) > FEW:
            holding, inside = np.divmod(edges, size)
            held, which = np.unique(holding, return_inverse=True)
            starts = self._chunks.get_all(held.tolist(), self._read_chunks)
            spans = np.concatenate(starts)[which.reshape(-1, 2) * size + inside]
        else:  # sooner than with arrays of whole chunks
            chunks, indices = (part.tolist() for part in np.divmod(edges.reshape(-1), size))
            needed = list(dict.fromkeys(chunks))
            table = dict(zip(needed, self._chunks.get_all(needed, self._read_chunks), strict=True))
            rows = [table[chunk][index] for chunk, index in zip(chunks, indices, strict=True)]
            spans = np.array(rows, np.int64).reshape(-1, 2)
        wrong = (spans[:, 0] < 0) | (spans[:, 0] > spans[:, 1]) | (spans[:, 1] > self._n_rows)
        if wrong.any():
            number, (first, stop) = int(wanted[wrong][0]), spans[wrong][0].tolist()
            where = self._root.url(layout.zarr_sentence_chunk(number // size))
            raise ShardCorruptError(f"{where}: sentence {number} has rows {first} … {stop}, which can't be: restore it")
        return spans

    def _checked(self, numbers: Sequence[int] | Int64) -> Int64:
        """The numbers as an array. SentenceNotFoundError unless each is a sentence's."""
        if isinstance(numbers, range):  # sooner than number by number
            wanted = np.arange(numbers.start, numbers.stop, numbers.step)
        else:
            wanted = np.asarray(numbers)  # of Python's numbers, if one is too large for 64 bits
        outside = wanted[(wanted < 0) | (wanted >= self._n_sentences)]
        if len(outside):
            raise SentenceNotFoundError(f"no sentence {outside[0]} in {self._root}: it has {self._n_sentences}, counted from 0")
        return wanted.astype(np.int64, copy=False)

    def find(self, ids: Sequence[str]) -> list[list[int]]:
        """The numbers of all sentences that have each id, in order."""
        try:
            return self._ids.find_all(hashes(ids))
        except ShardMissingError as error:
            if self._manifest.complete:
                raise
            raise ShardMissingError(f"{self._root}: ids are found when the job is complete; read by number until then") from error

    def records(self, numbers: Sequence[int]) -> list[SentenceRecord]:
        """Everything about these sentences, in the order of ``numbers``."""
        wanted = self._checked(numbers)
        if not len(wanted):
            return []
        footers, keys, indices = self._located(wanted)
        tables = self._groups.get_all(keys, lambda missing: self._read_groups(missing, footers))
        return list(map(self._record, wanted.tolist(), tables, indices))

    def columns(self, numbers: Sequence[int], names: Sequence[str]) -> pa.Table:
        """These columns of these sentences, in the order of ``numbers``. StoreError, naming those there are, for another one."""
        wanted = self._checked(numbers)
        schema = self.schema
        if unknown := [name for name in names if name not in schema.names]:
            raise StoreError(f"{self._root} has no column {unknown[0]!r} of sentences: it has {', '.join(schema.names)}")
        if not len(wanted):
            return pa.schema([schema.field(name) for name in names]).empty_table()
        footers, keys, indices = self._located(wanted)
        different = list(dict.fromkeys(keys))
        tables = self._columns.get_all(
            [(*key, tuple(names)) for key in different], lambda missing: self._read_columns(missing, footers)
        )
        starts = dict(zip(different, np.cumsum([0, *map(len, tables[:-1])]).tolist(), strict=True))
        taken = [starts[key] + index for key, index in zip(keys, indices, strict=True)]
        table = pa.concat_tables(tables)
        return table if taken == list(range(len(table))) else table.take(taken)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the table of sentences."""
        if not self._index()[0]:
            return sentences_schema(self._manifest.fields)
        return self._footers.get_all([0], self._read_footers)[0].schema

    def _located(self, wanted: Int64) -> tuple[dict[int, _Footer], list[tuple[int, int]], list[int]]:
        """Footers of the parts that hold the sentences; of each sentence part and row group, and its place in this."""
        _, firsts, stops = self._index()
        holding = np.searchsorted(firsts[1:], wanted, "right")
        local = wanted - firsts[holding]
        unwritten = (local < 0) | (wanted >= stops[holding])
        if unwritten.any():
            number = wanted[unwritten][0]
            raise ShardMissingError(f"{self._root}: sentence {number} is not written yet: run the job again to continue it")
        footers = self._footers.get_all(holding.tolist(), self._read_footers)
        groups = [int(np.searchsorted(f.before, at, "right")) - 1 for f, at in zip(footers, local, strict=True)]
        indices = [int(at - f.before[group]) for f, at, group in zip(footers, local, groups, strict=True)]
        keys = list(zip(holding.tolist(), groups, strict=True))
        return dict(zip(holding.tolist(), footers, strict=True)), keys, indices

    def token_lists(self) -> Iterator[tuple[int, pa.ListArray]]:
        """Number of a first sentence, and the tokens of it and of those after it; all sentences, in order."""
        for held, part in enumerate(self._index()[0]):
            footer = self._read_footers([held])[0]
            for group in range(0, footer.metadata.num_row_groups, GROUPS_AT_ONCE):
                groups = tuple(range(group, min(group + GROUPS_AT_ONCE, footer.metadata.num_row_groups)))
                request = GroupsOf(layout.sentences_part(part.part), footer.metadata, groups, ("tokens",))
                tokens = read_tables(self._root, [request])[0]["tokens"].combine_chunks()
                yield part.first_sentence + int(footer.before[group]), tokens

    def _index(self) -> tuple[list[PartRange], Int64, Int64]:
        """The parts that have sentences; the first sentence of each and the one after its last, 0 and 0 where there is no part.

        Of an unfinished store those that are numbered.
        """
        with self._lock:
            if self._parts is None:
                filled = [part for part in self._read_parts() if part.n_sentences]
                spans = [(part.first_sentence, part.first_sentence + part.n_sentences) for part in filled]
                edges = np.array(spans or [(0, 0)], np.int64)
                self._parts = filled, edges[:, 0].copy(), edges[:, 1].copy()
            return self._parts

    def _read_parts(self) -> list[PartRange]:
        if self._manifest.complete:
            return read_index(self._root, self._manifest)
        markers = [read_part_group_marker(self._root, number) for number in marked(self._root, layout.PART_GROUPS)]
        return sorted((part for marker in markers if marker for part in marker.parts), key=lambda part: part.part)

    def _read_chunks(self, chunks: list[int]) -> list[Int64]:
        return read_sentence_chunks(self._root, self._manifest, chunks)

    def _read_footers(self, holding: list[int]) -> list[_Footer]:
        """Footers of the parts that stand at these places of the index."""
        parts = [self._index()[0][index] for index in holding]
        rels = [layout.sentences_part(part.part) for part in parts]
        footers = []
        for part, rel, metadata in zip(parts, rels, read_footers(self._root, rels), strict=True):
            if metadata.num_rows != part.n_sentences:
                raise ShardCorruptError(
                    f"{self._root.url(rel)} has {metadata.num_rows} sentences, not {part.n_sentences}: restore it"
                )
            schema = metadata.schema.to_arrow_schema()
            fields = [field.column for field in self._manifest.fields]
            if problem := schema_problem(schema, pa.schema([*layout.SENTENCES_SCHEMA, *fields])):
                raise ShardCorruptError(f"{self._root.url(rel)}: {problem}: not a part of a store")
            lengths = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            columns = layout.SENTENCES_SCHEMA.names + [layout.TEXT.name] * (not schema_problem(schema, pa.schema([layout.TEXT])))
            before = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
            footers.append(_Footer(metadata, before, tuple(columns), schema.remove_metadata()))
        return footers

    def _read_groups(self, keys: list[tuple[int, int]], footers: dict[int, _Footer]) -> list[dict[str, Any]]:
        rels = [layout.sentences_part(self._index()[0][held].part) for held, _ in keys]
        requests = [
            GroupsOf(rel, footers[held].metadata, (group,), footers[held].columns)
            for rel, (held, group) in zip(rels, keys, strict=True)
        ]
        columns = []
        for request, table in zip(requests, read_tables(self._root, requests), strict=True):
            numbers = table["sentence"].to_numpy()
            if len(numbers) and not np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
                raise ShardCorruptError(f"{self._root.url(request.rel)} does not number its sentences without gaps: restore it")
            texts = {
                name: table[name].combine_chunks() for name in ("id", "source", "tokens", "text") if name in table.column_names
            }
            columns.append(texts | {name: table[name].to_numpy() for name in ("sentence", "position", "first_row", "n_tokens")})
        return columns

    def _read_columns(self, keys: list[tuple[int, int, tuple[str, ...]]], footers: dict[int, _Footer]) -> list[pa.Table]:
        requests = [
            GroupsOf(layout.sentences_part(self._index()[0][held].part), footers[held].metadata, (group,), names, nulls=True)
            for held, group, names in keys
        ]
        tables = read_tables(self._root, requests)
        return [table.select(names) for table, (_, _, names) in zip(tables, keys, strict=True)]

    def _record(self, number: int, columns: dict[str, Any], index: int) -> SentenceRecord:
        stored = int(columns["sentence"][index])
        if stored != number:
            raise ShardCorruptError(f"{self._root}: sentence {stored} stands where {number} must: a part is damaged")
        n_tokens = int(columns["n_tokens"][index])
        return SentenceRecord(
            index=number,
            id=columns["id"][index].as_py(),
            source=columns["source"][index].as_py(),
            position=int(columns["position"][index]),
            first_row=int(columns["first_row"][index]),
            n_rows=n_tokens + 2 if self._manifest.boundaries and n_tokens else n_tokens,
            tokens=tuple(columns["tokens"][index].as_py()),
            line=columns["text"][index].as_py() if "text" in columns else "",
        )
