"""Shard objects against zarr: it reads what we write, and writes as much as we do."""

from typing import Any
from unittest import mock

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, ZstdCodec
from zarr.core.buffer.cpu import Buffer
from zarr.storage import MemoryStore

from elmo_store.forms import zarr_form
from elmo_store.forms.zarr_form import encode_sentence_chunk, encode_tokens
from elmo_store.forms.zarr_shard import crc32c, encode
from elmo_store.storage.data import joined, pieces_of, size_of
from tests.examples import examples
from tests.store.support import make_manifest

COMPRESSORS: dict[str, Any] = {
    "none": lambda itemsize: None,
    "zstd": lambda itemsize: ZstdCodec(level=1),
    "blosc": lambda itemsize: BloscCodec(
        cname="zstd", clevel=1, shuffle="shuffle", typesize=itemsize, blocksize=1 << 20
    ),
}


def laid_out(states: Any, order: str) -> Any:
    """The same states [n, n_states, channels], in memory one row after the other or one state after the other."""
    return (
        states
        if order == "rows"
        else np.ascontiguousarray(states.transpose(1, 0, 2)).transpose(1, 0, 2)
    )


def _array(
    objects: dict[str, Any], shard_rows: int, chunk_rows: int, like: Any, compression: str
) -> Any:
    _, n_states, channels = like.shape
    return zarr.create_array(
        MemoryStore(objects),
        shape=(shard_rows, n_states, channels),
        shards=(shard_rows, n_states, channels),
        chunks=(chunk_rows, 1, channels),
        dtype=like.dtype,
        compressors=COMPRESSORS[compression](like.dtype.itemsize),
        filters=None,
        fill_value=0,
        config={"write_empty_chunks": True},
    )


@examples(25)
@given(
    data=st.data(),
    chunk_rows=st.integers(1, 9),
    n_chunks=st.integers(1, 5),
    n_states=st.integers(1, 4),
    channels=st.integers(1, 5),
    compression=st.sampled_from(sorted(COMPRESSORS)),
    dtype=st.sampled_from(["float16", "float32"]),
    order=st.sampled_from(["rows", "states"]),
)
def test_zarr_reads_it_and_writes_as_much(
    data: st.DataObject,
    chunk_rows: int,
    n_chunks: int,
    n_states: int,
    channels: int,
    compression: str,
    dtype: str,
    order: str,
) -> None:
    shard_rows = chunk_rows * n_chunks
    n = data.draw(st.integers(1, shard_rows))
    states = np.random.default_rng(n).standard_normal((n, n_states, channels)).astype(dtype)
    parts = laid_out(states, order)
    found = encode(parts, shard_rows=shard_rows, chunk_rows=chunk_rows, compression=compression)
    theirs: dict[str, Any] = {}
    array = _array(theirs, shard_rows, chunk_rows, states, compression)
    array[:n] = states
    assert size_of(found) == len(theirs["c/0/0/0"].to_bytes())
    theirs["c/0/0/0"] = Buffer.from_bytes(joined(found))
    np.testing.assert_array_equal(array[:n], states)
    assert not array[n:].any()


@pytest.mark.parametrize("compression", sorted(COMPRESSORS))
def test_inner_chunks_are_the_bytes_that_zarr_writes(compression: str) -> None:
    states = np.random.default_rng(0).standard_normal((512, 1, 256)).astype(np.float16)
    theirs: dict[str, Any] = {}
    _array(theirs, 512, 512, states, compression)[:] = states
    found = encode(states, shard_rows=512, chunk_rows=512, compression=compression)
    assert joined(found) == theirs["c/0/0/0"].to_bytes()


def test_rows_of_a_larger_array() -> None:
    states = np.random.default_rng(0).standard_normal((40, 6, 8)).astype(np.float32)[3:20, ::2]
    whole = encode(np.ascontiguousarray(states), shard_rows=32, chunk_rows=8, compression="none")
    assert joined(encode(states, shard_rows=32, chunk_rows=8, compression="none")) == joined(whole)


@pytest.mark.parametrize("compression", sorted(COMPRESSORS))
@pytest.mark.parametrize("checksum", ["none", "crc32c"])
@pytest.mark.parametrize("n", [16, 13])
def test_the_order_in_memory_does_not_show(compression: str, checksum: str, n: int) -> None:
    states = np.random.default_rng(0).standard_normal((n, 3, 8)).astype(np.float16)
    settings: dict[str, Any] = {
        "shard_rows": 32,
        "chunk_rows": 8,
        "compression": compression,
        "checksum": checksum,
    }
    assert joined(encode(laid_out(states, "states"), **settings)) == joined(
        encode(states, **settings)
    )


def test_what_lies_state_by_state_is_put_from_where_it_lies() -> None:
    states = laid_out(
        np.random.default_rng(0).standard_normal((13, 3, 8)).astype(np.float16), "states"
    )
    *runs, _ = pieces_of(encode(states[:8], shard_rows=32, chunk_rows=8, compression="none"))
    assert [np.shares_memory(np.frombuffer(run, np.uint8), states) for run in runs] == [True] * 3
    *runs, _ = pieces_of(
        encode(states, shard_rows=32, chunk_rows=8, compression="none")
    )  # each with zeros
    assert [np.shares_memory(np.frombuffer(run, np.uint8), states) for run in runs] == [
        True,
        False,
    ] * 3


@given(st.binary(max_size=300))
def test_crc32c(data: bytes) -> None:
    assert int.from_bytes(crc32c(data), "little") == google_crc32c.value(data)


@examples(25)
@given(tokens=st.lists(st.text(max_size=12), min_size=1, max_size=9), rest=st.integers(0, 4))
def test_chunks_of_tokens_are_the_bytes_that_zarr_writes(tokens: list[str], rest: int) -> None:
    tokens = [token.encode("utf-8", "replace").decode() for token in tokens]
    shard_rows = max(1, len(tokens) + rest)
    theirs: dict[str, Any] = {}
    array: Any = zarr.create_array(
        MemoryStore(theirs), shape=(shard_rows,), chunks=(shard_rows,), dtype="str", compressors=ZstdCodec(level=1), filters=None,
        fill_value="", config={"write_empty_chunks": True},
    )  # fmt: skip
    array[: len(tokens)] = np.array(tokens, dtype=object)
    with mock.patch.object(zarr_form, "TOKENS_AT_ONCE", 4):
        path, found = encode_tokens(make_manifest(shard_rows=shard_rows), 7, tokens)
    assert path == "states.zarr/token/c/7"
    assert found == theirs["c/0"].to_bytes()


@examples(25)
@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_chunks_of_sentence_start_are_the_bytes_that_zarr_writes(entries: list[int]) -> None:
    theirs: dict[str, Any] = {}
    array: Any = zarr.create_array(
        MemoryStore(theirs), shape=(20,), chunks=(20,), dtype="int64", compressors=ZstdCodec(level=1), filters=None, fill_value=0,
        config={"write_empty_chunks": True},
    )  # fmt: skip
    array[: len(entries)] = np.array(entries)
    path, ours = encode_sentence_chunk(
        make_manifest(sentence_chunk=20), 7, np.array(entries, np.int64)
    )
    assert path == "states.zarr/sentence_start/c/7"
    assert ours == theirs["c/0"].to_bytes()
