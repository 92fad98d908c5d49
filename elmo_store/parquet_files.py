"""Parquet files of a store, opened so that only the ranges asked for are fetched, with our errors.

May import pyarrow, storage, errors.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.parquet as pq

from elmo_store.errors import ShardCorruptError, ShardMissingError
from elmo_store.storage import Root


@contextmanager
def errors_name(root: Root, rel: str) -> Iterator[None]:
    """Turn what pyarrow raises while ``rel`` is read into ShardMissingError or ShardCorruptError; a network's errors pass."""
    try:
        yield
    except FileNotFoundError as error:
        raise ShardMissingError(f"{root.url(rel)} is missing: run the job again, or restore the file") from error
    except (ValueError, KeyError, OSError) as error:
        # pyarrow raises ArrowInvalid (a ValueError) for a cut file and a bare OSError, without errno, for damaged pages.
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise
        raise ShardCorruptError(
            f"{root.url(rel)} is damaged ({str(error) or repr(error)}): remove its marker and run the job again, "
            "or restore the file"
        ) from error


def open_parquet(root: Root, rel: str) -> pq.ParquetFile:
    """Open ``rel``: its footer is read, columns are fetched as they are asked for. ShardMissingError, ShardCorruptError."""
    with errors_name(root, rel):
        if root.is_local:
            return pq.ParquetFile(root.path(rel), page_checksum_verification=True)
        # cache_type none: fsspec's read-ahead would fetch neighbouring columns that nobody asked for.
        file = root.filesystem.open(root.path(rel), "rb", cache_type="none")
        return pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=True)
