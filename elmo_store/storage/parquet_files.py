"""Parquet files of a store, read so that only what is asked for is fetched, and all of it at once; with our errors.

A footer costs one request, row groups of any number of files one round of them. pyarrow decodes. What row groups decompress to is
bounded before anything is decoded: by what their footer says, then by what the headers of their pages say, since a reader takes
memory by those.
"""

import io
import mmap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.errors import ShardCorruptError, ShardMissingError
from elmo_store.storage.data import Range, ShortReadError
from elmo_store.storage.parquet_pages import pages
from elmo_store.storage.root import Root

TAIL_BYTES = 1 << 16  # fetched of a file to find its footer
PYARROW_ERRORS = (
    pa.ArrowException,
    ValueError,
    LookupError,
    OSError,
)  # that it raises for damaged files
_TRAILER_BYTES = 8  # length of the footer, and "PAR1"
MOST_BYTES = 1 << 28  # that columns which are read together decompress to, or …
MOST_RATIO = 250  # … so many times what is stored, if that is more
MOST_STORED = 1 << 30  # of a column of a row group


@dataclass(frozen=True)
class GroupsOf:
    """Row groups to read of one file: their numbers in it, and the names of its columns.

    ``nulls``: columns may have any.
    """

    rel: str
    metadata: pq.FileMetaData
    groups: tuple[int, ...]
    columns: tuple[str, ...]
    nulls: bool = False


@contextmanager
def errors_name(
    root: Root, rel: str = "", damage: tuple[type[Exception], ...] = PYARROW_ERRORS
) -> Iterator[None]:
    """Turn a missing file into ShardMissingError and ``damage`` into ShardCorruptError; a network's errors pass.

    StoreReplacedError where another store stands. ``rel``: the file, if the errors don't name it.
    """
    try:
        yield
    except FileNotFoundError as error:
        root.confirm(now=True)
        where = root.url(rel) if rel else error.filename or error
        raise ShardMissingError(
            f"{where} is missing: run the job again, or restore the file"
        ) from error
    except damage as error:
        # pyarrow raises ArrowInvalid for a cut file, a bare OSError, without errno, for damaged pages, and more of its own for
        # footers that a flipped bit made into something else: integers of 65 bits, tables of terabytes.
        if isinstance(error, OSError) and type(error) not in (OSError, ShortReadError):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            raise
        root.confirm(now=True)
        where = root.url(rel or getattr(error, "rel", ""))
        raise ShardCorruptError(
            f"{where} is damaged ({str(error) or repr(error)}): remove its marker and run the job again, or restore the file"
        ) from error


def _text_bytes(chunk: pa.Array) -> int:
    """Bytes of the strings of a column that are numbers of a dictionary; 0 of any other."""
    values = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
    if not pa.types.is_dictionary(values.type):
        return 0
    import pyarrow.compute as pc  # which an import of this package need not pay for

    return int(
        pc.sum(pc.binary_length(values.dictionary).take(values.indices).cast(pa.int64())).as_py()
        or 0
    )


def encoded_table(table: pa.Table, **options: Any) -> bytes:
    """A Parquet file, the same for the same table: zstd, a CRC-32 a page; ``options`` as of `pyarrow.parquet.write_table`."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, **options)
    return sink.getvalue()


def read_footers(root: Root, rels: Sequence[str]) -> list[pq.FileMetaData]:
    """The metadata of each file, by one round of requests (two where a footer is large). ShardMissingError, ShardCorruptError."""
    with errors_name(root, ""):
        tails = root.get_tails(dict.fromkeys(rels, TAIL_BYTES))
    large = {}
    for rel, tail in tails.items():
        with errors_name(root, rel):
            if _footer_bytes(tail) > len(tail):
                large[rel] = _footer_bytes(tail)
    with errors_name(root, ""):
        tails |= root.get_tails(large)
    footers = []
    for rel in rels:
        with errors_name(root, rel):
            footers.append(pq.read_metadata(pa.BufferReader(tails[rel])))
    return footers


def check_groups(where: str, metadata: pq.FileMetaData, n_rows: int, group_rows: int) -> None:
    """ShardCorruptError unless a file has so many rows, ``group_rows`` in each row group but the last."""
    lengths = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    actual, wanted = (
        (metadata.num_rows, sum(lengths), len(lengths)),
        (n_rows, n_rows, -(-n_rows // group_rows)),
    )
    if actual != wanted or any(n != group_rows for n in lengths[:-1]):
        has = f"{metadata.num_rows} rows, {sum(lengths)} in {len(lengths)} row groups"
        raise ShardCorruptError(
            f"{where} has {has}, not {n_rows} in groups of {group_rows}: restore it"
        )


def read_tables(root: Root, requests: Sequence[GroupsOf]) -> list[pa.Table]:
    """The row groups of each request as a table, columns in the order asked for. ShardMissingError, ShardCorruptError."""
    for request in requests:
        with errors_name(root, request.rel):
            _check_sizes(request.metadata, request.groups, request.columns)
    tables = []
    for request, file in zip(requests, _fetch(root, requests), strict=True):
        with errors_name(root, request.rel):
            _check_pages(memoryview(file), request)
            tables.append(_read(pa.BufferReader(file), request, len(file)))
    return tables


def read_table(root: Root, rel: str, schema: pa.Schema) -> pa.Table:
    """The columns of ``schema`` of a small file, read whole by one request.

    ShardMissingError; ShardCorruptError for columns that are missing or of another type, nulls, strings that are not UTF-8, and
    sizes beyond `_check_sizes`.
    """
    with errors_name(root, rel):
        data = root.get(rel, MOST_STORED)
        metadata = pq.read_metadata(pa.BufferReader(data))
        if problem := schema_problem(metadata.schema.to_arrow_schema(), schema):
            raise ValueError(problem)
        request = GroupsOf(
            rel, metadata, tuple(range(metadata.num_row_groups)), tuple(schema.names)
        )
        _check_sizes(metadata, request.groups, request.columns)
        _check_pages(memoryview(data), request)
        return _read(pa.BufferReader(data), request, len(data)).select(schema.names)


def _read(source: Any, request: GroupsOf, size: int) -> pa.Table:
    """Row groups of a file of ``size`` bytes. ValueError as of `_checked` and `_plain_strings`."""
    metadata, columns = request.metadata, request.columns
    # Strings stay numbers of a dictionary where they are stored so: what they add up to is not known yet.
    texts = _texts(metadata, request.groups, columns)
    # pre_buffer would join ranges over gaps that were not fetched; everything is in memory already.
    file = pq.ParquetFile(
        source,
        metadata=metadata,
        page_checksum_verification=True,
        pre_buffer=False,
        read_dictionary=texts,
    )
    # Each row group has dictionaries of its own, and pyarrow joins none that lie in lists.
    several = [[group] for group in request.groups] if texts else [list(request.groups)]
    tables = [
        file.read_row_groups(own, columns=list(columns), use_threads=False) for own in several
    ]
    table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
    _check(table, metadata, request.groups, nulls=request.nulls)
    return _plain_strings(table, metadata, size) if texts else table


def _texts(metadata: pq.FileMetaData, groups: Sequence[int], columns: Sequence[str]) -> list[str]:
    """Paths of strings that some of these row groups have as numbers of a dictionary."""
    schema = metadata.schema
    columns_read = {place: schema.column(place) for place in _leaves(metadata, columns)}
    texts = {
        place: column.path
        for place, column in columns_read.items()
        if column.physical_type == "BYTE_ARRAY"
    }
    groups_of = [metadata.row_group(group) for group in groups] if texts else []
    return sorted(
        path
        for place, path in texts.items()
        if any(g.column(place).has_dictionary_page for g in groups_of)
    )


def schema_problem(actual: pa.Schema, wanted: pa.Schema) -> str | None:
    """What keeps a file from being read as ``wanted``; None if nothing does. Other columns may stand beside them."""
    for field in wanted:
        index = actual.get_field_index(field.name)
        if index < 0:
            return f"it has no column {field.name}"
        if not _same_type(actual.field(index).type, field.type):
            return f"its column {field.name} is {actual.field(index).type}, not {field.type}"
    return None


def _same_type(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Equal, whatever an inner field is called and whether it may be null."""
    if pa.types.is_list(wanted):
        return bool(pa.types.is_list(actual)) and _same_type(actual.value_type, wanted.value_type)
    return bool(actual.equals(wanted))


def _plain_strings(table: pa.Table, metadata: pq.FileMetaData, size: int) -> pa.Table:
    """``table``, of a file of ``size`` bytes, with plain strings. ValueError for strings that are too long together."""
    for column in table.columns:
        if (n_bytes := sum(map(_text_bytes, column.chunks))) > _most_bytes(size):
            raise ValueError(
                f"a column has {n_bytes:,} bytes of text, more than {_most_bytes(size):,}"
            )
    whole = metadata.schema.to_arrow_schema()
    return table.cast(pa.schema([whole.field(name) for name in table.column_names]))


def _check(
    table: pa.Table, metadata: pq.FileMetaData, groups: Iterable[int], *, nulls: bool
) -> None:
    """ValueError for other rows than the footer says, nulls unless there may be any, and strings that are none."""
    rows = sum(metadata.row_group(group).num_rows for group in groups)
    if table.num_rows != rows:
        raise ValueError(f"it has {table.num_rows} rows where its footer says {rows}")
    table.validate(full=True)
    for name, column in () if nulls else zip(table.column_names, table.columns, strict=True):
        for chunk in column.chunks:
            inner = chunk.values if pa.types.is_list(chunk.type) else chunk
            if chunk.null_count or inner.null_count:
                raise ValueError(f"its column {name} has nulls")


def _footer_bytes(tail: bytes) -> int:
    """Bytes of the footer with its trailer, by the end of the file. ValueError if it does not end as Parquet does."""
    if len(tail) < _TRAILER_BYTES or tail[-4:] != b"PAR1":
        raise ValueError("it does not end as a Parquet file does")
    return int.from_bytes(tail[-8:-4], "little") + _TRAILER_BYTES


def _fetch(root: Root, requests: Sequence[GroupsOf]) -> list[mmap.mmap]:
    """For each request a file that has what it needs in its place, all asked for at once, and zeros elsewhere."""
    files, ranges = [], []
    for request in requests:
        with errors_name(root, request.rel):
            chunks = [
                chunk[1:] for chunk in _chunks(request.metadata, request.groups, request.columns)
            ]
            size = max((stop for _, stop in chunks), default=1)
            try:
                file = mmap.mmap(
                    -1, max(1, size), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                )  # what is not touched takes no memory
            except (OSError, OverflowError) as error:
                raise ValueError(f"its columns end at byte {size:,}") from error
        files.append(file)
        ranges += [
            Range(request.rel, start, memoryview(file)[start:stop]) for start, stop in chunks
        ]
    with errors_name(root, damage=(ShortReadError,)):
        root.read_ranges(ranges)
    return files


def _most_bytes(stored_bytes: int) -> int:
    """Bytes that what takes ``stored_bytes`` may decompress to."""
    return max(MOST_BYTES, MOST_RATIO * stored_bytes)


def _leaves(metadata: pq.FileMetaData, columns: Sequence[str]) -> list[int]:
    """Return the places in the schema of the values of the fields of these names, as pyarrow finds them.

    A name may hold points, as those of mixes do: pyarrow then also reads the fields whose names begin with it and a point.
    """
    names = set(columns)
    heads = tuple(f"{name}." for name in columns)
    paths = [metadata.schema.column(place).path for place in range(len(metadata.schema))]
    return [place for place, path in enumerate(paths) if path in names or path.startswith(heads)]


def _chunks(
    metadata: pq.FileMetaData, groups: Iterable[int], columns: Sequence[str]
) -> Iterator[tuple[Any, int, int]]:
    """Each column that holds values of the fields of these names, in these row groups; (start, stop) in the file. ValueError."""
    places = _leaves(metadata, columns)
    for group in groups:
        row_group = metadata.row_group(group)
        for place in places:
            column = row_group.column(place)
            start, stored = column.data_page_offset, column.total_compressed_size
            if (
                column.has_dictionary_page
                and (dictionary := column.dictionary_page_offset) is not None
            ):
                start = min(start, dictionary)
            if start < 0 or not 0 <= stored <= MOST_STORED:
                raise ValueError(
                    f"its column {column.path_in_schema} has {stored:,} bytes at {start}; {MOST_STORED:,} are the most"
                )
            yield column, start, start + stored


def _check_sizes(metadata: pq.FileMetaData, groups: Iterable[int], columns: Sequence[str]) -> None:
    """ValueError, with the limit, if columns of row groups would take too much memory by what the footer says."""
    stored = total = 0
    for column, start, stop in _chunks(metadata, groups, columns):
        stored += stop - start
        total += max(column.total_uncompressed_size, 4 * column.num_values)
    _check_total(total, stored, columns)


def _check_pages(data: memoryview, request: GroupsOf) -> None:
    """Check the pages of the columns that are requested of the file ``data``.

    Raises:
        ValueError: a column ends behind the file, its pages are damaged, or would take too much memory.
    """
    widths = {
        request.metadata.schema.column(place).path: request.metadata.schema.column(place).length
        for place in _leaves(request.metadata, request.columns)
    }
    stored = total = 0
    for column, start, stop in _chunks(request.metadata, request.groups, request.columns):
        if stop > len(data):
            raise ValueError(
                f"its column {column.path_in_schema} ends at byte {stop} of {len(data)}"
            )
        if (
            column.num_values <= 0
        ):  # no page is decoded, and there may be none at the offset that the footer gives
            continue
        stored += stop - start
        n_bytes = n_values = 0
        for page in pages(data[start:stop]):
            n_bytes += page.uncompressed_bytes
            n_values += page.n_values
        # A value of a dictionary, or one that is repeated, takes next to nothing in a page, and its whole width in memory.
        width = max(4, widths[column.path_in_schema] or 0)
        total += max(n_bytes, width * n_values)
    _check_total(total, stored, request.columns)


def _check_total(n_bytes: int, stored: int, columns: Sequence[str]) -> None:
    """ValueError if columns that take ``stored`` bytes in a file would take more than they may in memory."""
    if n_bytes > _most_bytes(stored):
        raise ValueError(
            f"its columns {', '.join(columns)} would take {n_bytes:,} bytes, more than {MOST_BYTES:,} and "
            f"{MOST_RATIO} times what is stored"
        )
