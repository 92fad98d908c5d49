"""A .npz of one array [n, 2p] a sentence, in order: arr_0, arr_1, … as ``numpy.savez(path, *arrays)`` names them.

May import NumPy, stream, outputs, work. Nothing is compressed; the same store gives the same bytes.
"""

import zipfile
from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO

import numpy as np

from elmo_store.errors import StoreError
from elmo_store.exports.outputs import whole_file
from elmo_store.exports.stream import blocks
from elmo_store.exports.work import Work

EARLIEST = (1980, 1, 1, 0, 0, 0)  # that a zip file's clock can show


def files(work: Work) -> list[str]:
    """Name of the file. StoreError where a token has several vectors."""
    if not work.vectors.single:
        raise StoreError(f"npz has one vector a token, the store {', '.join(work.vectors.names)}: name one of them (weight set)")
    return [work.output.name]


def write(work: Work, names: Sequence[str]) -> None:
    """Write the file, if it is among ``names``."""
    for name in names:
        with whole_file(work.output.root, name) as path, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for block in blocks(work.store, work.vectors, work.settings.dtype, 0, work.store.n_sentences, text=False):
                for number, vectors in block:  # [1, n, 2p], which lies in one piece
                    info = zipfile.ZipInfo(f"arr_{number}.npy", EARLIEST)
                    head = npy_head(vectors[0].shape, vectors.dtype.str)
                    info.file_size = len(head) + vectors.nbytes  # whether the entry needs 64 bits
                    with archive.open(info, "w") as entry:
                        entry.write(head)
                        entry.write(vectors.reshape(-1).view(np.uint8).data)
                work.tell(int(block.offsets[-1]))


@lru_cache(4096)
def npy_head(shape: tuple[int, ...], dtype: str) -> bytes:
    """What stands before an array's numbers in a .npy file."""
    sink = BytesIO()
    np.lib.format.write_array_header_1_0(sink, {"descr": dtype, "fortran_order": False, "shape": shape})
    return sink.getvalue()
