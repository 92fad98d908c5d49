"""What each row of a store is: its sentences, by number and by id, read from the parts as they are needed.

May import pyarrow, NumPy, layout, manifest, errors, parquet_files. Opening costs nothing; a number costs the footers of a few
parts and one part, an id the id columns up to the part that has it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store import layout
from elmo_store.errors import SentenceNotFoundError, ShardCorruptError
from elmo_store.manifest import Manifest
from elmo_store.parquet_files import errors_name, open_parquet
from elmo_store.storage import Root

PARTS_AT_HAND = 4


@dataclass(frozen=True)
class SentenceRecord:
    """One sentence: number in the store, id, where it came from, its rows, its tokens (without boundary rows)."""

    index: int
    id: str
    source: str
    position: int
    first_row: int
    n_rows: int
    tokens: tuple[str, ...]


class SentenceIndex:
    """The sentences of a store."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest
        self._bounds: dict[int, tuple[int, int]] = {}
        self._tables: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._hashes: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []

    def __len__(self) -> int:
        return self._manifest.sizes.sentences

    def by_number(self, index: int) -> SentenceRecord:
        """Sentence ``index``, counted from 0. SentenceNotFoundError if there is none."""
        if not 0 <= index < len(self):
            raise SentenceNotFoundError(f"no sentence {index} in {self._root}: it has {len(self)}, counted from 0")
        part = self._part_of(index)
        return self._record(part, index - self._bound(part)[0])

    def by_id(self, sentence_id: str) -> SentenceRecord:
        """The first sentence that has this id. SentenceNotFoundError if none has."""
        wanted = hash(sentence_id)
        for part in range(self._manifest.sizes.parts):
            hashes, order = self._id_hashes(part)
            place = int(np.searchsorted(hashes, wanted))
            while place < len(hashes) and hashes[place] == wanted:
                record = self._record(part, int(order[place]))
                if record.id == sentence_id:
                    return record
                place += 1
        raise SentenceNotFoundError(f"no sentence with the id {sentence_id!r} in {self._root}")

    def records(self, first: int, stop: int) -> Iterator[SentenceRecord]:
        """Sentences ``first … stop`` in order, one part in memory at a time."""
        if first >= stop:
            return
        for part in range(self._part_of(first), self._manifest.sizes.parts):
            start, count = self._bound(part)
            for place in range(max(first - start, 0), min(stop - start, count)):
                yield self._record(part, place)
            if start + count >= stop:
                return

    def _part_of(self, index: int) -> int:
        """The part that holds sentence ``index``: by bisection over the footers."""
        low, high = 0, self._manifest.sizes.parts
        while low < high:
            middle = (low + high) // 2
            first, count = self._bound(middle)
            if index < first:
                high = middle
            elif index >= first + count:
                low = middle + 1
            else:
                return middle
        raise ShardCorruptError(
            f"no part of {self._root.url(layout.SENTENCES)} holds sentence {index}, of {len(self)}: parts are missing"
        )

    def _bound(self, part: int) -> tuple[int, int]:
        """Number of a part's first sentence, and how many it has."""
        if part not in self._bounds:
            rel = layout.sentences_part(part)
            with open_parquet(self._root, rel) as file, errors_name(self._root, rel):
                _check_schema(file, self._root.url(rel))
                count = file.metadata.num_rows
                first = _first_sentence(file) if count else -1
            self._bounds[part] = (first, count)
        first, count = self._bounds[part]
        before = part
        while first < 0:  # a part without sentences stands where the one before it ends
            before -= 1
            first = sum(self._bound(before)) if before >= 0 else 0
            self._bounds[part] = (first, count)
        return self._bounds[part]

    def _table(self, part: int) -> dict[str, Any]:
        """A part's columns, checked: its sentences numbered without a gap, its rows as the manifest says."""
        if part not in self._tables:
            rel = layout.sentences_part(part)
            with open_parquet(self._root, rel) as file, errors_name(self._root, rel):
                _check_schema(file, self._root.url(rel))
                table = file.read().combine_chunks()
            numbers = table["sentence"].to_numpy()
            if len(numbers) and not np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
                raise ShardCorruptError(f"{self._root.url(rel)} does not number its sentences without gaps")
            self._tables[part] = {
                "id": table["id"].to_pylist(),
                "source": table["source"],
                "position": table["position"].to_numpy(),
                "first_row": table["first_row"].to_numpy(),
                "n_tokens": table["n_tokens"].to_numpy(),
                "tokens": table["tokens"],
            }
            self._bounds[part] = (int(numbers[0]), len(numbers)) if len(numbers) else self._bound(part)
            if len(self._tables) > PARTS_AT_HAND:
                self._tables.popitem(last=False)
        self._tables.move_to_end(part)
        return self._tables[part]

    def _record(self, part: int, place: int) -> SentenceRecord:
        columns = self._table(part)
        n_tokens = int(columns["n_tokens"][place])
        return SentenceRecord(
            index=self._bound(part)[0] + place,
            id=columns["id"][place],
            source=columns["source"][place].as_py(),
            position=int(columns["position"][place]),
            first_row=int(columns["first_row"][place]),
            n_rows=n_tokens + 2 if self._manifest.boundaries and n_tokens else n_tokens,
            tokens=tuple(columns["tokens"][place].as_py()),
        )

    def _id_hashes(self, part: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sorted hashes of a part's ids, and whose each is: 16 bytes a sentence, so that all of a large store can stay."""
        while len(self._hashes) <= part:
            rel = layout.sentences_part(len(self._hashes))
            with open_parquet(self._root, rel) as file, errors_name(self._root, rel):
                ids = file.read(columns=["id"])["id"].to_pylist()
            hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
            order = np.argsort(hashes, kind="stable")
            self._hashes.append((hashes[order], order))
        return self._hashes[part]

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root, "_manifest": self._manifest}  # hashes of strings differ from process to process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_root"], state["_manifest"])  # type: ignore[misc]


def _first_sentence(file: pq.ParquetFile) -> int:
    """The number of the first row's sentence: from the statistics, or read where a writer left them out."""
    column = file.metadata.row_group(0).column(file.schema_arrow.get_field_index("sentence"))
    if column.is_stats_set and column.statistics.has_min_max:
        return int(column.statistics.min)
    return int(file.read_row_group(0, columns=["sentence"])["sentence"][0].as_py())


def _check_schema(file: pq.ParquetFile, where: str) -> None:
    found: pa.Schema = file.schema_arrow
    for field in layout.SENTENCES_SCHEMA:
        index = found.get_field_index(field.name)
        if index < 0 or not _same_type(found.field(index).type, field.type):
            kind = "missing" if index < 0 else str(found.field(index).type)
            raise ShardCorruptError(f"{where}: column {field.name} is {kind}, not {field.type}: not a part of a store")


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Equal, whatever an inner field is called and whether it may be null."""
    if pa.types.is_list(wanted):
        return bool(pa.types.is_list(found)) and _same_type(found.value_type, wanted.value_type)
    return bool(found.equals(wanted))
