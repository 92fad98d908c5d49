"""Bytes of one input, decompressed on the way: plain, gzip, bzip2, xz and zstd, in bounded memory.

May import transforms.records, fsspec, zstandard and the standard library. The compression is what the first bytes say; a
name that says otherwise (``a.gz`` that holds no gzip) is an error, not a guess. Several members one after the other are
one text, as the command-line tools have it. Truncation and corruption are `InputError`s that name the file and the byte.
"""

import bz2
import hashlib
import lzma
import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol

import fsspec
import zstandard

from transforms.records import FileIdentity, InputError, Piece

SUFFIXES = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd", ".zstd": "zstd"}
READ_BYTES = 1 << 18  # asked of the filesystem at a time
OUTPUT_BYTES = 1 << 20  # most that one step of a decompressor gives (zstd: see _FEED)
# zstandard has no bound on what one call gives back; half a kilobyte can't become more than 16 MiB.
_FEED = {"gzip": READ_BYTES, "bzip2": READ_BYTES, "xz": READ_BYTES, "zstd": 1 << 9}
_BROKEN = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError, ValueError)


def compression_of_name(name: str) -> str:
    """``gzip|bzip2|xz|zstd`` by the ending of ``name``, ``""`` for any other."""
    base = name.rpartition("/")[2].lower()
    return next((kind for suffix, kind in SUFFIXES.items() if base.endswith(suffix)), "")


def without_suffix(name: str) -> str:
    """``name`` without the ending of a compression."""
    lower = name.lower()
    return next((name[: -len(suffix)] for suffix in SUFFIXES if lower.endswith(suffix)), name)


def compression_of_bytes(head: bytes) -> str:
    """``gzip|bzip2|xz|zstd`` by the first bytes (10 are enough), ``""`` for any other."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    # "BZh9" could begin a text; the six bytes after it are those of a block or of an empty stream.
    if head[:3] == b"BZh" and head[3:4].isdigit() and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and head[:1] >= b"\x50" and head[:1] <= b"\x5f"):
        return "zstd"  # a frame, or a frame to be skipped as parallel compressors write
    return ""


def checked_compression(url: str, head: bytes) -> str:
    """The compression of an input by its first bytes; InputError if its name says another. An empty file is plain."""
    named, found = compression_of_name(url), compression_of_bytes(head)
    if head and named and named != found:
        raise InputError(
            url,
            f"the name says {named}, but its first bytes ({head[:6].hex(' ')}) say {found or 'no compression that is known'}: "
            "the file is damaged or needs another name",
        )
    return found


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


class ByteSource:
    """The bytes of a piece as they are stored, in order, with their count and sha256 (of the bytes that were handed on)."""

    def __init__(self, piece: Piece, storage_options: Mapping[str, Any] | None = None) -> None:
        self.url = piece.url
        self._piece = piece
        self._options = dict(storage_options or {})
        self._sha256 = hashlib.sha256()
        self.bytes_read = 0

    @property
    def sha256(self) -> str:
        """Hexadecimal digest of what `count` was given."""
        return self._sha256.hexdigest()

    def count(self, data: bytes) -> None:
        """Take ``data`` into count and digest."""
        self.bytes_read += len(data)
        self._sha256.update(data)

    def open(self) -> Any:
        """The file, opened for reading bytes, checked to be the version that was planned. InputError otherwise."""
        try:
            filesystem, path = fsspec.core.url_to_fs(self.url, **self._options)
            filesystem.invalidate_cache()
            found = identity_of(filesystem.info(path))
            if found != self._piece.identity:
                raise InputError(
                    self.url,
                    f"the file changed after the job was planned ({self._piece.identity} then, {found} now): "
                    "run the command again, with --overwrite if its output has begun",
                )
            return filesystem.open(path, "rb")
        except InputError:
            raise
        except FileNotFoundError as error:
            raise InputError(self.url, "the file is gone since the job was planned: put it back and run again") from error
        except Exception as error:  # every filesystem has errors of its own
            raise InputError(self.url, f"can't be opened: {type(error).__name__}: {error}") from error

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """Stored bytes from ``start`` on, in chunks, to the end of the file. They are not counted here."""
        place = start
        with self.open() as file:
            try:
                if start:
                    file.seek(start)
                while data := file.read(READ_BYTES):
                    place += len(data)
                    yield bytes(data)
            except InputError:
                raise
            except Exception as error:
                raise InputError(self.url, f"can't be read at byte {place}: {type(error).__name__}: {error}") from error

    def decompressed(self) -> Iterator[bytes]:
        """The whole file in chunks, decompressed, counted as stored. InputError where it is damaged or cut short."""
        stored = self._counted()
        head = b""
        for data in stored:
            head += data
            if len(head) >= 10:
                break
        kind = checked_compression(self.url, head)
        if not kind:
            if head:
                yield head
            yield from stored
            return
        yield from self._decompress(kind, head, stored)

    def _counted(self) -> Iterator[bytes]:
        for data in self.chunks():
            self.count(data)
            yield data

    def _decompress(self, kind: str, head: bytes, stored: Iterator[bytes]) -> Iterator[bytes]:
        given = 0  # decompressed bytes so far, for errors
        place = 0  # stored bytes fed so far
        decompressor: Any = _new(kind)
        fresh = True  # between members: nothing of the next one was seen yet
        members = 0
        for data in _fed(head, stored, _FEED[kind]):
            place += len(data)
            while data:
                if fresh and members and kind in ("gzip", "xz"):
                    data = data.lstrip(b"\0")  # padding that tapes and xz leave between members
                    if not data:
                        break
                try:
                    fresh = False
                    for output in _steps(kind, decompressor, data):
                        given += len(output)
                        yield output
                except _BROKEN as error:
                    raise InputError(
                        self.url,
                        f"the {kind} stream is damaged near stored byte {place - len(data)} (text byte {given}): {error}",
                    ) from error
                if not decompressor.eof:
                    break
                data = decompressor.unused_data
                decompressor, fresh, members = _new(kind), True, members + 1
        if not fresh:
            raise InputError(
                self.url, f"the {kind} stream is cut short: it ends at stored byte {place} (text byte {given}) in the middle"
            )


def _fed(head: bytes, stored: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The stored bytes again, at most ``size`` at a time."""
    for i in range(0, len(head), size):
        yield head[i : i + size]
    for data in stored:
        for i in range(0, len(data), size):
            yield data[i : i + size]


def _new(kind: str) -> _Decompressor:
    """A decompressor of one member."""
    if kind == "gzip":
        return zlib.decompressobj(wbits=31)
    if kind == "bzip2":
        return bz2.BZ2Decompressor()
    if kind == "xz":
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
    return zstandard.ZstdDecompressor().decompressobj()


def _steps(kind: str, decompressor: Any, data: bytes) -> Iterator[bytes]:
    """What ``data`` becomes, in steps of bounded size, up to the end of the member or of ``data``."""
    if kind == "zstd":
        if output := decompressor.decompress(data):
            yield output
        return
    output = decompressor.decompress(data, OUTPUT_BYTES)
    while True:
        if output:
            yield output
        if decompressor.eof:
            return
        if kind == "gzip":
            if not decompressor.unconsumed_tail:
                return
            output = decompressor.decompress(decompressor.unconsumed_tail, OUTPUT_BYTES)
        else:
            if decompressor.needs_input:
                return
            output = decompressor.decompress(b"", OUTPUT_BYTES)


def identity_of(info: Mapping[str, Any]) -> FileIdentity:
    """Size and version of what a filesystem's ``info`` describes: ETag, checksum or time of change, whichever it has."""
    for name in ("ETag", "etag", "md5Hash", "checksum", "crc32c", "mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            value = value.timestamp()  # listings and single answers of one filesystem may differ here
        if value:
            return FileIdentity(int(info.get("size") or 0), f"{name}={value}")
    return FileIdentity(int(info.get("size") or 0), "")
