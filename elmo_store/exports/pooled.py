"""A vector a sentence or document: Parquet with a row each, its id, document and kept fields, and a list of numbers a mix.

The mix of every row comes first, then the pool of a unit's rows, in float64; a unit without rows has null. The lists are all as
long, but of no fixed size for Parquet: PyArrow does not read its own files of fixed-size lists with nulls (Arrow 25).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.errors import StoreError
from elmo_store.exports.work import Work
from elmo_store.format.fields import SENTENCE
from elmo_store.format.numbers import Array
from elmo_store.reading.runs import Int64

GROUP_UNITS = 4096  # in a row group, at most


@dataclass
class Units:
    """Some consecutive units of a file, sentences or documents, and what is known of those whose rows were seen so far."""

    pool: str  # a name of `POOLS`
    first: Int64  # number of the first sentence of each, int64 [units]
    n_sentences: Int64  # int64 [units]
    values: Array  # float64 [units, K, width]: sums of "mean", otherwise the vectors themselves; 0 where a unit has no rows
    n_rows: Int64  # int64 [units]

    @classmethod
    def of(cls, pool: str, first: Int64, n_sentences: Int64, rows: Array, bounds: Int64) -> "Units":
        """Units of consecutive ``rows`` [n, K, width]: unit i has ``bounds[i] … bounds[i + 1]`` [units + 1]; it may have none."""
        n_rows = np.diff(bounds)
        filled = n_rows > 0
        starts = bounds[:-1][filled]
        values = np.zeros((len(n_rows), *rows.shape[1:]))
        if pool in ("first", "last"):
            values[filled] = rows[starts if pool == "first" else bounds[1:][filled] - 1]
        elif len(starts):
            reduce = np.add if pool == "mean" else np.maximum
            values[filled] = reduce.reduceat(rows[: bounds[-1]].astype(np.float64), starts, axis=0)
        return cls(pool, first, n_sentences, values, n_rows)

    def __getitem__(self, part: slice) -> "Units":
        return Units(
            self.pool,
            self.first[part],
            self.n_sentences[part],
            self.values[part],
            self.n_rows[part],
        )

    def __len__(self) -> int:
        return len(self.first)

    def followed_by(self, rest: "Units") -> "Units":
        """The same units with the rows of ``rest`` behind their own."""
        empty, more = self.n_rows == 0, rest.n_rows > 0
        values = self.values + rest.values if self.pool == "mean" else self.values.copy()
        if self.pool == "max":
            values = np.maximum(values, rest.values)
            values[~more] = self.values[~more]
        taken = more if self.pool == "last" else empty
        values[taken] = rest.values[taken]
        return Units(
            self.pool,
            self.first,
            self.n_sentences + rest.n_sentences,
            values,
            self.n_rows + rest.n_rows,
        )

    def vectors(self) -> Array:
        """float64 [units, K, width], 0 for a unit without rows."""
        n_rows = self.n_rows if self.pool == "mean" else np.ones_like(self.n_rows)
        vectors: Array = self.values / np.maximum(n_rows, 1).reshape(-1, 1, 1)
        return vectors


def write_pooled(work: Work, paths: Sequence[str], sentences: range) -> None:
    """The units of these sentences."""
    schema = _schema(work)
    with pq.ParquetWriter(paths[0], schema, compression="zstd") as writer:
        for units in _units(work, sentences):
            writer.write_table(_table(work, units, schema), row_group_size=GROUP_UNITS)


def _units(work: Work, sentences: range) -> Iterator[Units]:
    """Whole units, in order. A document goes on from block to block."""
    pool, by_document = str(work.settings.pool), work.settings.per == "document"
    held: Units | None = None
    held_document = ("", "")
    for block in work.blocks(sentences, text=False):
        n = len(block.offsets) - 1
        starts, documents = np.arange(n), [("", "")]
        if by_document:
            named = work.store.table(range(block.first, block.first + n), ["source", "document"])
            names = list(
                zip(named["source"].to_pylist(), named["document"].to_pylist(), strict=True)
            )
            starts = np.array([i for i in range(n) if i == 0 or names[i] != names[i - 1]])
            documents = [names[i] for i in starts]
        ends = np.append(starts[1:], n)
        rows = block.values.transpose(1, 0, 2)  # [rows, K, width]
        units = Units.of(
            pool, block.first + starts, ends - starts, rows, block.offsets[np.append(starts, n)]
        )
        if held is not None and held_document == documents[0]:
            held, units = held.followed_by(units[:1]), units[1:]
        if held is not None and len(units):
            yield held
            held = None
        if by_document and len(units):
            held, held_document, units = units[-1:], documents[-1], units[:-1]
        if len(units):
            yield units
    if held is not None:
        yield held


def _schema(work: Work) -> pa.Schema:
    """The unit's own columns, kept fields, vectors."""
    store, per = work.store, work.settings.per
    own = (
        [("sentence", pa.int64()), ("id", pa.string())]
        if per == "sentence"
        else [("first_sentence", pa.int64())]
    )
    counts = (
        [("n_tokens", pa.int64())]
        if per == "sentence"
        else [("n_sentences", pa.int64()), ("n_tokens", pa.int64())]
    )
    document = [("document", pa.string())] if "document" in store.columns else []
    kept = [
        field.column
        for field in store.fields.values()
        if per == "sentence" or field.per == SENTENCE
    ]
    number = pa.float16() if work.settings.dtype == "float16" else pa.float32()
    vectors = [(name, pa.list_(pa.field("element", number))) for name in work.vectors.names]
    names = [
        pa.field(*column) for column in (*own, *document, ("source", pa.string()), *counts)
    ] + kept
    if clash := {field.name for field in names}.intersection(work.vectors.names):
        raise StoreError(
            f"the weight set {min(clash)!r} would have the name of another column: give it another name"
        )
    return pa.schema([*names, *(pa.field(*column) for column in vectors)])


def _table(work: Work, units: Units, schema: pa.Schema) -> pa.Table:
    own = {
        "sentence": units.first,
        "first_sentence": units.first,
        "n_sentences": units.n_sentences,
        "n_tokens": units.n_rows,
    }
    names = [name for name in schema.names if name not in own and name not in work.vectors.names]
    columns: dict[str, Any] = {name: pa.array(own[name]) for name in schema.names if name in own}
    table = work.store.table(units.first.tolist(), names)
    columns |= {name: table[name] for name in names}
    is_empty = units.n_rows == 0
    offsets = pa.array(np.cumsum([0, *np.where(is_empty, 0, work.vectors.width)]), pa.int32())
    with np.errstate(over="ignore"):
        numbers = units.vectors()[~is_empty].astype(
            work.settings.dtype
        )  # [units with rows, K, width]
    for k, name in enumerate(work.vectors.names):
        if not np.isfinite(numbers[:, k]).all():
            raise StoreError(
                f"weight set {name!r} gives a value that {work.settings.dtype} can't hold: take `dtype='float32'`"
            )
        flat = pa.array(np.ascontiguousarray(numbers[:, k]).reshape(-1))
        columns[name] = pa.ListArray.from_arrays(
            offsets, flat, type=schema.field(name).type, mask=pa.array(is_empty)
        )
    return pa.table([columns[name] for name in schema.names], schema=schema)
