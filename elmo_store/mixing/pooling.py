"""One vector of several rows: their mean, greatest numbers, first or last row; of sentences, or of documents in pieces."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.mixing import Pool

Array = npt.NDArray[Any]


@dataclass
class Pooled:
    """What is known of units whose rows were seen so far.

    Attributes:
        values: float64 [units, …]: sums of "mean", otherwise the vectors themselves; 0 where a unit has no rows.
        n_rows: int64 [units].
    """

    pool: Pool
    values: Array
    n_rows: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Array, bounds: npt.NDArray[np.int64], pool: Pool) -> "Pooled":
        """Units of consecutive ``rows`` [n, …]: unit i has ``bounds[i] … bounds[i + 1]`` [units + 1]; it may have none."""
        n_rows = np.diff(bounds)
        filled = n_rows > 0
        first = bounds[:-1][filled]
        values = np.zeros((len(n_rows), *rows.shape[1:]))
        if pool in ("first", "last"):
            values[filled] = rows[first if pool == "first" else bounds[1:][filled] - 1]
        elif len(first):
            reduce = np.add if pool == "mean" else np.maximum
            values[filled] = reduce.reduceat(rows[: bounds[-1]].astype(np.float64), first, axis=0)
        return cls(pool, values, n_rows)

    def followed_by(self, rest: "Pooled") -> "Pooled":
        """The same units with the rows of ``rest`` behind their own."""
        empty, more = self.n_rows == 0, rest.n_rows > 0
        values = self.values + rest.values if self.pool == "mean" else self.values.copy()
        if self.pool == "max":
            values = np.maximum(values, rest.values)
            values[~more] = self.values[~more]
        taken = more if self.pool == "last" else empty
        values[taken] = rest.values[taken]
        return Pooled(self.pool, values, self.n_rows + rest.n_rows)

    def vectors(self) -> Array:
        """float64 [units, …], NaN for a unit without rows."""
        divisor = self.n_rows if self.pool == "mean" else np.ones_like(self.n_rows)
        values = self.values / np.maximum(divisor, 1).reshape(-1, *[1] * (self.values.ndim - 1))
        values[self.n_rows == 0] = np.nan
        return values
