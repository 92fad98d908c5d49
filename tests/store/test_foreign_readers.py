"""Other programs read a store without this package's help: tensorstore, xarray, zarr, DuckDB, Polars, pyarrow, pandas, dask."""

from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
import xarray
import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore

import elmo_store
from elmo_store.format import layout
from elmo_store.storage.local_disk import _temporary_name
from tests.store.sentence_readers import IGNORE_DASK, SENTENCE_READERS
from tests.store.support import LENGTHS, make_store

pl, tensorstore = (
    pytest.importorskip(name, reason=f"{name} is not installed: pip install '.[test-all]'")
    for name in ("polars", "tensorstore")
)
pytestmark = pytest.mark.slow
DTYPES = pytest.mark.parametrize("dtype", ["float16", "float32"])
WITH_INT8 = pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])


@pytest.fixture(params=product(("none", "zstd", "blosc"), ("none", "crc32c")), ids="-".join)
def encoded(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings of `make_store`: each compression and checksum."""
    return dict(zip(("compression", "checksum"), request.param, strict=True))


@WITH_INT8
def test_tensorstore(tmp_path: Path, dtype: str, encoded: dict[str, Any]) -> None:
    """tensorstore has no strings: the states' names come from the manifest, the tokens from sentences/, as the page says."""
    written = make_store(str(tmp_path / "store"), dtype=dtype, **encoded)

    def array(name: str) -> Any:
        kvstore = {"driver": "file", "path": str(tmp_path / "store" / "states.zarr" / name)}
        return tensorstore.open(
            {"driver": "zarr3", "kvstore": kvstore}, read=True, open=True
        ).result()

    states = array("states")
    assert states.domain.labels == ("row", "state", "channel")
    assert states.dtype.name == dtype
    starts = array("sentence_start").read().result()
    assert starts.tolist() == written.starts
    for sentence in range(len(LENGTHS)):
        own = slice(int(starts[sentence]), int(starts[sentence + 1]))
        rows = states[own].read().result()
        if dtype == "int8":
            rows = rows * array("scale")[own].read().result()[..., None]
        np.testing.assert_array_equal(rows, written.states[written.rows(sentence)])
    if dtype != "int8":
        np.testing.assert_array_equal(
            states.read().result(), elmo_store.open(written.root.url()).read()
        )


@WITH_INT8
def test_xarray(tmp_path: Path, dtype: str, encoded: dict[str, Any]) -> None:
    written = make_store(str(tmp_path / "store"), dtype=dtype, **encoded)
    with xarray.open_zarr(tmp_path / "store" / "states.zarr") as data:
        assert data.states.dims == ("row", "state", "channel")
        assert data.states.dtype == dtype
        states = (
            data.states * data[data.states.attrs["multiply_by"]] if dtype == "int8" else data.states
        )
        np.testing.assert_array_equal(states.values, written.states)
        np.testing.assert_array_equal(
            states.sel(state="bwd1")[10:20].values, written.states[10:20, 2]
        )
        assert [str(token) for token in data.token.values] == written.row_tokens
        assert data.sentence_start.values.tolist() == written.starts
        assert data.attrs == {"format": "elmo-store", "format_version": 1}


class _Counting(LocalStore):
    """A folder for zarr that remembers which keys it was asked for."""

    def __init__(self, root: Path, asked: list[str]) -> None:
        super().__init__(root, read_only=True)
        self.asked = asked

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        self.asked.append(key)
        return await super().get(key, prototype, byte_range)


def test_xarray_opens_without_reading_rows_or_tokens(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "store"))
    asked: list[str] = []
    with xarray.open_zarr(
        _Counting(tmp_path / "store" / "states.zarr", asked), chunks=None
    ) as data:
        assert "token" not in data.indexes
        assert not [
            key for key in asked if key.startswith(("states/c", "token/c", "sentence_start/c"))
        ]
        np.testing.assert_array_equal(data.states[3].values, written.states[3])
        assert not [key for key in asked if key.startswith("token/c")]
        assert [str(token) for token in data.token[20:22].values] == written.row_tokens[20:22]
        assert {key for key in asked if key.startswith("token/c")} == {"token/c/1"}


def test_zarr_with_and_without_the_gathered_metadata(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "store"))
    for gathered in (True, False):
        group = zarr.open_group(
            tmp_path / "store" / "states.zarr", mode="r", use_consolidated=gathered
        )
        assert sorted(name for name, _ in group.arrays()) == [
            "sentence_start",
            "state",
            "states",
            "token",
        ]
        states = group["states"]
        assert isinstance(states, zarr.Array)
        np.testing.assert_array_equal(states[:], written.states)


def test_xarray_on_s3(s3_url: str) -> None:
    written = make_store(f"{s3_url}/foreign/xarray", store_forms=("zarr",))
    with xarray.open_zarr(f"{s3_url}/foreign/xarray/states.zarr") as data:
        np.testing.assert_array_equal(data.states[7:9].values, written.states[7:9])


@DTYPES
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_duckdb(tmp_path: Path, dtype: str, compression: str) -> None:
    written = make_store(
        str(tmp_path / "store"), store_forms=("parquet",), dtype=dtype, compression=compression
    )
    with duckdb.connect() as connection:
        found = connection.execute(
            "select row, token, sentence, index_in_sentence, fwd1 from read_parquet(?) where sentence in (1, 3) order by row",
            [str(tmp_path / "store" / "states" / "*.parquet")],
        ).fetchall()
        rows = [*range(3, 10), *range(10, 31)]
        assert [row[:4] for row in found] == [
            (i, written.row_tokens[i], written.sentence[i], written.index[i]) for i in rows
        ]
        np.testing.assert_array_equal(
            np.array([row[4] for row in found], dtype), written.states[3:31, 1]
        )
        joined = connection.execute(
            "select count(*) from read_parquet(?) t join read_parquet(?) s using (sentence) "
            "where t.row = s.first_row + t.index_in_sentence and s.tokens[t.index_in_sentence + 1] = t.token",
            [
                str(tmp_path / "store" / "states" / "*.parquet"),
                str(tmp_path / "store" / "sentences" / "part-*.parquet"),
            ],
        ).fetchone()
    assert joined == (sum(LENGTHS),)


@DTYPES
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_polars(tmp_path: Path, dtype: str, compression: str) -> None:
    written = make_store(
        str(tmp_path / "store"), store_forms=("parquet",), dtype=dtype, compression=compression
    )
    frame = pl.read_parquet(tmp_path / "store" / "states" / "*.parquet").sort("row")
    assert frame["token"].to_list() == written.row_tokens
    for i, name in enumerate(written.manifest.states):
        np.testing.assert_array_equal(np.array(frame[name].to_list(), dtype), written.states[:, i])


@DTYPES
def test_pyarrow(tmp_path: Path, dtype: str) -> None:
    written = make_store(str(tmp_path / "store"), dtype=dtype)
    table = pq.read_table(tmp_path / "store" / "states")
    assert table["row"].to_pylist() == list(range(len(written.states)))
    vectors = table["bwd2"].combine_chunks()
    np.testing.assert_array_equal(vectors.flatten().to_numpy().reshape(-1, 8), written.states[:, 4])


@IGNORE_DASK
@pytest.mark.parametrize("boundaries", [False, True])
@pytest.mark.parametrize("reader", SENTENCE_READERS)
def test_the_folder_of_sentences_is_their_table(
    tmp_path: Path, reader: str, boundaries: bool
) -> None:
    written = make_store(str(tmp_path / "store"), store_forms=("parquet",), boundaries=boundaries)
    read, paths = SENTENCE_READERS[reader]
    for path in paths:
        table = read(str(tmp_path / "store" / path))
        assert table.column_names[:7] == [
            "sentence",
            "id",
            "source",
            "position",
            "first_row",
            "n_tokens",
            "tokens",
        ]
        assert table["sentence"].to_pylist() == list(range(len(LENGTHS)))
        assert table["id"].to_pylist() == [f"doc.txt:{i}" for i in range(len(LENGTHS))]
        assert [list(tokens) for tokens in table["tokens"].to_pylist()] == written.tokens
        assert table["first_row"].to_pylist() == written.starts[:-1]


@IGNORE_DASK
@pytest.mark.parametrize("reader", SENTENCE_READERS)
def test_a_file_that_has_yet_to_get_its_name_gives_no_rows(tmp_path: Path, reader: str) -> None:
    """As a job that writes, or was killed, has one. Polars takes every file of a folder: it fails there, and says of which."""
    written = make_store(str(tmp_path / "store"))
    part = layout.sentences_part(0)
    whole = written.root.get(part)
    read, paths = SENTENCE_READERS[reader]
    place = Path(written.root.path(part))
    for so_far in (whole, whole[:100]):
        place.with_name(_temporary_name(place.name)).write_bytes(so_far)
        for path in paths:
            if (reader, path) == ("polars", "sentences"):
                with pytest.raises(
                    pl.exceptions.InvalidOperationError, match="different file extensions"
                ):
                    read(str(tmp_path / "store" / path))
            else:
                assert read(str(tmp_path / "store" / path))["sentence"].to_pylist() == list(
                    range(len(LENGTHS))
                )


def test_every_file_among_the_sentences_has_their_schema(tmp_path: Path) -> None:
    make_store(str(tmp_path / "store"))
    files = [path for path in (tmp_path / "store" / "sentences").rglob("*") if path.is_file()]
    assert len(files) == 3
    assert all(pq.read_schema(path).equals(layout.SENTENCES_SCHEMA) for path in files)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_eight_bits_in_one_expression(tmp_path: Path, compression: str) -> None:
    """Those of the format page, for DuckDB and Polars; tests/pages has Spark's."""
    written = make_store(
        str(tmp_path / "store"), store_forms=("parquet",), dtype="int8", compression=compression
    )
    files = str(tmp_path / "store" / "states" / "*.parquet")
    with duckdb.connect() as connection:
        expression = "list_transform(fwd1, lambda q: q * fwd1_scale)"
        found = connection.execute(
            f"select {expression} from read_parquet(?) order by row", [files]
        ).fetchall()
    np.testing.assert_array_equal(
        np.array([row[0] for row in found], np.float32), written.states[:, 1]
    )
    frame = pl.read_parquet(files).sort("row").select(v=pl.col("fwd1") * pl.col("fwd1_scale"))
    np.testing.assert_array_equal(frame["v"].to_numpy(), written.states[:, 1])
    for path in (
        tmp_path / "store" / "states"
    ).iterdir():  # a number takes a byte, where PLAIN would take four
        group = pq.read_metadata(path).row_group(0)
        names = [group.column(i).path_in_schema for i in range(group.num_columns)]
        assert "RLE_DICTIONARY" in group.column(names.index("fwd1.list.element")).encodings


def test_xarray_and_dask_of_an_int8_store(tmp_path: Path) -> None:
    written = make_store(str(tmp_path / "store"), dtype="int8", store_forms=("zarr",))
    data = elmo_store.open(written.root.url()).to_xarray(chunks={})
    floats = data.states * data.scale  # nothing is read yet
    assert floats.dtype == np.float32
    np.testing.assert_array_equal(
        floats.sel(state="fwd2")[20:30].compute(), written.states[20:30, 3]
    )


WHOLE = {"row": (32, 32, 6), "state": (5,), "channel": (8,)}


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ({}, WHOLE),
        ("auto", WHOLE),
        ({"row": "auto"}, WHOLE),
        ({"row": 64}, WHOLE | {"row": (64, 6)}),
        ({"row": -1, "state": "auto"}, WHOLE | {"row": (70,)}),
    ],
)
def test_dask_reads_whole_shards(tmp_path: Path, dtype: str, chunks: Any, expected: Any) -> None:
    written = make_store(
        str(tmp_path / "store"),
        lengths=(10,) * 7,
        parts=(7,),
        dtype=dtype,
        shard_rows=32,
        chunk_rows=8,
    )
    data = elmo_store.open(written.root.url()).to_xarray(chunks=chunks)
    assert data.states.chunksizes == expected
    assert data.token.chunksizes == {"row": expected["row"]}
    if dtype == "int8":
        assert data.scale.chunksizes == {axis: expected[axis] for axis in ("row", "state")}
    states = data.states * data.scale if dtype == "int8" else data.states
    np.testing.assert_array_equal(states.compute(), written.states)
