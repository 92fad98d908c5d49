"""Helpers of the reading tests: pieces of a file, and its records as plain values."""

from pathlib import Path

from transforms.inputs.records import Piece, ReadSettings, Record, Reject, Sentence
from transforms.readers import read_piece
from transforms.stages.split import plan_pieces


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def one_piece(path: Path, input_format: str = "auto", settings: ReadSettings | None = None) -> Piece:
    (piece,) = plan_pieces([str(path)], input_format, settings)
    return piece


def records(path: Path, input_format: str = "auto", settings: ReadSettings | None = None) -> list[Record]:
    settings = settings or ReadSettings()
    return list(read_piece(one_piece(path, input_format, settings), settings))


def tokens(found: list[Record]) -> list[list[str]]:
    return [list(record.tokens) if isinstance(record, Sentence) else [] for record in found]


def rejects(found: list[Record]) -> list[Reject]:
    return [record for record in found if isinstance(record, Reject)]
