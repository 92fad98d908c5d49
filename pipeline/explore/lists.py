"""A FAISS inverted file that grows on disk: its memory is that of one block of rows, however many blocks there are.

Each block's lists go to a file of their own; at the end they are put together, list by list, behind the head of the empty index.
The bytes are those that FAISS writes for an index that was held in memory.
"""

from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.figures.vectors import Float

ID_BYTES = 8


class Lists:
    """Rows added to a trained index, which stays empty; the blocks lie in ``folder``."""

    def __init__(self, index: Any, folder: Path) -> None:
        self._index, self._folder = index, folder
        self._sizes: list[npt.NDArray[np.int64]] = []  # of each block: rows in each list
        self._head(0)  # fails now, if ever

    def add(self, rows: Float, first: int) -> None:
        """The rows ``first …`` [n, width]."""
        import faiss

        self._index.add_with_ids(rows, np.arange(first, first + len(rows)))
        lists = self._index.invlists
        sizes = np.array([lists.list_size(i) for i in range(self._index.nlist)], np.int64)
        with self._block(len(self._sizes)).open("wb") as file:
            for i in np.flatnonzero(sizes).tolist():
                size = int(sizes[i])
                file.write(faiss.rev_swig_ptr(lists.get_codes(i), size * self._index.code_size).tobytes())
                file.write(faiss.rev_swig_ptr(lists.get_ids(i), size).tobytes())
        self._index.reset()
        self._sizes.append(sizes)

    def write(self, path: Path) -> None:
        """The whole index, as FAISS reads it."""
        sizes = np.stack(self._sizes).sum(axis=0)
        blocks = [np.memmap(self._block(i), np.uint8, "r") for i in range(len(self._sizes))]
        at = [0] * len(blocks)
        with path.open("wb") as file:
            file.write(self._head(int(sizes.sum())) + b"full" + pack("<Q", len(sizes)) + sizes.astype("<u8").tobytes())
            for i in range(len(sizes)):
                ids = []
                for k, block in enumerate(blocks):
                    middle = at[k] + int(self._sizes[k][i]) * self._index.code_size
                    file.write(block[at[k] : middle].tobytes())
                    at[k] = middle + int(self._sizes[k][i]) * ID_BYTES
                    ids.append(block[middle : at[k]].tobytes())
                file.write(b"".join(ids))

    def _head(self, n_rows: int) -> bytes:
        """What FAISS writes before the lists' sizes. RuntimeError of a version that writes something else."""
        import faiss

        self._index.ntotal = n_rows
        head: bytes = faiss.serialize_index(self._index).tobytes()
        self._index.ntotal = 0
        nothing = b"sprs" + pack("<Q", 0)
        if not head.endswith(b"ilar" + pack("<QQ", self._index.nlist, self._index.code_size) + nothing):
            raise RuntimeError(f"FAISS {faiss.__version__} writes lists in a way that is not known here: take 1.15")
        return head.removesuffix(nothing)

    def _block(self, number: int) -> Path:
        return self._folder / f"block-{number}"
