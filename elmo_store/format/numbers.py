"""Numbers of rows: in 8 bits, with a scale for each state of each row that they are multiplied by.

docs/store-format.md has the form, docs/development/performance.md what it loses. Everything works row by row and is the same
however rows are cut into blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
GREATEST = 127  # of the numbers; -128 is never written
GREATEST_SCALE = np.nextafter(
    np.finfo(np.float32).max / np.float32(GREATEST), np.float32(0)
)  # times 127 it is a number still
FLOAT16_MAX = 65_504  # a greater number would be stored as infinite
# Of numbers of so many bytes: all bits but the sign, and the least such bits of a number that is not finite.
_MAGNITUDES = {2: (0x7FFF, 0x7C00), 4: (0x7FFF_FFFF, 0x7F80_0000)}
ROWS_AT_ONCE = 128  # that are worked on together, so that they stay in the processor's caches


@dataclass(frozen=True)
class Int8Rows:
    """Rows as an int8 store has them."""

    values: Array  # int8 [..., states, channels]
    scale: Array  # float32 [..., states], 0 or more; ``values × scale`` are the states

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> "Int8Rows":
        """Some rows, or with an index of two axes some states of some rows."""
        return Int8Rows(self.values[rows], self.scale[rows])

    def __setitem__(self, rows: slice, stored: "Int8Rows") -> None:
        self.values[rows], self.scale[rows] = stored.values, stored.scale

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.values.nbytes + self.scale.nbytes

    def __iter__(self) -> Iterator[Array]:
        """``values, scale = …``."""
        return iter((self.values, self.scale))

    def floats(self) -> Array:
        """The states, float32 [..., states, channels]: one product a number, so every reader gives the same bits.

        Laid out in memory as ``values`` are, if rows are their first of three axes.
        """
        if self.values.ndim != 3:
            return np.multiply(self.values, self.scale[..., None], dtype=np.float32)
        by_state = self.values.transpose(1, 0, 2)  # readers give views of one state after the other
        return np.multiply(by_state, self.scale.T[..., None], dtype=np.float32).transpose(1, 0, 2)


def row_block(n_states: int, n_rows: int, channels: int, dtype: npt.DTypeLike) -> Any:
    """Memory for rows as they are stored, one state after the other: [rows, states, channels], of int8 `Int8Rows`."""
    values = np.empty((n_states, n_rows, channels), dtype).transpose(1, 0, 2)
    return (
        Int8Rows(values, np.empty((n_rows, n_states), np.float32))
        if values.dtype == np.int8
        else values
    )


def quantized(states: Array) -> Int8Rows:
    """States [n, S, channels] of any float dtype in 8 bits.

    The scale of a state of a row is its largest absolute value / 127, in float32 (and at most `GREATEST_SCALE`); a value is the
    state's number / scale, rounded to the nearest whole number, halves to the even one. A state of zeros has the scale 0.

    Raises:
        ValueError: a number is not finite; names its row.
    """
    values, scale = np.empty(states.shape, np.int8), np.empty(states.shape[:-1], np.float32)
    for first in range(0, len(states), ROWS_AT_ONCE):
        rows = np.asarray(states[first : first + ROWS_AT_ONCE], np.float32)
        most = np.maximum(rows.max(axis=-1), -rows.min(axis=-1))  # [rows, S]
        check_finite(most, first, len(states))
        own = np.minimum(most / np.float32(GREATEST), GREATEST_SCALE) + np.float32(
            0
        )  # of zeros 0, not -0
        scale[first : first + len(rows)] = own
        ratio = rows / np.where(own == 0, np.float32(np.inf), own)[..., None]
        # Below 1e-36 a scale has few bits left: a ratio may then pass 127.
        values[first : first + len(rows)] = np.clip(
            np.rint(ratio, out=ratio), -GREATEST, GREATEST, out=ratio
        )
    return Int8Rows(values, scale)


def check_finite(values: Array, first: int, n: int) -> None:
    """ValueError for numbers that are not finite; ``values`` [rows, S] are of the rows from ``first`` on, of ``n``."""
    if not np.isfinite(values).all():
        row = first + int(np.argwhere(~np.isfinite(values))[0, 0])
        raise ValueError(
            f"row {row} of these {n} holds a number that is not finite: 8 bits have no place for it"
        )


def row_not_finite(states: Array | Int8Rows) -> int | None:
    """Return the first row that holds a number that is not finite, None if there is none.

    Args:
        states: [n, S, p], float16 or float32; of int8 the engine leaves a scale of NaN for such a number.
    """
    numbers = states.scale if isinstance(states, Int8Rows) else states
    magnitude, least = _MAGNITUDES[numbers.itemsize]
    # Integers are compared many times as fast as `numpy.isfinite` looks at float16.
    bits = numbers.view(f"u{numbers.itemsize}")
    for first in range(0, len(bits), ROWS_AT_ONCE):
        block = bits[first : first + ROWS_AT_ONCE] & magnitude
        if block.max(initial=0) >= least:
            return first + int(np.argwhere(block >= least)[0, 0])
    return None
