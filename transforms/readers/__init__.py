"""Readers: one module a format, each a pure function from a piece's bytes to records in order. No Beam here.

`read_piece` and `open_piece` are the face: they pick the reader by the piece's format.
"""

from transforms.readers.registry import cut_short, open_piece, read_piece

__all__ = ["cut_short", "open_piece", "read_piece"]
