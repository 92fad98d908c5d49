"""The list of pieces in the scratch area. May import elmo_store and transforms.records.

As a part of the job's graph it would meet runners' limits on its size.
"""

import json
from collections.abc import Iterable

from elmo_store.storage import Root
from transforms.records import Piece
from transforms.work import PIECE_LIST


def write_pieces(root: Root, pieces: Iterable[Piece]) -> None:
    """Leave the pieces of the job in the scratch area."""
    root.put(PIECE_LIST, "".join(json.dumps(piece.to_dict()) + "\n" for piece in pieces).encode())


def read_pieces(root: Root) -> list[Piece]:
    """The pieces of the job, in input order."""
    return [Piece.from_dict(json.loads(line)) for line in root.get(PIECE_LIST).decode().split("\n") if line]
