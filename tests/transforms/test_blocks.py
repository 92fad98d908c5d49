"""Compressed files that are entered at their blocks: every record in exactly one range, as in the file read whole."""

import gzip
import struct
import zlib
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.transforms.reading import write
from transforms.inputs.boundaries import BGZIP, BLOCK, LINE, SEEKABLE, TEXT, block_at, frame_starts, is_bgzip, text_of_range
from transforms.inputs.records import BlockRange, InputError, ReadSettings, Reject, Sentence, Split, Stream, WholeFile, split_as
from transforms.readers import open_split, read_split
from transforms.stages.split import plan_splits

LINES = ["a b\n", "\n", "c d e .\n", "   \n", "\r\n", "f\r\n", "g h", "x" * 40 + "\n"]


def bgzip(text: bytes, block_bytes: int) -> bytes:
    """As bgzip writes it: members of their own length, an empty one at the end."""
    stored = bytearray()
    for place in [*range(0, len(text), block_bytes), len(text)]:
        part = text[place : place + block_bytes]
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(part) + packer.flush()
        header = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff\x06\x00BC\x02\x00" + struct.pack("<H", len(packed) + 25)
        stored += header + packed + struct.pack("<II", zlib.crc32(part), len(part))
    return bytes(stored)


def seekable(text: bytes, frame_bytes: int, checksums: bool = False) -> bytes:
    """As zstd's seekable format has it: frames, and a table of them in a frame to be skipped."""
    frames = [
        bytes(pa.compress(text[i : i + frame_bytes], "zstd", asbytes=True)) for i in range(0, max(1, len(text)), frame_bytes)
    ]
    entries = b"".join(struct.pack("<II", len(one), frame_bytes) + (bytes(4) if checksums else b"") for one in frames)
    footer = struct.pack("<IB", len(frames), 0x80 if checksums else 0) + struct.pack("<I", 0x8F92EAB1)
    return b"".join(frames) + struct.pack("<II", 0x184D2A5E, len(entries) + len(footer)) + entries + footer


@examples(60)
@given(
    lines=st.lists(st.sampled_from(LINES), max_size=40),
    block_bytes=st.integers(1, 60),
    places=st.lists(st.integers(0, 3000), max_size=4),
    unit=st.sampled_from([LINE, BLOCK, TEXT]),
    kind=st.sampled_from([BGZIP, SEEKABLE]),
)
def test_ranges_are_the_text_in_order(lines: list[str], block_bytes: int, places: list[int], unit: str, kind: str) -> None:
    text = "".join(lines).encode()
    stored = bgzip(text, block_bytes) if kind == BGZIP else seekable(text, block_bytes)

    def fetch(first: int, last: int) -> bytes:
        return stored[first:last]

    size = len(stored)
    starts = frame_starts(fetch, size)
    inner = places if kind == BGZIP else [starts[place % len(starts)] for place in places]
    edges = [0, *sorted(min(place, size) for place in inner), size]
    found = [b"".join(text_of_range(kind, fetch, span, size, unit)) for span in pairwise(edges)]
    assert b"".join(found) == text
    for part in found[:-1]:
        assert not part or part.endswith(b"\n") or part == text[-len(part) :]


def test_bytes_that_look_like_a_block_are_none() -> None:
    header = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff\x06\x00BC\x02\x00" + struct.pack("<H", 99)
    assert is_bgzip(header)
    assert not is_bgzip(gzip.compress(b"a"))
    text = header * 20
    packer = zlib.compressobj(0, zlib.DEFLATED, -15)  # stored, not compressed: the text shows through
    packed = packer.compress(text) + packer.flush()
    first = header[:16] + struct.pack("<H", len(packed) + 25) + packed + struct.pack("<II", zlib.crc32(text), len(text))
    stored = first + bgzip(b"end\n", 9)
    assert block_at(BGZIP, lambda a, b: stored[a:b], 1, len(stored)) == len(first)


@pytest.mark.parametrize("checksums", [False, True])
def test_the_table_of_frames(checksums: bool) -> None:
    data = seekable(b"word\n" * 100, 50, checksums)
    starts = frame_starts(lambda a, b: data[a:b], len(data))
    assert len(starts) == 10
    assert all(data[start : start + 4] == b"\x28\xb5\x2f\xfd" for start in starts)
    for bad in (data[:-1], data[:-20] + data[-19:], b"", bytes(pa.compress(b"word", "zstd", asbytes=True))):
        assert frame_starts(lambda a, b, bad=bad: bad[max(0, a) : b], len(bad)) == []  # type: ignore[misc]


def of(splits: list[Split], read: ReadSettings) -> list[tuple[str, ...]]:
    return [r.tokens for split in splits for r in read_split(split, read) if isinstance(r, Sentence)]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("kind", ["lines", "text", "jsonl"])
def test_a_large_file_in_blocks_is_read_by_ranges(tmp_path: Path, kind: str, suffix: str) -> None:
    line = {"lines": "word {} here\n", "text": "It is {} here. And there.\n\n", "jsonl": '{{"text": "It is {}. So."}}\n'}[kind]
    data = "".join(line.format(i * i * 7919 % 10007) for i in range(3000)).encode()
    path = write(tmp_path / f"a.{suffix}", bgzip(data, 4000) if suffix == "gz" else seekable(data, 4000))
    read = ReadSettings()
    splits = plan_splits([str(path)], kind, read, range_bytes=2000)
    assert len(splits) > 3
    assert all(isinstance(split, BlockRange) for split in splits)
    plain = write(tmp_path / "plain", data)
    assert of(splits, read) == of(plan_splits([str(plain)], kind, read), read)
    stored = 0
    for split in splits:
        source, records = open_split(split, read)
        list(records)
        stored += source.bytes_read
    assert stored == path.stat().st_size  # every stored byte is counted once, whoever looked at it


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_damage_in_a_block_names_the_file(tmp_path: Path, suffix: str) -> None:
    data = b"".join(b"word %d\n" % (i * 7919 % 10007) for i in range(5000))
    stored = bytearray(bgzip(data, 4000) if suffix == "gz" else seekable(data, 4000))
    # Frames of zstd without a checksum show damage only where they can't be decoded any more: in their headers.
    first = len(stored) // 2 if suffix == "gz" else frame_starts(lambda a, b: bytes(stored[a:b]), len(stored))[5]
    for place in range(first, first + 200):
        stored[place] ^= 0x55
    path = write(tmp_path / f"a.{suffix}", bytes(stored))
    with pytest.raises(InputError, match=r"a\.(gz|zst): the (bgzip|seekable zstd) file is (damaged|cut short)"):
        of(plan_splits([str(path)], "lines", ReadSettings(), range_bytes=2000), ReadSettings())
    reject = ReadSettings(on_bad_file="reject")
    (split,) = plan_splits([str(path)], "lines", reject, range_bytes=2000)
    *found, last = read_split(split_as(WholeFile, split), reject)
    texts = [" ".join(record.tokens) for record in found if isinstance(record, Sentence)]
    assert isinstance(split, Stream)
    assert isinstance(last, Reject)
    assert texts[:100] == data.decode().split("\n")[: 100 if suffix == "gz" else 0]  # of zstd a MiB before damage is lost with it
