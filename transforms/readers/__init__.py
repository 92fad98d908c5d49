"""Readers: one module a format, each a pure function from a piece's bytes to records in order. No Beam here.

`read_piece` and `open_piece` are the face: they pick the reader by the piece's format.
"""

from transforms.readers.registry import open_piece, read_piece

__all__ = ["open_piece", "read_piece"]
