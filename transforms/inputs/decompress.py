"""Which compression a file has, and its bytes decompressed: gzip, bzip2, xz and zstd, in bounded memory.

The compression is what the first bytes say; a name that says otherwise (``a.gz`` that holds no gzip) is an error, not a guess.
Several members one after the other are one text, as the command-line tools have it.

Damage must be an error: zstandard's ``stream_reader`` passes over a frame that is cut short, so zstd is Arrow's; `bz2.BZ2File`
and `lzma.LZMAFile` pass over damage after the first stream, and Arrow's bzip2 fails on an empty one, so these two are a loop.
"""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from os.path import splitext
from typing import Any

import pyarrow as pa

from transforms.inputs.records import DamagedInputError, file_name

SUFFIXES = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bzip2",
    ".xz": "xz",
    ".zst": "zstd",
    ".zstd": "zstd",
}
READ_BYTES = 1 << 18  # asked of the stored stream at a time
STREAM_BYTES = 1 << 14  # asked of it for bzip2 and xz, whose text comes as soon as it can
OUTPUT_BYTES = (
    1 << 20
)  # most that one step gives; more than a block of bzip2, whose checksum comes after it

# Text takes 2 to 20 times its compressed size. A stream that has given more than a GiB, and 250 times what was read of it, is
# refused: it would fill a disk with nothing.
BOMB_BYTES, BOMB_RATIO = 1 << 30, 250


def check_no_bomb(url: str, kind: str, n_text: int, n_stored: int) -> None:
    """Raise DamagedInputError if ``n_stored`` bytes of an input gave so many bytes of text as no text does."""
    if n_text > BOMB_BYTES and n_text > BOMB_RATIO * n_stored:
        raise DamagedInputError(
            url,
            f"the {kind} stream gave {n_text} bytes from {n_stored} stored ones, more than {BOMB_RATIO} times as many: "
            "no text does that; if it is meant, decompress it and name the result",
        )


def compression_of_name(name: str) -> str:
    """``gzip|bzip2|xz|zstd`` by the ending of ``name``, ``""`` for any other."""
    return SUFFIXES.get(splitext(file_name(name))[1].lower(), "")


def compression_of_bytes(head: bytes) -> str:
    """``gzip|bzip2|xz|zstd`` by the first bytes (10 are enough), ``""`` for any other."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    # "BZh9" could begin a text; the six bytes after it are those of a block or of an empty stream.
    if head[:3] == b"BZh" and head[3:4].isdigit() and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    if head.startswith(b"\x28\xb5\x2f\xfd") or (
        head[1:4] == b"\x2a\x4d\x18" and head[:1] >= b"\x50" and head[:1] <= b"\x5f"
    ):
        return "zstd"  # a frame, or a frame to be skipped as parallel compressors write
    return ""


def checked_compression(url: str, head: bytes) -> str:
    """The compression of an input by its first bytes; DamagedInputError if its name says another. An empty file is plain."""
    named, detected = compression_of_name(url), compression_of_bytes(head)
    if head and named and named != detected:
        raise DamagedInputError(
            url,
            f"the name says {named}, but its first bytes ({head[:6].hex(' ')}) say {detected or 'no compression that is known'}: "
            "the file is damaged or needs another name",
        )
    return detected


def decompressed(kind: str, stored: Any) -> Iterator[bytes]:
    """The text of the compressed stream ``stored`` (a file to read bytes from), in chunks of about `OUTPUT_BYTES` at most.

    EOFError where it is cut short, ValueError where it is damaged.
    """
    try:
        if kind in ("bzip2", "xz"):
            yield from _streams(kind, stored)
            return
        # read1: what comes before damage is given before the error
        read = (
            gzip.GzipFile(fileobj=stored, mode="rb").read1
            if kind == "gzip"
            else pa.CompressedInputStream(stored, kind).read
        )
        while data := read(OUTPUT_BYTES):
            yield bytes(data)
    except (zlib.error, lzma.LZMAError, OSError) as error:  # Arrow's errors are OSErrors
        if "Truncated" in str(error):
            raise EOFError(str(error)) from error
        raise ValueError(str(error)) from error


def _streams(kind: str, stored: Any) -> Iterator[bytes]:
    """Streams one after the other; between those of xz NULs may stand."""
    data = stored.read(STREAM_BYTES)
    while data:
        if kind == "xz" and not (data := data.lstrip(b"\0")):
            data = stored.read(STREAM_BYTES)
            continue
        decompressor = (
            lzma.LZMADecompressor(format=lzma.FORMAT_XZ) if kind == "xz" else bz2.BZ2Decompressor()
        )
        while not decompressor.eof:
            if output := decompressor.decompress(data, OUTPUT_BYTES):
                yield output
            data = stored.read(STREAM_BYTES) if decompressor.needs_input else b""
            if decompressor.needs_input and not data:
                raise EOFError("the stream ends in its middle")
        data = decompressor.unused_data or stored.read(STREAM_BYTES)


def raising(error: Exception) -> Iterator[Any]:
    """An iterator that raises ``error``."""
    yield from ()
    raise error


class Chunks:
    """Chunks as a file for reading; the first bytes may be looked at beforehand."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""
        self.n_taken = 0  # bytes that were read from here, not only looked at
        self.closed = False  # Arrow asks, and closes what it read from

    def close(self) -> None:
        self.closed = True

    def peek(self, size: int) -> bytes:
        """The first ``size`` bytes, fewer if there are no more. Damage is told when what comes before it was read."""
        try:
            while len(self._held) < size and (chunk := next(self._chunks, b"")):
                self._held += chunk
        except DamagedInputError as error:
            self._chunks = raising(error)
        return self._held[:size]

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes, none at the end."""
        if not self._held:
            self._held = next(self._chunks, b"")
        data, self._held = self._held[:size], self._held[size:]
        self.n_taken += len(data)
        return data

    def __iter__(self) -> Iterator[bytes]:
        if self._held:
            yield self._held
        yield from self._chunks
