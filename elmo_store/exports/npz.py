"""A .npz of one array [n, 2p] a sentence, in order: arr_0, arr_1, … as ``numpy.savez(path, *arrays)`` names them.

Nothing is compressed; the same store gives the same bytes.
"""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BytesIO

import numpy as np

from elmo_store.errors import StoreError
from elmo_store.exports.work import WholeFile, Work, ahead

PIECE_BYTES = 1 << 23  # that the file gets at a time
EARLIEST = (1980, 1, 1, 0, 0, 0)  # that a zip file's clock can show


def files(work: Work) -> list[str]:
    """Name of the file. StoreError where a token has several vectors."""
    if not work.vectors.single:
        raise StoreError(f"npz has one vector a token, the store {', '.join(work.vectors.names)}: name one of them (weight set)")
    return [work.output.name]


def write(work: Work, names: Sequence[str], whole_file: WholeFile) -> None:
    """Write the file, if it is among ``names``."""
    for name in names:
        with (
            whole_file(name) as path,
            open(path, "wb", buffering=PIECE_BYTES) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
        ):
            offset = 0
            for entries, rows in ahead(_entries(work)):
                for info, head, vectors in entries:
                    # As ZipFile.writestr, but that goes back to write each head again once it knows the checksum, which takes
                    # half of the time. ZipFile writes the directory at the end.
                    info.header_offset = offset
                    offset += file.write(info.FileHeader()) + file.write(head) + file.write(vectors)
                    archive.filelist.append(info)
                archive.start_dir = offset
                work.on_progress(rows)


def _entries(work: Work) -> Iterator[tuple[list[tuple[zipfile.ZipInfo, bytes, memoryview]], int]]:
    """Block by block: what its entries say of themselves, the head of each array and its numbers; and how many rows they are."""
    for block in work.blocks(0, work.store.n_sentences, text=False):
        entries = []
        for number, vectors in block:  # [1, n, 2p], which lies in one piece
            head, data = npy_head(vectors[0].shape, vectors.dtype.str), vectors.reshape(-1).view(np.uint8).data
            info = zipfile.ZipInfo(f"arr_{number}.npy", EARLIEST)
            info.external_attr = 0o600 << 16
            info.CRC = zlib.crc32(data, zlib.crc32(head))
            info.file_size = info.compress_size = len(head) + len(data)
            entries.append((info, head, data))
        yield entries, int(block.offsets[-1])


@lru_cache(4096)
def npy_head(shape: tuple[int, ...], dtype: str) -> bytes:
    """What stands before an array's numbers in a .npy file."""
    sink = BytesIO()
    np.lib.format.write_array_header_1_0(sink, {"descr": dtype, "fortran_order": False, "shape": shape})
    return sink.getvalue()
