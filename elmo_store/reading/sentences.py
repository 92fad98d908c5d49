"""What each row of a store is: its sentences, by number and by id, read as they are needed.

Opening costs nothing; the rows of a sentence cost a chunk of ``sentence_start``, its text the table of parts, a footer, and the
columns of a row group that are asked for. What was read stays in memory up to a number of bytes. Safe for threads and forks.
"""

import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

from elmo_store.errors import ShardCorruptError, ShardMissingError, StoreError
from elmo_store.format import layout
from elmo_store.format.fields import sentences_schema
from elmo_store.format.ids import HashTables, UInt64
from elmo_store.format.manifest import Manifest
from elmo_store.format.markers import PartGroupMarker, PartRange, marked, read_marker
from elmo_store.reading.index import Index, resolve_number, resolve_numbers
from elmo_store.storage.compressed import check_zstd
from elmo_store.storage.data import ShortReadError, TooLargeError
from elmo_store.storage.parquet_files import (
    GroupsOf,
    check_groups,
    encoded_table,
    errors_name,
    read_footers,
    read_table,
    read_tables,
    schema_problem,
)
from elmo_store.storage.recent import ForkLock, Recent
from elmo_store.storage.root import Root

Int64 = npt.NDArray[np.int64]
START_BYTES = 1 << 28  # of `sentence_start` in memory: of 33 million sentences
TEXT_BYTES = 1 << 29  # of columns of text in memory
FOOTERS_KEPT = 1024
TEXT_COLUMNS = ("id", "tokens")
RECORD = "record"


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


class Starts:
    """Where the rows of sentences begin: one array of 8 bytes a sentence, filled as it is asked for.

    Sentence i has rows ``starts[i] … starts[i + 1]``. Of more than `START_BYTES` all is forgotten and read again. The array holds
    what is stored plus one, so that 0 is what was not read; forked processes share it.
    """

    def __init__(
        self,
        where: str,
        n_sentences: int,
        n_rows: int,
        chunk: int,
        read: Callable[[list[int]], list[Int64]],
    ) -> None:
        """``read``: gives the entries of chunks of so many, the last one may have more than there are; ``where``: for errors."""
        self._where, self._n, self._chunk, self._read = where, n_sentences, chunk, read
        self._most = n_rows + 1
        self._held = self._nothing()

    def _nothing(self) -> tuple[memoryview, set[int]]:
        """Starts, none of them read, in memory whose pages are taken when they are written; and the chunks that were read."""
        return memoryview(mmap.mmap(-1, 8 * self._chunk * (self._n // self._chunk + 1))).cast(
            "q"
        ), set()

    def span(self, number: int | np.integer[Any]) -> tuple[int, int]:
        """Return the first row of one sentence, and the row after its last.

        Raises ShardCorruptError; for the number as `resolve_number`.
        """
        if type(number) is int and 0 <= number < self._n:
            starts, _ = self._held
            first, stop = starts[number], starts[number + 1]
            if 0 < first <= stop <= self._most:
                return first - 1, stop - 1
        found = resolve_number(number, self._n, "sentence", self._where)
        first, stop = self.spans(np.array([found]))[0].tolist()
        return first, stop

    def spans(self, numbers: Index) -> Int64:
        """Return `span` of each sentence: int64 [n, 2]."""
        wanted = self.numbers(numbers)
        spans, wrong = self._looked_up(self._held[0], wanted)
        if len(wrong):
            spans, wrong = self._looked_up(self._load(wanted, wanted[wrong]), wanted)
        if len(wrong):
            number, (first, stop) = int(wanted[wrong[0]]), spans[wrong[0]].tolist()
            raise ShardCorruptError(
                f"{self._where}: sentence {number} has rows {first} … {stop}, which can't be: restore "
                f"{layout.zarr_sentence_chunk(number // self._chunk)}"
            )
        return spans

    def loaded_span(self, number: int) -> tuple[int, int] | None:
        """Return `span` of a sentence if it is in memory, otherwise None."""
        starts, _ = self._held
        first, stop = starts[number], starts[number + 1]
        return (first - 1, stop - 1) if 0 < first <= stop <= self._most else None

    def _looked_up(self, held: memoryview, wanted: Int64) -> tuple[Int64, Int64]:
        """Spans [n, 2] by what is held, and the places of those that can't be."""
        starts, spans = np.frombuffer(held, np.int64), np.empty((len(wanted), 2), np.int64)
        np.subtract(starts[wanted], 1, out=spans[:, 0])
        np.subtract(starts[wanted + 1], 1, out=spans[:, 1])
        wrong = (spans[:, 0] < 0) | (spans[:, 1] < spans[:, 0]) | (spans[:, 1] >= self._most)
        return spans, wrong.nonzero()[0]

    def _load(self, wanted: Int64, unread: Int64) -> memoryview:
        """What is held once the chunks of ``unread``, some of ``wanted``, were read."""
        held, loaded = self._held
        missing = self._chunks(unread) - loaded
        if 8 * self._chunk * len(loaded | missing) > START_BYTES:
            (held, loaded), missing = self._nothing(), self._chunks(wanted)
        starts, chunks = np.frombuffer(held, np.int64), sorted(missing)
        for chunk, entries in zip(chunks, self._read(chunks) if chunks else [], strict=True):
            np.add(entries, 1, out=starts[chunk * self._chunk :][: len(entries)])
        loaded |= missing
        self._held = held, loaded
        return held

    def _chunks(self, numbers: Int64) -> set[int]:
        return set((np.concatenate([numbers, numbers + 1]) // self._chunk).tolist())

    def numbers(self, index: Index) -> Int64:
        """Return the numbers that ``index`` chooses, int64 [n]. Raises as `resolve_index`."""
        numbers = resolve_numbers(index, self._n, "sentence", self._where)
        if isinstance(numbers, range):
            return np.arange(numbers.start, numbers.stop, numbers.step)
        return numbers


def check_row_count(
    where: str, number: int, span: tuple[int, int], n_tokens: int, *, boundaries: bool
) -> None:
    """Raise ShardCorruptError unless a sentence has as many rows as its tokens ask for.

    ``sentence_start`` says where rows begin, and the parts say how many tokens there are. The first has no
    checksum of its own, so readers compare the two wherever they know both.

    Args:
        where: the store, for errors.
        number: the sentence.
        span: its first row and the row after its last.
        n_tokens: how many tokens it has.
        boundaries: whether BOS and EOS have rows.
    """
    first, stop = span
    n_rows = n_tokens + 2 if boundaries and n_tokens else n_tokens
    if stop - first != n_rows:
        tokens = f"{n_tokens} token{'' if n_tokens == 1 else 's'}"
        raise ShardCorruptError(
            f"{where}: sentence {number} has {tokens}, but rows {first} … {stop}: an object of "
            f"{layout.ZARR}/sentence_start or of {layout.SENTENCES} is damaged; verify the store, which names it"
        )


def read_sentence_chunks(root: Root, manifest: Manifest, chunks: Sequence[int]) -> list[Int64]:
    """Chunks of ``sentence_start``, all asked for at once; each [sentence_chunk]. ShardMissingError, ShardCorruptError."""
    rels = [layout.zarr_sentence_chunk(chunk) for chunk in chunks]
    # zstd makes what can't be compressed a little longer.
    most_bytes = 9 * manifest.sentence_chunk + (1 << 16)
    with errors_name(root, damage=(ShortReadError, TooLargeError)):
        stored = root.get_many(rels, most_bytes)
    decoded = []
    for rel, data in zip(rels, stored, strict=True):
        entries = np.full(manifest.sentence_chunk, -1, "<i8")
        with errors_name(root, rel, (ValueError, RuntimeError, IndexError)):
            check_zstd(data, entries.nbytes)
            Zstd().decode(
                data, entries
            )  # a frame of more bytes is an error, and of fewer leaves numbers that can't be
            if entries[-1] < 0:
                raise ValueError("a chunk of sentence_start is cut")
        decoded.append(entries.astype(np.int64, copy=False))
    return decoded


@dataclass(frozen=True)
class _PartFooter:
    metadata: pq.FileMetaData
    columns: tuple[str, ...]  # that a record is made of
    schema: pa.Schema


class Texts:
    """Ids and tokens of a row group's sentences, each sentence's in one stretch of bytes that is split when it is asked for.

    Attributes:
        columns: the other columns.
    """

    def __init__(self, table: pa.Table) -> None:
        """``table``: a row a sentence; nothing in it is null."""
        self.columns: dict[str, pa.Array] = {
            name: table[name].combine_chunks() for name in table.column_names
        }
        ids, tokens = self.columns.pop("id"), self.columns.pop("tokens")
        n_tokens = tokens.value_lengths()
        lists = pa.ListArray.from_arrays(
            tokens.offsets, tokens.values
        )  # the function takes no type without nulls
        joined = pc.binary_join_element_wise(ids, pc.binary_join(lists, "\0"), "\0")
        _, offsets, data = pc.if_else(pc.equal(n_tokens, 0), ids, joined).buffers()
        self._offsets, self._data = (
            memoryview(offsets).cast("i"),
            b"" if data is None else data.to_pybytes(),
        )
        text_bytes, self._made = len(offsets) + len(self._data), list[tuple[str, tuple[str, ...]]]()
        if self._data.count(0) != (
            pc.sum(n_tokens).as_py() or 0
        ):  # a text holds such a character itself: all is split here
            self._made = list(zip(ids.to_pylist(), map(tuple, tokens.to_pylist()), strict=True))
            text_bytes *= 16  # roughly what Python's strings take
        self.nbytes = text_bytes + sum(int(column.nbytes) for column in self.columns.values())

    def __getitem__(self, place: int) -> tuple[str, tuple[str, ...]]:
        """Id and tokens of one of the sentences."""
        if self._made:
            return self._made[place]
        tokens = self._data[self._offsets[place] : self._offsets[place + 1]].decode().split("\0")
        sentence_id = tokens.pop(0)
        return sentence_id, tuple(tokens)


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
    more = [
        field
        for field in schema
        if field.name not in (*layout.SENTENCES_SCHEMA.names, layout.TEXT.name)
    ]
    lists = [f"{field.name}.list.element" for field in more if field.type == layout.STRINGS]
    return [field.name for field in more if pa.types.is_string(field.type)] + lists


def encode_index(parts: Sequence[PartRange], sizes: Sequence[tuple[int, int]]) -> bytes:
    """The table of parts; ``sizes``: bytes of each part's file, and of its rejects (0 without any)."""
    columns: dict[str, list[int]] = {
        name: [getattr(part, name) for part in parts] for name in PartRange.__dataclass_fields__
    }
    columns |= {
        "bytes": [part for part, _ in sizes],
        "rejects_bytes": [rejects for _, rejects in sizes],
    }
    return encoded_table(pa.table(columns, schema=layout.INDEX_SCHEMA))


def read_index(root: Root, manifest: Manifest) -> list[PartRange]:
    """The parts of a complete store, in order. ShardCorruptError unless they follow each other, up to the manifest's counts."""
    table = read_table(root, layout.SENTENCE_INDEX, layout.INDEX_SCHEMA)
    parts = [
        PartRange(*row.values())
        for row in table.select(list(PartRange.__dataclass_fields__)).to_pylist()
    ]
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


class SentenceTable:
    """The sentences of a store."""

    def __init__(self, root: Root, manifest: Manifest, share: float = 1.0) -> None:
        """``share``: of the memory that a store's text may take."""
        self._root, self._manifest = root, manifest
        sizes = manifest.sizes
        chunk, read = manifest.sentence_chunk, partial(read_sentence_chunks, root, manifest)
        self.starts = Starts(str(root), sizes.sentences, sizes.rows, chunk, read)
        self._footers: Recent[int, _PartFooter] = Recent(FOOTERS_KEPT)
        # By row group: `Texts` of id and tokens; by (group, RECORD) those with all of a record; by (group, names) tables.
        self._kept: Recent[Any, Any] = Recent(
            int(TEXT_BYTES * share), lambda kept: int(kept.nbytes)
        )
        self._by_id = HashTables(root, sizes.sentences, layout.id_table)
        self._by_text = HashTables(root, sizes.sentences, layout.text_table)
        self._lock = ForkLock()
        self._parts: tuple[list[PartRange], Int64, Int64] | None = None

    def find(self, pairs: UInt64, *, texts: bool) -> list[list[int]]:
        """The numbers of all sentences whose id, or with ``texts`` whose text, has each hash [n, 2], in order."""
        try:
            return (self._by_text if texts else self._by_id).find(pairs)
        except ShardMissingError as error:
            if self._manifest.complete:
                raise
            raise ShardMissingError(
                f"{self._root}: {'texts' if texts else 'ids'} are found when the job is complete; read by number until then"
            ) from error

    def records(self, numbers: Index) -> list[SentenceRecord]:
        """Everything about these sentences, in the order of ``numbers``."""
        wanted = self.starts.numbers(numbers)
        if not len(wanted):
            return []
        groups, places = self._located(wanted)
        names = self._footers.get(self._part_of(groups[0])[0], self._read_footers).columns
        keys = [(group, RECORD) for group in groups]
        facts = self._kept.get_all(
            keys, lambda missing: self._read_texts([group for group, _ in missing], names)
        )
        values = [
            {name: column[place].as_py() for name, column in own.columns.items()}
            | dict(zip(TEXT_COLUMNS, own[place], strict=True))
            for own, place in zip(facts, places, strict=True)
        ]
        self._check_row_counts(wanted, (value["n_tokens"] for value in values))
        return list(map(self._record, wanted.tolist(), values))

    def texts(self, numbers: Index) -> tuple[list[str], list[tuple[str, ...]]]:
        """Id and tokens of each of these sentences; nothing else is read."""
        wanted = self.starts.numbers(numbers)
        groups, places = self._located(wanted)
        texts = self._kept.get_all(groups, lambda missing: self._read_texts(missing, TEXT_COLUMNS))
        pairs = [own[place] for own, place in zip(texts, places, strict=True)]
        self._check_row_counts(wanted, (len(own[1]) for own in pairs))
        return [own[0] for own in pairs], [own[1] for own in pairs]

    def _check_row_counts(self, numbers: Int64, n_tokens: Iterable[int]) -> None:
        """Compare counts of tokens with the rows that are in memory: nothing is fetched for the comparison."""
        where, boundaries = str(self._root), self._manifest.boundaries
        for number, count in zip(numbers.tolist(), n_tokens, strict=True):
            span = self.starts.loaded_span(number)
            if span is not None:
                check_row_count(where, number, span, count, boundaries=boundaries)

    def columns(self, numbers: Index, names: Sequence[str]) -> pa.Table:
        """These columns of these sentences, in the order of ``numbers``. StoreError, naming those there are, for another one."""
        wanted = self.starts.numbers(numbers)
        schema = self.schema
        if unknown := [name for name in names if name not in schema.names]:
            raise StoreError(
                f"{self._root} has no column {unknown[0]!r} of sentences: it has {', '.join(schema.names)}"
            )
        if not len(wanted):
            return pa.schema([schema.field(name) for name in names]).empty_table()
        of_sentences, places = self._located(wanted)
        groups = list(dict.fromkeys(of_sentences))
        tables = self._kept.get_all([(group, tuple(names)) for group in groups], self._read_tables)
        starts = dict(zip(groups, np.cumsum([0, *map(len, tables[:-1])]).tolist(), strict=True))
        taken = [starts[group] + place for group, place in zip(of_sentences, places, strict=True)]
        table = pa.concat_tables(tables)
        if taken != list(range(len(table))):
            table = table.take(taken)
        if "n_tokens" in names:
            self._check_row_counts(wanted, table["n_tokens"].to_pylist())
        return table

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the table of sentences."""
        if not self._index()[0]:
            return sentences_schema(self._manifest.fields)
        return self._footers.get(0, self._read_footers).schema

    def _located(self, wanted: Int64) -> tuple[list[int], list[int]]:
        """The row group of each sentence, by its own first sentence, and the sentence's place in it."""
        _, firsts, stops = self._index()
        holding = np.searchsorted(firsts[1:], wanted, "right")
        local = wanted - firsts[holding]
        if not self._manifest.complete and len(
            unwritten := wanted[(local < 0) | (wanted >= stops[holding])]
        ):
            raise ShardMissingError(
                f"{self._root}: sentence {unwritten[0]} is not written yet: run the job again to continue it"
            )
        places = local % layout.ROW_GROUP_SENTENCES
        return (wanted - places).tolist(), places.tolist()

    def _part_of(self, group: int) -> tuple[int, int]:
        """Place in the index of the part that has the row group with that first sentence, and the group's number in the part."""
        _, firsts, _ = self._index()
        held = int(np.searchsorted(firsts[1:], group, "right"))
        return held, (group - int(firsts[held])) // layout.ROW_GROUP_SENTENCES

    def _index(self) -> tuple[list[PartRange], Int64, Int64]:
        """The parts that have sentences; the first sentence of each and the one after its last, 0 and 0 where there is no part.

        Of an unfinished store those that are numbered.
        """
        with self._lock:
            if self._parts is None:
                filled = [part for part in self._read_parts() if part.n_sentences]
                spans = [
                    (part.first_sentence, part.first_sentence + part.n_sentences) for part in filled
                ]
                edges = np.array(spans or [(0, 0)], np.int64)
                self._parts = filled, edges[:, 0].copy(), edges[:, 1].copy()
            return self._parts

    def _read_parts(self) -> list[PartRange]:
        if self._manifest.complete:
            return read_index(self._root, self._manifest)
        markers = [
            read_marker(self._root, PartGroupMarker, number)
            for number in marked(self._root, layout.PART_GROUPS)
        ]
        return sorted(
            (part for marker in markers if marker for part in marker.parts),
            key=lambda part: part.part,
        )

    def _read_footers(self, holding: list[int]) -> list[_PartFooter]:
        """Footers of the parts that stand at these places of the index."""
        parts = [self._index()[0][index] for index in holding]
        rels = [layout.sentences_part(part.part) for part in parts]
        footers = []
        for part, rel, metadata in zip(parts, rels, read_footers(self._root, rels), strict=True):
            check_groups(
                self._root.url(rel), metadata, part.n_sentences, layout.ROW_GROUP_SENTENCES
            )
            schema = metadata.schema.to_arrow_schema()
            fields = [field.column for field in self._manifest.fields]
            if problem := schema_problem(schema, pa.schema([*layout.SENTENCES_SCHEMA, *fields])):
                raise ShardCorruptError(f"{self._root.url(rel)}: {problem}: not a part of a store")
            columns = layout.SENTENCES_SCHEMA.names + [layout.TEXT.name] * (
                not schema_problem(schema, pa.schema([layout.TEXT]))
            )
            footers.append(_PartFooter(metadata, tuple(columns), schema.remove_metadata()))
        return footers

    def _read_tables(self, keys: list[tuple[int, tuple[str, ...]]]) -> list[pa.Table]:
        tables = read_tables(self._root, [self._request(*key, nulls=True) for key in keys])
        return [table.select(names) for table, (_, names) in zip(tables, keys, strict=True)]

    def _request(self, group: int, names: tuple[str, ...], **settings: bool) -> GroupsOf:
        held, number = self._part_of(group)
        rel, footer = (
            layout.sentences_part(self._index()[0][held].part),
            self._footers.get(held, self._read_footers),
        )
        return GroupsOf(rel, footer.metadata, (number,), names, **settings)

    def _read_texts(self, groups: list[int], names: tuple[str, ...]) -> list[Texts]:
        return list(
            map(Texts, read_tables(self._root, [self._request(group, names) for group in groups]))
        )

    def _record(self, number: int, own: dict[str, Any]) -> SentenceRecord:
        if own["sentence"] != number:
            raise ShardCorruptError(
                f"{self._root}: sentence {own['sentence']} is where {number} must be: a part is damaged"
            )
        n_tokens = own["n_tokens"]
        return SentenceRecord(
            index=number,
            id=own["id"],
            source=own["source"],
            position=own["position"],
            first_row=own["first_row"],
            n_rows=n_tokens + 2 if self._manifest.boundaries and n_tokens else n_tokens,
            tokens=own["tokens"],
            line=own.get("text", ""),
        )
