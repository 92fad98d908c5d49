"""Parquet files of a store, read so that only what is asked for is fetched, and all of it at once; with our errors.

May import pyarrow, storage, errors. A footer costs one request, row groups of any number of files one round of them.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.errors import ShardCorruptError, ShardMissingError
from elmo_store.ranges import Range, ShortReadError
from elmo_store.storage import Root

TAIL_BYTES = 1 << 16  # fetched of a file to find its footer
_TRAILER_BYTES = 8  # length of the footer, and "PAR1"


@dataclass(frozen=True)
class GroupsOf:
    """Row groups to read of one file: their numbers in it, and the names of its columns."""

    rel: str
    metadata: pq.FileMetaData
    groups: tuple[int, ...]
    columns: tuple[str, ...]


@contextmanager
def errors_name(root: Root, rel: str) -> Iterator[None]:
    """Turn what pyarrow raises while ``rel`` is read into ShardMissingError or ShardCorruptError; a network's errors pass."""
    try:
        yield
    except FileNotFoundError as error:
        where = root.url(rel) if rel else error.filename or error
        raise ShardMissingError(f"{where} is missing: run the job again, or restore the file") from error
    except (pa.ArrowException, ValueError, LookupError, OSError) as error:
        # pyarrow raises ArrowInvalid for a cut file, a bare OSError, without errno, for damaged pages, and more of its own for
        # footers that a flipped bit made into something else: integers of 65 bits, tables of terabytes.
        if isinstance(error, OSError) and type(error) not in (OSError, ShortReadError):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            raise
        where = root.url(rel or getattr(error, "rel", ""))
        raise ShardCorruptError(
            f"{where} is damaged ({str(error) or repr(error)}): remove its marker and run the job again, or restore the file"
        ) from error


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


def read_tables(root: Root, requests: Sequence[GroupsOf]) -> list[pa.Table]:
    """The row groups of each request as a table, columns in the order asked for. ShardMissingError, ShardCorruptError."""
    tables = []
    fetched = None if root.is_local else _fetch(root, requests)
    for i, one in enumerate(requests):
        with errors_name(root, one.rel):
            source = root.path(one.rel) if fetched is None else pa.PythonFile(fetched[i], mode="r")
            # pre_buffer would join ranges over gaps that were not fetched; everything is at hand already.
            file = pq.ParquetFile(source, metadata=one.metadata, page_checksum_verification=True, pre_buffer=False)
            tables.append(file.read_row_groups(list(one.groups), columns=list(one.columns), use_threads=False))
    return tables


def read_table(root: Root, rel: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A small file, read whole by one request. ShardMissingError; ShardCorruptError, also for a column that it has not."""
    with errors_name(root, rel):
        file = pq.ParquetFile(pa.BufferReader(root.get(rel)), page_checksum_verification=True)
        missing = [name for name in columns or () if name not in file.schema_arrow.names]
        if missing:  # pyarrow leaves them out without a word
            raise ValueError(f"it has no column {', '.join(missing)}")
        return file.read(columns=None if columns is None else list(columns), use_threads=False)


def column_bytes(metadata: pq.FileMetaData, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
    """(start, stop) in the file of the columns of one row group that belong to the fields of these names."""
    found = []
    row_group = metadata.row_group(group)
    for i in range(row_group.num_columns):
        column = row_group.column(i)
        if any(column.path_in_schema in (name, f"{name}.list.element") for name in columns):
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            found.append((start, start + column.total_compressed_size))
    return found


def _footer_bytes(tail: bytes) -> int:
    """Bytes of the footer with its trailer, by the end of the file. ValueError if it does not end as Parquet does."""
    if len(tail) < _TRAILER_BYTES or tail[-4:] != b"PAR1":
        raise ValueError("it does not end as a Parquet file does")
    return int.from_bytes(tail[-8:-4], "little") + _TRAILER_BYTES


def _fetch(root: Root, requests: Sequence[GroupsOf]) -> list["_Fetched"]:
    """The bytes that each request needs, all asked for at once."""
    files = [_Fetched(one) for one in requests]
    try:
        root.read_ranges([r for file in files for r in file.ranges])
    except (FileNotFoundError, ShortReadError) as error:
        rel = getattr(error, "rel", "")
        with errors_name(root, rel):
            raise
    return files


class _Fetched(io.RawIOBase):
    """A file of which only some ranges are at hand; what pyarrow reads elsewhere is an error, never a request."""

    def __init__(self, request: GroupsOf) -> None:
        super().__init__()
        self._at = 0
        self._blocks: list[tuple[int, bytearray]] = []
        self.ranges: list[Range] = []
        self._size = 0
        for group in request.groups:
            for start, stop in column_bytes(request.metadata, group, request.columns):
                block = bytearray(stop - start)
                self._blocks.append((start, block))
                self.ranges.append(Range(request.rel, start, memoryview(block)))
                self._size = max(self._size, stop)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the place."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Bytes from the place on, out of one of the ranges; ValueError outside of them."""
        for start, block in self._blocks:
            if start <= self._at < start + len(block):
                first = self._at - start
                data = bytes(block[first:] if size is None or size < 0 else block[first : first + size])
                self._at += len(data)
                return data
        raise ValueError(f"byte {self._at} was not fetched: the footer and the pages disagree")
