"""WebDataset: tar files, two members a sentence: NUMBER.npy with its vectors, NUMBER.json with number, id and tokens.

Members come in the sentences' order, without times or owners: the same store gives the same bytes.
"""

import json
import tarfile
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from elmo_store.exports.npz import npy_head
from elmo_store.exports.stream import blocks
from elmo_store.exports.work import WholeFile, Work


def files(work: Work) -> list[str]:
    """Names of the files."""
    return [f"{number:06d}.tar" for number in range(len(work.ranges()))]


def write(work: Work, names: Sequence[str], whole_file: WholeFile) -> None:
    """Write the files of these names."""
    wanted = set(names)
    for name, (first, stop) in zip(files(work), work.ranges(), strict=True):
        if name in wanted:
            with whole_file(name) as path, open(path, "wb") as file:
                _write_file(work, file, first, stop)


def _write_file(work: Work, file: BinaryIO, first: int, stop: int) -> None:
    for block in blocks(work.store, work.vectors, work.settings.dtype, first, stop):
        for record, (_, vectors) in zip(block.records, block, strict=True):
            one = np.ascontiguousarray(vectors[0] if work.vectors.single else vectors)
            facts = {"sentence": record.index, "id": record.id, "tokens": record.tokens}
            _put(file, f"{record.index:09d}.json", json.dumps(facts, ensure_ascii=False).encode("utf-8", "surrogatepass"))
            _put(file, f"{record.index:09d}.npy", npy_head(one.shape, one.dtype.str), one.reshape(-1).view(np.uint8).data)
        work.tell(int(block.offsets[-1]))
    file.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of an archive


def _put(file: BinaryIO, name: str, *content: bytes | memoryview) -> None:
    """A member: tarfile's own header, the content, and zeros up to whole blocks."""
    info = tarfile.TarInfo(name)
    info.size = sum(len(part) for part in content)
    file.write(info.tobuf(tarfile.PAX_FORMAT))
    for part in content:
        file.write(part)
    file.write(bytes(-info.size % tarfile.BLOCKSIZE))
