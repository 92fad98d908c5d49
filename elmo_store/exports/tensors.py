"""safetensors files: the rows of many sentences in one tensor, where sentences begin, and their tokens.

A file is written as it comes: its header, whose size is known before, is filled in last.

Tensors of each file: ``layers`` [rows, K, width] (or ``vectors`` [rows, width] where a token has one), ``sentence_start`` int64
[sentences + 1], ``token_start`` int64 [rows + 1] and ``token_bytes`` uint8: its bytes ``token_start[i] …`` are token i in
UTF-8, up to the next one's. Metadata: ``first_sentence``, ``sentences``, ``names`` (JSON, of the K).
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from elmo_store.exports.work import WholeFile, Work
from elmo_store.reading.rows import Int64

NAME = "vectors-{:05d}-of-{:05d}.safetensors"
TYPES = {"float16": "F16", "float32": "F32"}
_MOST = 10**18  # bytes: a number of as many digits as any that a header will hold


def files(work: Work) -> list[str]:
    """Names of the files."""
    return list(work.file_ranges(NAME))


def write(work: Work, names: Sequence[str], whole_file: WholeFile) -> None:
    """Write the files of these names."""
    ranges = work.file_ranges(NAME)
    for name in names:
        with whole_file(name) as path:
            _write_file(work, path, *ranges[name])


def _write_file(work: Work, path: str, first: int, stop: int) -> None:
    spans = work.store._inner(work.store._spans(range(first, stop)))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(spans[:, 1] - spans[:, 0])])
    n_rows = int(offsets[-1])
    sizes = [8 * len(offsets), 8 * (n_rows + 1), n_rows * work.row_bytes]
    head_bytes = len(_header(work, first, offsets, [*sizes, _MOST]))
    starts = np.cumsum([head_bytes, *sizes])  # of the four tensors
    with open(path, "wb") as file:
        file.seek(int(starts[0]))
        file.write(offsets.astype("<i8").tobytes())
        file.seek(int(starts[2]))
        text, lengths = bytearray(), [np.zeros(1, np.int64)]  # a file's: its tokens as objects would be ten times as large
        for block in work.blocks(first, stop, axes="nkd"):
            file.write(block.values.reshape(-1).view(np.uint8).data)
            tokens = [token.encode("utf-8", "surrogatepass") for record in block.records for token in record.tokens]
            text += b"".join(tokens)
            lengths.append(np.fromiter(map(len, tokens), np.int64, len(tokens)))
            work.on_progress(len(block.values))
        file.write(text)
        file.seek(int(starts[1]))
        file.write(np.cumsum(np.concatenate(lengths)).astype("<i8").tobytes())
        file.seek(0)
        file.write(_header(work, first, offsets, [*sizes, len(text)], head_bytes))


def _header(work: Work, first: int, offsets: Int64, sizes: Sequence[int], n_bytes: int = 0) -> bytes:
    """The header, with its length before it, filled up with spaces to ``n_bytes`` or to a multiple of 8."""
    n_rows, vectors = int(offsets[-1]), work.vectors
    shape = [n_rows, vectors.width] if vectors.single else [n_rows, len(vectors.names), vectors.width]
    tensors = {
        "sentence_start": ("I64", [len(offsets)]),
        "token_start": ("I64", [n_rows + 1]),
        "vectors" if vectors.single else "layers": (TYPES[work.settings.dtype], shape),
        "token_bytes": ("U8", [sizes[-1]]),
    }
    metadata = {"first_sentence": str(first), "sentences": str(len(offsets) - 1), "names": json.dumps(vectors.names)}
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for (name, (dtype, of)), size in zip(tensors.items(), sizes, strict=True):
        header[name] = {"dtype": dtype, "shape": of, "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust((n_bytes or 8 + -(-len(text) // 8) * 8) - 8)
    return len(text).to_bytes(8, "little") + text
