"""Reads a bounded sample of a store and works out all its figures. May import the rest of `elmo_store`.

Time and memory do not grow with the store: at most so many parts, markers, refused records and blocks of rows are read, evenly
spaced, and the figures say of how much they are.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store import layout
from elmo_store.errors import ShardCorruptError
from elmo_store.figures.job import JobFigures, job_figures
from elmo_store.figures.text import TextFigures, text_figures
from elmo_store.manifest import Manifest
from elmo_store.markers import read_marker
from elmo_store.storage import Root

if TYPE_CHECKING:
    from elmo_store.store import Store

PARTS = 32  # parts whose text is read
MARKERS = 4096
REJECT_BYTES = 1 << 20  # of each of so many parts' refused records
BLOCKS = 24  # blocks of rows whose vectors are read …
BLOCK_ROWS = 512  # … of so many rows
THREADS = 16


@dataclass(frozen=True)
class VectorSample:
    """Rows of a store, in order.

    Attributes:
        row: int64 [n]. states: [n, len(store.states), channels]. token: [n].
        sentence: int64 [n] number of each row's sentence. position: int64 [n] the row's place in it, from 0.
        n_rows: of the whole store.
    """

    row: npt.NDArray[np.int64]
    states: npt.NDArray[Any]
    token: tuple[str, ...]
    sentence: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    n_rows: int

    def context(self, place: int, width: int = 4) -> tuple[str, str, str]:
        """The words before, the word, the words after it within its sentence, as far as the sample has them."""
        low, high = place, place + 1
        while low > 0 and place - low < width and self._together(low - 1, low):
            low -= 1
        while high < len(self.row) and high - place <= width and self._together(high - 1, high):
            high += 1
        return " ".join(self.token[low:place]), self.token[place], " ".join(self.token[place + 1 : high])

    def _together(self, left: int, right: int) -> bool:
        return bool(self.sentence[left] == self.sentence[right] and self.row[right] == self.row[left] + 1)


@dataclass(frozen=True)
class Refused:
    """Refused records by reason. ``examples``: reason → a few (source:position, beginning of the text)."""

    counts: Mapping[str, int]
    examples: Mapping[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class StoreFigures:
    """Everything that a report says about a store. ``n_parts_read`` of ``manifest.sizes.parts`` parts gave ``text``."""

    url: str
    manifest: Manifest
    text: TextFigures
    n_parts_read: int
    job: JobFigures
    n_markers_read: int
    refused: Refused
    vectors: VectorSample


def evenly(n: int, most: int) -> list[int]:
    """At most ``most`` of the numbers 0 … n - 1, evenly spaced, first and last among them."""
    if n <= most:
        return list(range(n))
    return sorted({round(i * (n - 1) / (most - 1)) for i in range(most)}) if most > 1 else [0]


def gather(store: "Store") -> StoreFigures:
    """All figures of a store. Errors as those of reading it."""
    root, manifest = store.root, store.manifest
    parts = evenly(manifest.sizes.parts, PARTS)
    shards = evenly(manifest.sizes.shards, MARKERS)
    with ThreadPoolExecutor(THREADS) as pool:
        markers = [marker for marker in pool.map(lambda shard: read_marker(root, shard), shards) if marker is not None]
    return StoreFigures(
        url=str(root),
        manifest=manifest,
        text=text_figures(part_tables(root, parts)),
        n_parts_read=len(parts),
        job=job_figures(markers),
        n_markers_read=len(markers),
        refused=refused(root, manifest, parts),
        vectors=sample_vectors(store),
    )


def part_tables(root: Root, parts: list[int]) -> Iterator[pa.Table]:
    """The tokens of parts, one after the other."""
    for part in parts:
        yield pq.read_table(pa.BufferReader(root.get(layout.sentences_part(part))), columns=["tokens"])


def refused(root: Root, manifest: Manifest, parts: list[int], n_examples: int = 3) -> Refused:
    """Refused records of ``parts`` by reason, from the first MiB of each part's."""
    counts: Counter[str] = Counter()
    examples: dict[str, list[tuple[str, str]]] = {}
    for part in parts if manifest.sizes.rejected else []:
        try:
            data = root.get_range(layout.rejects_part(part), 0, REJECT_BYTES)
        except FileNotFoundError:
            continue  # a part without any
        for line in data.decode("utf-8", "replace").split("\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the end of the file, or a line that was cut at the MiB
            reason = str(record.get("reason", ""))
            counts[reason] += 1
            if len(shown := examples.setdefault(reason, [])) < n_examples:
                shown.append((f"{record.get('source', '')}:{record.get('position', '')}", str(record.get("raw", ""))[:200]))
    return Refused(dict(counts.most_common()), {reason: tuple(shown) for reason, shown in examples.items()})


def block_starts(n_rows: int, blocks: int = BLOCKS, rows: int = BLOCK_ROWS) -> list[int]:
    """First rows of evenly spaced blocks of ``rows`` rows, each the beginning of an inner chunk of that size."""
    return [block * rows for block in evenly(-(-n_rows // rows), blocks)]


def sample_vectors(store: "Store", blocks: int = BLOCKS) -> VectorSample:
    """Evenly spaced blocks of rows with all their states."""
    starts = block_starts(store.n_rows, blocks)
    spans = [(start, min(start + BLOCK_ROWS, store.n_rows)) for start in starts]
    empty = np.zeros((0, len(store.states), store.channels), store.dtype)
    states = np.concatenate([empty, *(store.read(rows=slice(first, stop)) for first, stop in spans)])
    token = [token for first, stop in spans for token in store.tokens(slice(first, stop))]
    row = np.concatenate([np.zeros(0, np.int64), *(np.arange(first, stop) for first, stop in spans)])
    sentence, position = places_of(store.root, store.manifest, row)
    return VectorSample(row, states, tuple(token), sentence, position, store.n_rows)


def places_of(root: Root, manifest: Manifest, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sentence of each row, and the row's place in it; ``rows`` ascending. Parts are found by bisection over their footers."""
    sentence, position = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    parts = _Parts(root, manifest)
    todo = 0
    while todo < len(rows):
        part = parts.of(int(rows[todo]))
        first, length, number = parts.places(part)
        place = np.searchsorted(first, rows[todo:], side="right") - 1
        inside = (place >= 0) & (rows[todo:] < (first + length)[place]) if len(first) else np.zeros(len(rows) - todo, bool)
        n_inside = int(inside.sum())
        if not n_inside:
            raise ShardCorruptError(f"no part of {root.url(layout.SENTENCES)} has a sentence with row {rows[todo]}")
        found = place[:n_inside]  # ascending rows: those inside come first
        sentence[todo : todo + n_inside] = number[found]
        position[todo : todo + n_inside] = rows[todo : todo + n_inside] - first[found]
        todo += n_inside
    return sentence, position


class _Parts:
    """The parts' numbers, without text."""

    def __init__(self, root: Root, manifest: Manifest) -> None:
        self._root, self._manifest = root, manifest
        self._first: dict[int, int] = {}

    def of(self, row: int) -> int:
        """The last part that begins at or before ``row`` and is not empty."""
        low, high = 0, self._manifest.sizes.parts  # the part wanted is in low … high - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._first_row(middle) <= row else (low, middle)
        return low

    def places(self, part: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """First row, rows and number of every sentence of a part that has rows."""
        with self._open(part) as file:
            table = file.read(columns=["sentence", "first_row", "n_tokens"])
        rows = table["n_tokens"].to_numpy().astype(np.int64)
        some = rows > 0
        return (
            table["first_row"].to_numpy()[some],
            rows[some] + (2 if self._manifest.boundaries else 0),
            table["sentence"].to_numpy()[some],
        )

    def _first_row(self, part: int) -> int:
        """Where a part begins; one without sentences where the next one begins."""
        if part not in self._first:
            with self._open(part) as file:
                column = file.read(columns=["first_row"])["first_row"]
            if len(column):
                self._first[part] = column[0].as_py()
            else:
                last = part + 1 == self._manifest.sizes.parts
                self._first[part] = self._manifest.sizes.rows if last else self._first_row(part + 1)
        return self._first[part]

    def _open(self, part: int) -> pq.ParquetFile:
        return pq.ParquetFile(pa.BufferReader(self._root.get(layout.sentences_part(part))))
