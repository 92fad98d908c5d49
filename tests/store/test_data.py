"""Bytes in pieces: put as they lie, and joined for clients that take them whole."""

from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.format.markers import ObjectRecord, put_objects
from elmo_store.storage.data import joined, size_of
from elmo_store.storage.root import Root


@given(st.lists(st.binary(max_size=9), max_size=4))
def test_joined(pieces: list[bytes]) -> None:
    found = joined(
        tuple(
            np.frombuffer(piece, np.uint8).data if i % 2 else piece
            for i, piece in enumerate(pieces)
        )
    )
    assert found == b"".join(pieces)
    assert size_of(tuple(pieces)) == len(found)


@pytest.mark.parametrize("url", ["{}", "memory://pieces"])
def test_pieces_are_put_and_recorded_as_the_whole(tmp_path: Path, url: str) -> None:
    root, pieces = Root(url.format(tmp_path)), (b"ab", np.arange(5, dtype=np.uint8).data, b"z")
    records, _ = put_objects(root, [("a/b", pieces), ("c", bytearray(b"whole"))])
    want = b"ab\x00\x01\x02\x03\x04z"
    assert root.get("a/b") == want
    assert records == (
        ObjectRecord("a/b", 8, f"{google_crc32c.value(want):08x}"),
        ObjectRecord.of("c", b"whole"),
    )
