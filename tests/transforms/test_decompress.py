"""Compressed input: every kind, by name and by first bytes, several members, damage, bombs."""

import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import zstandard

from tests.transforms.reading import one_split, read_split, records, tokens, write
from transforms.inputs.byte_source import ByteSource
from transforms.inputs.decompress import compression_of_bytes, compression_of_name
from transforms.inputs.files import known_format
from transforms.inputs.records import InputError, ReadSettings

TEXT = "".join(f"sentence {i} é \u2028 .\n" for i in range(20_000)).encode()
KINDS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": (".gz", gzip.compress),
    "bzip2": (".bz2", bz2.compress),
    "xz": (".xz", partial(lzma.compress, preset=1)),
    "zstd": (".zst", zstandard.ZstdCompressor(write_checksum=True).compress),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def expand(path: Path) -> bytes:
    return b"".join(ByteSource(one_split(path, "lines")).text())


@kinds
def test_read_by_name_and_by_first_bytes(tmp_path: Path, kind: str) -> None:
    suffix, compress = KINDS[kind]
    data = compress(TEXT)
    assert compression_of_bytes(data[:10]) == kind
    assert compression_of_name(f"a.txt{suffix.upper()}") == kind
    assert known_format(f"a.csv{suffix}") == known_format(f"a.csv{suffix.upper()}") == "csv"
    assert expand(write(tmp_path / f"a.tok{suffix}", data)) == TEXT
    assert expand(write(tmp_path / "unnamed", data)) == TEXT


@kinds
def test_members_one_after_the_other_are_one_text(tmp_path: Path, kind: str) -> None:
    suffix, compress = KINDS[kind]
    padding = b"\0" * 8 if kind in ("gzip", "xz") else b""
    data = compress(b"a\n") + padding + compress(b"") + compress(TEXT) + padding
    assert expand(write(tmp_path / f"a.tok{suffix}", data)) == b"a\n" + TEXT


@kinds
@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_cut_short_is_an_error_with_file_and_byte(tmp_path: Path, kind: str, kept: float) -> None:
    suffix, compress = KINDS[kind]
    data = compress(TEXT)
    path = write(tmp_path / f"a.tok{suffix}", data[: int(len(data) * kept)])
    with pytest.raises(
        InputError,
        match=f"{kind} stream is cut short: it ends at stored byte {int(len(data) * kept)}",
    ) as caught:
        expand(path)
    assert caught.value.url == str(path)


@kinds
def test_damage_is_an_error_with_file_and_byte(tmp_path: Path, kind: str) -> None:
    suffix, compress = KINDS[kind]
    data = bytearray(compress(TEXT))
    for i in range(len(data) // 2, len(data) // 2 + 40):
        data[i] ^= 0xA5
    path = write(tmp_path / f"a.tok{suffix}", bytes(data))
    with pytest.raises(
        InputError, match=r"stream is (damaged near|cut short: it ends at) stored byte \d+"
    ):
        expand(path)


@kinds
def test_rubbish_after_the_end_is_an_error(tmp_path: Path, kind: str) -> None:
    suffix, compress = KINDS[kind]
    with pytest.raises(InputError, match="damaged near"):
        expand(
            write(tmp_path / f"a.tok{suffix}", compress(TEXT) + b"rubbish, and not a little of it")
        )


def test_a_name_that_says_otherwise_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"the name says gzip, but its first bytes .* say no compression"
    ):
        records(write(tmp_path / "a.tok.gz", b"plain text\n"))
    with pytest.raises(InputError, match=r"the name says xz, but .* say gzip"):
        records(write(tmp_path / "a.tok.xz", gzip.compress(b"a\n")))


def test_text_that_looks_like_a_magic_number_is_text(tmp_path: Path) -> None:
    assert tokens(records(write(tmp_path / "a.tok", b"BZh9 is no archive\n"))) == [
        ["BZh9", "is", "no", "archive"]
    ]


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_a_file_of_no_bytes_has_no_sentences(tmp_path: Path, suffix: str) -> None:
    assert records(write(tmp_path / f"a.tok{suffix}", b"")) == []


def test_the_count_is_that_of_the_stored_file(tmp_path: Path) -> None:
    data = gzip.compress(TEXT)
    source = ByteSource(one_split(write(tmp_path / "a.tok.gz", data), "lines"))
    assert b"".join(source.text()) == TEXT
    assert source.bytes_read == len(data)


def test_a_file_that_changed_or_vanished_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tok", b"a\nb\n")
    split = one_split(path)
    write(path, b"a\nb\nc\n")
    with pytest.raises(InputError, match="changed after the job was planned"):
        list(read_split(split, ReadSettings()))
    path.unlink()
    with pytest.raises(InputError, match="there is no such file or folder"):
        list(read_split(split, ReadSettings()))


@pytest.mark.slow
@kinds
def test_a_bomb_expands_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    suffix, compress = KINDS[kind]
    path = write(tmp_path / f"a.tok{suffix}", compress((b"a" * 99 + b"\n") * 400_000))
    assert path.stat().st_size < 1 << 20
    source = ByteSource(one_split(path, "lines"))
    tracemalloc.start()
    try:
        total = sum(len(chunk) for chunk in source.text())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 40_000_000
    assert peak < 20 << 20
