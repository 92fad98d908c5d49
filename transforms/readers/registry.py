"""Which reader reads which format."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from elmo_store.storage.root import Root
from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import Piece, ReadSettings, Record, Reject
from transforms.readers.conll import read_conll
from transforms.readers.conllu import read_conllu
from transforms.readers.csv import read_csv
from transforms.readers.jsonl import read_json, read_jsonl
from transforms.readers.lines import read_lines
from transforms.readers.parquet import read_parquet
from transforms.readers.text import read_text
from transforms.text import tokenizers
from transforms.text.tokenizers import Tokenizer

Reader = Callable[[ByteSource, Piece, ReadSettings, Tokenizer], Iterator[Record]]
_READERS: dict[str, Reader] = {
    "lines": read_lines,
    "text": read_text,
    "jsonl": read_jsonl,
    "json": read_json,
    "csv": read_csv,
    "tsv": read_csv,
    "conllu": read_conllu,
    "conll": read_conll,
    "parquet": read_parquet,
}


def open_piece(
    piece: Piece, settings: ReadSettings, storage_options: Mapping[str, Any] | None = None, root: Root | None = None
) -> tuple[ByteSource, Iterator[Record]]:
    """The records of ``piece`` in order, and the source whose counts and digest are whole once they are all read.

    ``root``: the store, where the piece is a blob of it. InputError, while reading, if the file as a whole is gone, changed or
    damaged; ValueError for an unknown tokenizer.
    """
    source = ByteSource(piece, storage_options, encoding=settings.encoding, root=root)
    if piece.damage:
        return source, iter([Reject(0, cut_short(piece.damage), "")])
    found = _READERS[piece.format](source, piece, settings, tokenizers.get(settings.tokenizer, piece.format))
    return source, found if settings.sample == 1 else _sampled(found, piece, settings.sample)


def cut_short(reason: str) -> str:
    """Of the reject that stands for what comes after the damage in a file."""
    return f"the file can't be read from here on: {reason}"


def read_piece(
    piece: Piece, settings: ReadSettings, storage_options: Mapping[str, Any] | None = None, root: Root | None = None
) -> Iterator[Record]:
    """The records of ``piece`` in order (see `open_piece`)."""
    return open_piece(piece, settings, storage_options, root)[1]


def _sampled(records: Iterator[Record], piece: Piece, share: float) -> Iterator[Record]:
    """Those records whose place hashes into the first ``share`` of all hashes; a document's sentences stay together."""
    for record in records:
        place = f"{piece.url}\0{piece.blob}\0{piece.start}\0{record.position if record.ordinal < 0 else record.ordinal}"
        if int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest()) < share * 2**64:
            yield record
