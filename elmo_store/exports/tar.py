"""WebDataset: tar files, two members a sentence: NUMBER.npy with its vectors, NUMBER.json with number, id and tokens.

Members come in the sentences' order, without times or owners: the same store gives the same bytes.
"""

import json
import tarfile
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from elmo_store.exports.npz import npy_head
from elmo_store.exports.work import WholeFile, Work

NAME = "{:06d}.tar"


def files(work: Work) -> list[str]:
    """Names of the files."""
    return list(work.file_ranges(NAME))


def write(work: Work, names: Sequence[str], whole_file: WholeFile) -> None:
    """Write the files of these names."""
    ranges = work.file_ranges(NAME)
    for name in names:
        with whole_file(name) as path, open(path, "wb") as file:
            _write_file(work, file, *ranges[name])


def _write_file(work: Work, file: BinaryIO, first: int, stop: int) -> None:
    for block in work.blocks(first, stop):
        for record, (_, vectors) in zip(block.records, block, strict=True):
            array = np.ascontiguousarray(vectors[0] if work.vectors.single else vectors)
            facts = {"sentence": record.index, "id": record.id, "tokens": record.tokens}
            _put(file, f"{record.index:09d}.json", json.dumps(facts, ensure_ascii=False).encode("utf-8", "surrogatepass"))
            _put(file, f"{record.index:09d}.npy", npy_head(array.shape, array.dtype.str), array.reshape(-1).view(np.uint8).data)
        work.on_progress(int(block.offsets[-1]))
    file.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of an archive


def _put(file: BinaryIO, name: str, *content: bytes | memoryview) -> None:
    """A member: tarfile's own header, the content, and zeros up to whole blocks."""
    info = tarfile.TarInfo(name)
    info.size = sum(len(part) for part in content)
    file.write(info.tobuf(tarfile.PAX_FORMAT))
    for part in content:
        file.write(part)
    file.write(bytes(-info.size % tarfile.BLOCKSIZE))
