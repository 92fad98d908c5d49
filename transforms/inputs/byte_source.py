"""The bytes of a piece: opened, checked to be the version that was planned, cut to its range, decompressed, as UTF-8.

Truncation and corruption are `InputError`s that name the file and the byte.
"""

import codecs
import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import fsspec

from elmo_store.storage.root import Root
from transforms.inputs.blocks import block_at, text_of_range
from transforms.inputs.boundaries import Fetch, boundary, unit_of
from transforms.inputs.decompress import READ_BYTES, checked_compression, decompressed
from transforms.inputs.filesystem import filesystem_of
from transforms.inputs.records import DamagedInputError, FileIdentity, InputError, Piece

RANGE_STEP = 8 << 20  # bytes of one request within a range
OPEN_BYTES = 4 << 20  # read-ahead of a file that is read from its beginning
UTF8 = ("utf-8", "utf8")
# Text takes 2 to 20 times its compressed size. A stream that has given more than a GiB, and 250 times what was read of it, is
# refused: it would fill a disk with nothing.
BOMB_BYTES, BOMB_RATIO = 1 << 30, 250


def bomb_reason(kind: str, given: int, stored: int) -> str:
    """What is said of a stream that is no text."""
    return (
        f"the {kind} stream gave {given} bytes from {stored} stored ones, more than {BOMB_RATIO} times as many: no text does "
        "that; if it is meant, decompress it and name the result"
    )


class ByteSource:
    """The bytes of a piece, in order, with count and sha256 of what was read as it is stored.

    ``n_positions`` and ``n_ordinals`` are for the readers: how many positions (lines, rows) and ordinals (paragraphs) were
    passed.
    """

    def __init__(
        self,
        piece: Piece,
        storage_options: Mapping[str, Any] | None = None,
        *,
        encoding: str = "utf-8",
        root: Root | None = None,
    ) -> None:
        """``root``: the store, in which the bytes of a blob stand."""
        self.url = piece.url
        self.n_positions = self.n_ordinals = 0
        self.bytes_read = 0
        self._piece = piece
        self._options = dict(storage_options or {})
        self._encoding = encoding
        self._root = root
        self._sha256 = hashlib.sha256()

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
        filesystem, path = self._found()
        try:
            return filesystem.open(path, "rb", block_size=OPEN_BYTES)
        except Exception as error:  # every filesystem has errors of its own
            raise InputError(self.url, f"can't be opened: {type(error).__name__}: {error}") from error

    def text(self) -> Iterator[bytes]:
        """The piece's text in chunks, decompressed, in UTF-8, counted as stored. InputError where it is damaged."""
        if self._piece.blob:
            yield from self._blob()
        elif self._piece.stop is not None:
            yield from (self._blocks if self._piece.blocks else self._range)(self._piece.start, self._piece.stop)
        elif self._encoding in UTF8:
            yield from self._decompressed()
        else:
            yield from self._recoded()

    def _found(self) -> tuple[fsspec.AbstractFileSystem, str]:
        try:
            filesystem, path = filesystem_of(self.url, self._options)
            filesystem.invalidate_cache()
            found = identity_of(filesystem.info(path))
        except FileNotFoundError as error:
            raise InputError(self.url, "the file is gone since the job was planned: put it back and run again") from error
        except Exception as error:  # every filesystem has errors of its own
            raise InputError(self.url, f"can't be opened: {type(error).__name__}: {error}") from error
        if found != self._piece.identity:
            raise InputError(
                self.url,
                f"the file changed after the job was planned ({self._piece.identity} then, {found} now): "
                "run the same command again",
            )
        return filesystem, path

    def _blob(self) -> Iterator[bytes]:
        if self._root is None:
            raise InputError(self.url, f"its blob {self._piece.blob} stands in a store, and none was given")
        data = self._root.get(self._piece.blob)
        self.count(data)
        yield data

    def _range(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from the first boundary at ``start`` to the first at ``stop``."""
        fetch = self._fetcher()
        unit, size = unit_of(self._piece.format, self._piece.line_ends), self._piece.identity.size
        first, last = boundary(fetch, start, size, unit), boundary(fetch, stop, size, unit)
        for place in range(first, last, RANGE_STEP):
            data = fetch(place, min(place + RANGE_STEP, last))
            self.count(data)
            yield data

    def _blocks(self, start: int, stop: int) -> Iterator[bytes]:
        """The text of the blocks from the first at ``start`` to the first at ``stop``; counted are its bytes as stored."""
        fetch, piece = self._fetcher(), self._piece
        size, unit = piece.identity.size, unit_of(piece.format, piece.line_ends)
        first, last = block_at(piece.blocks, fetch, start, size), block_at(piece.blocks, fetch, stop, size)

        def counted(begin: int, end: int) -> bytes:
            data = fetch(begin, end)
            if first + self.bytes_read == begin < last:  # the others are looks at what comes before and after
                self.count(data[: last - begin])
            return data

        try:
            given = 0
            for data in text_of_range(piece.blocks, counted, start, stop, size, unit):
                given += len(data)
                if given > BOMB_BYTES and given > BOMB_RATIO * self.bytes_read:
                    raise InputError(self.url, bomb_reason(piece.blocks, given, self.bytes_read))
                yield data
        except EOFError as error:
            raise InputError(self.url, f"the {piece.blocks} file is cut short after byte {first}") from error
        except ValueError as error:
            raise InputError(self.url, f"the {piece.blocks} file is damaged between bytes {first} and {last}: {error}") from error

    def _fetcher(self) -> Fetch:
        """What fetches bytes of the file, which was checked to be the version that was planned."""
        filesystem, path = self._found()

        def fetch(first: int, last: int) -> bytes:
            try:
                data: bytes = filesystem.cat_file(path, start=first, end=last)
                return data
            except Exception as error:
                raise InputError(self.url, f"can't be read at byte {first}: {type(error).__name__}: {error}") from error

        return fetch

    def _stored(self) -> Iterator[bytes]:
        """The whole file as it is stored, counted."""
        place = 0
        with self.open() as file:
            try:
                while data := file.read(READ_BYTES):
                    place += len(data)
                    self.count(data)
                    yield bytes(data)
            except Exception as error:
                raise InputError(self.url, f"can't be read at byte {place}: {type(error).__name__}: {error}") from error

    def _decompressed(self) -> Iterator[bytes]:
        stored = Chunks(self._stored())
        head = stored.peek(10)
        kind = checked_compression(self.url, head)
        if not kind:
            yield from stored
            return
        given = 0  # decompressed bytes so far, for errors
        try:
            for data in decompressed(kind, stored):
                given += len(data)
                if given > BOMB_BYTES and given > BOMB_RATIO * self.bytes_read:
                    raise DamagedInputError(self.url, bomb_reason(kind, given, self.bytes_read))
                yield data
        except EOFError as error:
            raise DamagedInputError(
                self.url,
                f"the {kind} stream is cut short: it ends at stored byte {self.bytes_read} (text byte {given}) in the middle",
            ) from error
        except ValueError as error:
            raise DamagedInputError(
                self.url, f"the {kind} stream is damaged near stored byte {self.bytes_read} (text byte {given}): {error}"
            ) from error

    def _recoded(self) -> Iterator[bytes]:
        """Decoded from the piece's encoding and given as UTF-8. What the encoding does not have comes as invalid UTF-8."""
        try:
            decoder = codecs.getincrementaldecoder(self._encoding)("surrogateescape")
            for data in self._decompressed():
                yield decoder.decode(data).encode("utf-8", "surrogateescape")
            yield decoder.decode(b"", True).encode("utf-8", "surrogateescape")
        except UnicodeError as error:
            raise InputError(self.url, f"is not text in {self._encoding} ({error}): give another --encoding") from error


class Chunks:
    """Chunks as a file for reading; the first bytes may be looked at beforehand."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""
        self.closed = False

    def close(self) -> None:
        """For Arrow, which closes what it read from."""
        self.closed = True

    def peek(self, size: int) -> bytes:
        """The first ``size`` bytes, fewer if there are no more."""
        while len(self._held) < size and (chunk := next(self._chunks, b"")):
            self._held += chunk
        return self._held[:size]

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, none at the end."""
        if not self._held:
            self._held = next(self._chunks, b"")
        size = len(self._held) if size < 0 else size
        data, self._held = self._held[:size], self._held[size:]
        return data

    def __iter__(self) -> Iterator[bytes]:
        if self._held:
            yield self._held
        yield from self._chunks


def identity_of(info: Mapping[str, Any]) -> FileIdentity:
    """Size and version of what a filesystem's ``info`` describes: ETag, checksum or time of change, whichever it has."""
    names = (
        "ETag",
        "etag",
        "md5Hash",
        "checksum",
        "crc32c",
        "blob_id",
        "mtime",
        "LastModified",
        "Last-Modified",
        "last_modified",
        "updated",
        "created",
    )
    for name in names:
        value = info.get(name)
        if isinstance(value, datetime):
            value = value.timestamp()  # listings and single answers of one filesystem may differ here
        if value:
            return FileIdentity(int(info.get("size") or 0), f"{name}={value}")
    return FileIdentity(int(info.get("size") or 0), "")
