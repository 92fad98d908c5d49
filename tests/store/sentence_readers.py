"""How other programs read the folder of sentences, as a table of Arrow's. Each is imported when it reads."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

IGNORE_DASK = pytest.mark.filterwarnings(
    "ignore:The inplace keyword:DeprecationWarning"
)  # its use of pandas
FOLDER_AND_GLOB, FOLDER_ALONE, GLOB_ALONE = (
    ("sentences", "sentences/*.parquet"),
    ("sentences",),
    ("sentences/*.parquet",),
)


def _of_duckdb(path: str) -> pa.Table:
    import duckdb

    with duckdb.connect() as connection:
        return connection.sql("select * from read_parquet(?)", params=[path]).to_arrow_table()


def _of_polars(path: str) -> pa.Table:
    import polars

    return polars.read_parquet(path).to_arrow()


def _of_pandas(path: str) -> pa.Table:
    import pandas

    return pa.Table.from_pandas(pandas.read_parquet(path))


def _of_dask(path: str) -> pa.Table:
    import dask.dataframe

    return pa.Table.from_pandas(dask.dataframe.read_parquet(path).compute())


SENTENCE_READERS: dict[str, tuple[Callable[[str], pa.Table], tuple[str, ...]]] = {
    "duckdb": (_of_duckdb, GLOB_ALONE),
    "polars": (_of_polars, FOLDER_AND_GLOB),
    "pyarrow": (pq.read_table, FOLDER_ALONE),
    "pyarrow.dataset": (lambda path: pyarrow.dataset.dataset(path).to_table(), FOLDER_ALONE),
    "pandas": (_of_pandas, FOLDER_ALONE),
    "dask": (_of_dask, FOLDER_AND_GLOB),
}
