"""float16 to float32, several times as fast as NumPy's own cast, with the same bits.

A half's exponent and fraction, moved to where float32 has its own, are the number times 2⁻¹¹²: one product mends that, for
numbers below 2⁻¹⁴ too. Infinities and NaN, which it would not, are left to NumPy.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ROWS_AT_ONCE = 128  # what is made of them stays in the processor's caches between the steps
_EXPONENT = 0x7C00
_KEPT = np.int32(0x8FFFE000 - (1 << 32))  # sign, and what the shift brought, without the copies of the sign
_MENDS = np.float32(2.0**112)
_TINY = np.array([2.0**-140], np.float32)


def assign(out: Array, values: Array) -> None:
    """``out[...] = values``, both [rows, …] of the same shape, of any float dtypes and strides."""
    if (
        (values.dtype, out.dtype) != (np.dtype(np.float16), np.dtype(np.float32))
        or out.ndim == 0
        or not (_TINY * _TINY.size).all()
    ):
        out[...] = values  # also in a process that flushes subnormal numbers to zero
        return
    bits, moved = values.view(np.int16), out.view(np.int32)
    for first in range(0, len(out), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        if ((bits[rows] & _EXPONENT) == _EXPONENT).any():
            out[rows] = values[rows]
            continue
        moved[rows] = bits[rows]
        np.left_shift(moved[rows], 13, out=moved[rows])
        np.bitwise_and(moved[rows], _KEPT, out=moved[rows])
        np.multiply(out[rows], _MENDS, out=out[rows])


def widened(values: Array) -> Array:
    """``values.astype(numpy.float32)``; float32 as it is, without a copy."""
    if values.dtype != np.float16 or not values.ndim:
        return values.astype(np.float32, copy=False)
    out = np.empty(values.shape, np.float32)
    assign(out, values)
    return out
