"""Which reader reads which format. May import the readers, transforms.records, transforms.decompress, transforms.tokenizers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transforms import tokenizers
from transforms.decompress import ByteSource
from transforms.readers.conllu import read_conllu
from transforms.readers.jsonl import read_jsonl
from transforms.readers.lines import read_lines
from transforms.readers.parquet import read_parquet
from transforms.readers.text import read_text
from transforms.records import Piece, ReadSettings, Record
from transforms.tokenizers import Tokenize

Reader = Callable[[ByteSource, Piece, ReadSettings, Tokenize], Iterator[Record]]
_READERS: dict[str, Reader] = {
    "lines": read_lines,
    "text": read_text,
    "jsonl": read_jsonl,
    "conllu": read_conllu,
    "parquet": read_parquet,
}
ONE_RECORD_A_POSITION = ("lines", "jsonl", "parquet")  # the formats that pieces cut into ranges


def open_piece(
    piece: Piece, settings: ReadSettings, storage_options: Mapping[str, Any] | None = None
) -> tuple[ByteSource, Iterator[Record]]:
    """The records of ``piece`` in order, and the source whose count and digest are whole once they are all read.

    InputError, while reading, if the file as a whole is gone, changed or damaged; ValueError for an unknown tokenizer.
    """
    source = ByteSource(piece, storage_options)
    tokenize = tokenizers.get(settings.tokenizer, piece.format)
    return source, _READERS[piece.format](source, piece, settings, tokenize)


def read_piece(piece: Piece, settings: ReadSettings, storage_options: Mapping[str, Any] | None = None) -> Iterator[Record]:
    """The records of ``piece`` in order (see `open_piece`)."""
    return open_piece(piece, settings, storage_options)[1]
