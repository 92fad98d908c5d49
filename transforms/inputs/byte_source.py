"""The text of a split: its file opened, checked to be the version that was planned, cut to the range, decompressed, as UTF-8.

Truncation and corruption are `InputError`s that name the file and the byte.
"""

import codecs
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import fsspec

from elmo_store.format.layout import WORK
from elmo_store.storage.root import Root
from transforms.inputs.archives import HEAD_BYTES, check_no_archive
from transforms.inputs.boundaries import range_bounds, unit_of
from transforms.inputs.decompress import (
    READ_BYTES,
    Chunks,
    check_no_bomb,
    checked_compression,
    decompressed,
)
from transforms.inputs.files import filesystem_of, identity_of, input_errors
from transforms.inputs.records import DamagedInputError, InDocument, InputError, Split

RANGE_STEP = 8 << 20  # bytes of one request within a range
OPEN_BYTES = 4 << 20  # read-ahead of a file that is read from its beginning
UTF8 = ("utf-8", "utf8")
MEASURED_BYTES = (
    1 << 20
)  # of a compressed file, by which it is measured how many a sample of its text takes
PIPED_BYTES = 32 << 20  # of an object that holds a piece of standard input


def piped_paths(size: int) -> list[str]:
    """Where the store holds ``size`` bytes of standard input: `PIPED_BYTES` in each object but the last."""
    return [f"{WORK}/stdin/{number:05d}" for number in range(-(-size // PIPED_BYTES))]


class ByteSource:
    """The text of a split, in order, and what was counted on the way.

    ``bytes_read``: of the file, as stored, that the text so far was made of: not what is only buffered. ``n_positions`` and
    ``n_ordinals`` are for the readers: how many positions (lines, rows) and ordinals (paragraphs) were passed, and ``ends_in``,
    where a further record of the file would stand.
    """

    def __init__(
        self,
        split: Split,
        storage_options: Mapping[str, Any] | None = None,
        *,
        encoding: str = "utf-8",
        root: Root | None = None,
        sample_bytes: int | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            split: What is read.
            storage_options: Of the filesystem that holds the file.
            encoding: Of the text.
            root: The store, which holds what came from standard input.
            sample_bytes: Read only about so many bytes of the text, for an estimate; ``is_cut`` says whether there are more.
        """
        self.split, self.url = split, split.url
        self.n_positions = self.n_ordinals = 0
        self.ends_in = InDocument(0)
        self.bytes_read = 0
        self.sample_bytes, self.is_cut = sample_bytes, False
        self._is_compressed = False
        self._options, self._encoding, self._root = dict(storage_options or {}), encoding, root

    def open(self) -> Any:
        """The file, opened for reading bytes, checked to be the version that was planned. InputError otherwise."""
        filesystem, path = self._checked_file()
        with input_errors(self.url):
            return filesystem.open(path, "rb", block_size=OPEN_BYTES)

    def text(self) -> Iterator[bytes]:
        """The split's text in chunks, decompressed, in UTF-8, counted as stored. InputError where it is damaged.

        A byte order mark at the beginning of the file is dropped; a range that begins with the same bytes keeps them.
        """
        if self.split.is_range:
            chunks = Chunks(self._range())
        else:
            chunks = Chunks(self._no_archive() if self._encoding in UTF8 else self._recoded())
        if not self.split.start and chunks.peek(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            chunks.read(len(codecs.BOM_UTF8))
        yield from chunks if self.sample_bytes is None else self._sample(chunks, self.sample_bytes)

    def _sample(self, chunks: Iterable[bytes], most_bytes: int) -> Iterator[bytes]:
        """The lines that end within the first ``most_bytes`` of the text; ``bytes_read`` becomes what they take of the file.

        What a compressed text takes is known by more of it than is read: it is decompressed in large blocks.
        """
        head = bytearray()
        n_text = n_stored = 0
        for chunk in chunks:
            if len(head) <= most_bytes:
                head += chunk
            n_text += len(chunk)
            n_stored = self.bytes_read
            if n_text > most_bytes and (not self._is_compressed or n_stored >= MEASURED_BYTES):
                break
        self.is_cut = n_text > most_bytes
        if self.is_cut:
            del head[head.rfind(b"\n", 0, most_bytes) + 1 or most_bytes :]
        yield bytes(head)
        self.bytes_read = round(n_stored * len(head) / n_text) if n_text else n_stored

    def file_head(self, size: int) -> bytes:
        """Return the first ``size`` bytes of the text of the file that the split is a range of, fewer if it has no more."""
        filesystem, path = self._checked_file()
        bom = codecs.BOM_UTF8
        with input_errors(self.url, "can't be read at byte 0"):
            head = bytes(filesystem.cat_file(path, start=0, end=size + len(bom)))
        return head.removeprefix(bom)[:size]

    def _checked_file(self) -> tuple[fsspec.AbstractFileSystem, str]:
        with input_errors(self.url):
            filesystem, path = filesystem_of(self.url, self._options)
            filesystem.invalidate_cache()
            identity = identity_of(filesystem.info(path))
        if identity != self.split.identity:
            raise InputError(
                self.url,
                f"the file changed after the job was planned ({self.split.identity} then, {identity} now): "
                "run the same command again",
            )
        return filesystem, path

    def _range(self) -> Iterator[bytes]:
        split, size, (filesystem, path) = self.split, self.split.identity.size, self._checked_file()

        def fetch(start: int, stop: int) -> bytes:
            with input_errors(self.url, f"can't be read at byte {start}"):
                return bytes(filesystem.cat_file(path, start=start, end=stop))

        unit = unit_of(split.format, split.line_ends)
        first, last = range_bounds(fetch, split.start, split.stop, size, unit)
        step = RANGE_STEP if self.sample_bytes is None else min(RANGE_STEP, self.sample_bytes + 1)
        for offset in range(first, last, step):
            data = fetch(offset, min(offset + step, last))
            self.bytes_read += len(data)
            yield data

    def _stored(self) -> Iterator[bytes]:
        """The whole file as it is stored."""
        root = self._root if self.split.piped else None
        if root is None:
            yield from self._of_file()
        else:
            yield from map(root.get, piped_paths(self.split.identity.size))

    def _of_file(self) -> Iterator[bytes]:
        offset = 0
        with self.open() as file:
            while True:
                with input_errors(self.url, f"can't be read at byte {offset}"):
                    data = bytes(file.read(READ_BYTES))
                if not data:
                    return
                offset += len(data)
                yield data

    def _decompressed(self) -> Iterator[bytes]:
        stored = Chunks(self._stored())
        kind = checked_compression(self.url, stored.peek(10))
        if not kind:
            for data in stored:
                self.bytes_read += len(data)
                yield data
            return
        self._is_compressed = True
        n_text = 0
        try:
            for data in decompressed(kind, stored):
                self.bytes_read = stored.n_taken
                n_text += len(data)
                check_no_bomb(self.url, kind, n_text, self.bytes_read)
                yield data
            self.bytes_read = stored.n_taken
        except EOFError as error:
            self.bytes_read = stored.n_taken
            end = f"it ends at stored byte {self.bytes_read} (text byte {n_text}) in the middle"
            raise DamagedInputError(self.url, f"the {kind} stream is cut short: {end}") from error
        except ValueError as error:
            # gzip, for one, decodes damage to some text until a checksum fails.
            self.bytes_read = stored.n_taken
            near = f"near stored byte {self.bytes_read} (text byte {n_text})"
            raise DamagedInputError(
                self.url, f"the {kind} stream is damaged {near}, and perhaps before: {error}"
            ) from error

    def _no_archive(self) -> Iterator[bytes]:
        """The decompressed bytes. InputError if they are those of an archive."""
        chunks = Chunks(self._decompressed())
        check_no_archive(self.url, chunks.peek(HEAD_BYTES))
        yield from chunks

    def _recoded(self) -> Iterator[bytes]:
        """Decoded from the file's encoding and given as UTF-8. What the encoding does not have comes as invalid UTF-8."""
        try:
            for text in codecs.iterdecode(self._no_archive(), self._encoding, "surrogateescape"):
                yield text.encode("utf-8", "surrogateescape")
        except UnicodeError as error:
            raise InputError(
                self.url, f"is not text in {self._encoding} ({error}): give another --encoding"
            ) from error
