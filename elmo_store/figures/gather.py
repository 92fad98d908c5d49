"""Reads a bounded sample of a store and works out all its figures.

Time and memory do not grow with the store: at most so many parts, refused records and blocks of rows are read, evenly
spaced, and the figures say of how much they are.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo_store.figures.text import TextFigures, text_figures
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.words import WordLimit
from elmo_store.reading.sentence import read_rows
from elmo_store.reading.view import StoreInView, View, text_of_rows
from elmo_store.storage.data import Range
from elmo_store.storage.parquet_files import read_table

PARTS = 32  # parts whose text is read
EXAMPLES = 3  # of records refused for a reason
REJECT_BYTES = 1 << 20  # of each of so many parts' refused records
BLOCKS = 24  # blocks of rows whose vectors are read …
BLOCK_ROWS = 512  # … of so many rows
Part = tuple[StoreInView, int]


@dataclass(frozen=True)
class VectorSample:
    """Rows of a store, in order."""

    row: npt.NDArray[np.int64]  # int64 [n]. states: [n, len(store.states), channels]. token: [n].
    states: npt.NDArray[Any]
    token: tuple[str, ...]
    sentence: npt.NDArray[
        np.int64
    ]  # int64 [n] number of each row's sentence. position: int64 [n] the row's place in it, from 0.
    position: npt.NDArray[np.int64]

    def context(self, index: int, width: int = 4) -> tuple[str, str, str]:
        """The words before, the word, the words after it within its sentence, as far as the sample has them."""
        low, high = index, index + 1
        while low > 0 and index - low < width and self._together(low - 1, low):
            low -= 1
        while high < len(self.row) and high - index <= width and self._together(high - 1, high):
            high += 1
        return (
            " ".join(self.token[low:index]),
            self.token[index],
            " ".join(self.token[index + 1 : high]),
        )

    def _together(self, left: int, right: int) -> bool:
        return bool(
            self.sentence[left] == self.sentence[right] and self.row[right] == self.row[left] + 1
        )


@dataclass(frozen=True)
class StoreFigures:
    """Everything that a report says about a store."""

    url: str
    manifest: Manifest
    text: TextFigures
    n_parts_read: int  # of ``manifest.sizes.parts`` parts, which gave ``text``
    refused: Mapping[str, int]  # reason → how many records were refused for it, the commonest first
    refused_examples: Mapping[
        str, Sequence[tuple[str, str]]
    ]  # reason → a few (source:position, beginning of the text)
    vectors: VectorSample


def evenly(n: int, most: int) -> list[int]:
    """At most ``most`` of the numbers 0 … n - 1, evenly spaced, first and last among them."""
    numbers: list[int] = np.linspace(0, n - 1, min(n, most), dtype=int).tolist()
    return numbers


def gather(view: View) -> StoreFigures:
    """All figures of a store. Errors as those of reading it."""
    manifest = view.manifest
    parts = [
        (member, part)
        for member in view.opened_stores()
        for part in range(member.store.manifest.sizes.parts)
    ]
    parts = [parts[i] for i in evenly(len(parts), PARTS)]
    counts, examples = refused(parts if manifest.sizes.rejected else [])
    return StoreFigures(
        url=view.url,
        manifest=manifest,
        text=text_figures(part_tables(parts), WordLimit.of(manifest.model.options)),
        n_parts_read=len(parts),
        refused=counts,
        refused_examples=examples,
        vectors=sample_vectors(view),
    )


def part_tables(parts: Sequence[Part]) -> Iterator[pa.Table]:
    """The tokens of parts, one after the other; those of sentences that are removed are left out."""
    columns = pa.schema([layout.SENTENCES_SCHEMA.field(name) for name in ("sentence", "tokens")])
    for member, part in parts:
        table = read_table(member.store.root, layout.sentences_part(part), columns)
        kept = member.numbers_of(table["sentence"].to_numpy()) >= 0
        yield (table if kept.all() else table.filter(pa.array(kept))).select(["tokens"])


def refused(parts: Sequence[Part]) -> tuple[dict[str, int], dict[str, list[tuple[str, str]]]]:
    """Counts and examples of `StoreFigures`, from the first MiB of each part's; those of sentences that are removed left out."""
    counts: Counter[str] = Counter()
    examples: dict[str, list[tuple[str, str]]] = {}
    for member, part in parts:
        root = member.store.root
        size = root.size(layout.rejects_part(part))
        if size is None:
            continue  # a part without any
        data = bytearray(min(size, REJECT_BYTES))
        root.read_ranges([Range(layout.rejects_part(part), 0, memoryview(data))])
        for line in data.decode("utf-8", "replace").split("\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the end of the file, or a line that was cut at the MiB
            if member.numbers_of(np.array([int(record.get("sentence", 0))]))[0] < 0:
                continue
            reason = str(record.get("reason", ""))
            counts[reason] += 1
            if len(shown := examples.setdefault(reason, [])) < EXAMPLES:
                shown.append(
                    (
                        f"{record.get('source', '')}:{record.get('position', '')}",
                        str(record.get("raw", ""))[:200],
                    )
                )
    return dict(counts.most_common()), examples


def sample_vectors(store: View, blocks: int = BLOCKS) -> VectorSample:
    """Evenly spaced blocks of rows, each the rows of whole inner chunks, with all their states."""
    starts = [block * BLOCK_ROWS for block in evenly(-(-store.n_rows // BLOCK_ROWS), blocks)]
    spans = [(start, min(start + BLOCK_ROWS, store.n_rows)) for start in starts] or [(0, 0)]
    texts = [text_of_rows(store, first, stop) for first, stop in spans]
    return VectorSample(
        row=np.concatenate([np.arange(first, stop) for first, stop in spans]),
        states=np.concatenate([read_rows(store, rows=slice(first, stop)) for first, stop in spans]),
        token=tuple(token for tokens, _, _ in texts for token in tokens),
        sentence=np.concatenate([numbers for _, numbers, _ in texts]),
        position=np.concatenate([positions for _, _, positions in texts]).astype(np.int64),
    )
