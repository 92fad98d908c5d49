"""Headers of Parquet pages say what pyarrow's footer says, and damaged ones are a ValueError."""

import contextlib
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.storage.parquet_pages import pages

TABLE = pa.table(
    {
        "number": np.arange(5000),
        "text": [f"word {i % 700}" for i in range(5000)],
        "tokens": [["a", "b", None][: i % 4] for i in range(5000)],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(20_000, np.float16)), 4),
        "truth": [i % 3 == 0 for i in range(5000)],
    }
)


def written(**options: Any) -> bytes:
    sink = BytesIO()
    pq.write_table(TABLE, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("checksum", [False, True])
def test_pages_add_up_to_what_the_footer_says(
    compression: str, version: str, checksum: bool
) -> None:
    data = written(
        compression=compression,
        data_page_version=version,
        data_page_size=4000,
        write_page_checksum=checksum,
        row_group_size=2000,
    )
    metadata = pq.read_metadata(BytesIO(data))
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            start = column.dictionary_page_offset or column.data_page_offset
            chunk = memoryview(data)[start : start + column.total_compressed_size]
            found = list(pages(chunk))
            n_bytes = sum(page.uncompressed_bytes for page in found)
            of_dictionary = found[0].n_values if column.has_dictionary_page else 0
            assert n_bytes < column.total_uncompressed_size  # which counts the headers, too
            assert n_bytes > column.total_uncompressed_size - 150 * len(found)
            assert sum(page.n_values for page in found) == column.num_values + of_dictionary


def test_an_encoding_that_hides_its_size_is_refused() -> None:
    data = written(use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    column = pq.read_metadata(BytesIO(data)).row_group(0).column(1)
    start = column.data_page_offset
    with pytest.raises(ValueError, match="DELTA_BYTE_ARRAY"):
        list(pages(memoryview(data)[start : start + column.total_compressed_size]))


SOUND = written(compression="zstd", data_page_size=4000)[4:]


@given(st.binary(max_size=200))
def test_any_bytes_are_pages_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(pages(memoryview(data)))


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_changed_headers_are_pages_or_a_value_error(place: int, change: bytes) -> None:
    data = SOUND[:place] + change + SOUND[place + len(change) :]
    with contextlib.suppress(ValueError):
        list(pages(memoryview(data)))
