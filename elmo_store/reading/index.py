"""Turn an index into the numbers of sentences or rows, with the rules of NumPy.

Every call of this package that takes an index uses these functions, so that all of them accept and refuse
the same. Accepted are integers of Python and NumPy, negative ones counted from the end, slices, ranges,
lists and arrays of integers, and boolean masks with a value for each item. Nothing is read here.

NumPy is stricter or looser in three places. A tuple is a list here, because there is one axis. A boolean is
never an integer, neither alone, nor among integers, nor in a slice. What cannot be an index is a TypeError,
where NumPy raises IndexError, because IndexError says that an item does not exist.
"""

import operator
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elmo_store.errors import SentenceNotFoundError

Int64 = npt.NDArray[np.int64]
Index = int | np.integer[Any] | slice | Sequence[int] | npt.NDArray[Any]
Noun = Literal["sentence", "row"]
BOOLEANS = {bool, np.bool_}
SHOWN_CHARACTERS = 80  # of what was passed, in an error


def resolve_index(index: Any, size: int, noun: Noun, where: str) -> int | range | Int64:
    """Return the number that an integer chooses, or the numbers that any other index chooses, in its order.

    Args:
        index: see the module.
        size: how many items there are; numbers in the result are from 0 to ``size - 1``.
        noun: what errors call an item.
        where: where the items are, for errors.

    Returns:
        An int for an integer; otherwise a range, or an int64 array of one axis.

    Raises:
        TypeError: ``index`` is of another kind; the message shows it.
        SentenceNotFoundError, or IndexError for rows: no item has that number.
        IndexError: a mask has more or fewer values than there are items.
    """
    if type(index) is int:  # the usual case
        return _checked_number(index, size, noun, where)
    if isinstance(index, slice):
        return _numbers_of_slice(index, size, noun, where)
    if isinstance(index, range):
        return _numbers_of_range(index, size, noun, where)
    try:
        array = _as_array(index)
    except (TypeError, ValueError):  # nested lists of several lengths
        raise _not_an_index(index, noun, where) from None
    if array.ndim == 0:
        if not _is_integer(index, array):
            raise _not_an_index(index, noun, where)
        return _checked_number(operator.index(index), size, noun, where)
    if array.dtype == np.int64 and array.ndim == 1:  # sooner than by the general way
        is_outside = (array < 0) | (array >= size)
        if not np.count_nonzero(is_outside):
            return array
    return _numbers_of_array(array, index, size, noun, where)


def resolve_numbers(index: Any, size: int, noun: Noun, where: str) -> range | Int64:
    """Return `resolve_index` as a sequence: an integer chooses a sequence of one."""
    numbers = resolve_index(index, size, noun, where)
    return np.array([numbers], np.int64) if isinstance(numbers, int) else numbers


def resolve_number(index: Any, size: int, noun: Noun, where: str) -> int:
    """Return the number that an integer chooses. Raises as `resolve_index`; TypeError for any other index."""
    if type(index) is int:
        return _checked_number(index, size, noun, where)
    array = np.asarray(None if isinstance(index, list | tuple | slice | range) else index)
    if array.ndim > 0 or not _is_integer(index, array):
        raise TypeError(f"a {noun} of {where} can't be chosen by {_shown(index)}: pass one integer")
    return _checked_number(operator.index(index), size, noun, where)


def _as_array(index: Any) -> npt.NDArray[Any]:
    if not isinstance(index, list | tuple):
        return np.asarray(index)
    if not index:
        return np.zeros(0, np.int64)
    types = set(map(type, index))
    if types & BOOLEANS and not types <= BOOLEANS:
        raise TypeError("booleans among other values")  # NumPy would take them for 0 and 1
    if types == {int}:
        # NumPy makes floats or objects of integers beyond 64 bits, which are out of range in any case.
        low, high = min(index), max(index)
        if low < -(2**63) or high >= 2**63:
            return np.array(index, object)
    return np.asarray(index)


def _is_integer(index: Any, array: npt.NDArray[Any]) -> bool:
    """Return True for one integer, of NumPy or of any type that is made to be an index.

    ``array``: ``index`` as an array without axes.
    """
    return array.dtype.kind in "iu" or (array.dtype == object and hasattr(index, "__index__"))


def _numbers_of_slice(index: slice, size: int, noun: Noun, where: str) -> range:
    for edge in (index.start, index.stop, index.step):
        if edge is not None and (type(edge) in BOOLEANS or not hasattr(edge, "__index__")):
            raise _not_an_index(index, noun, where)
    return range(size)[index]


def _numbers_of_range(index: range, size: int, noun: Noun, where: str) -> range | Int64:
    if not index:
        return range(0)
    first, last = index[0], index[-1]
    for number in (first, last):
        _checked_number(number, size, noun, where)
    if min(first, last) >= 0:
        return index
    if max(first, last) < 0:  # all are counted from the end
        return range(index.start + size, index.stop + size, index.step)
    numbers = np.arange(index.start, index.stop, index.step)
    return np.where(numbers < 0, numbers + size, numbers)


def _numbers_of_array(
    array: npt.NDArray[Any], index: Any, size: int, noun: Noun, where: str
) -> Int64:
    if array.ndim != 1:
        raise _not_an_index(index, noun, where)
    if array.dtype == bool:
        if len(array) != size:
            raise IndexError(
                f"a mask of {len(array)} values does not fit {where}, which has {_counted(size, noun)}: "
                "pass one value for each"
            )
        return np.flatnonzero(array)
    of_large_integers = array.dtype == object and isinstance(index, list | tuple)
    if array.dtype.kind not in "iu" and not (of_large_integers and set(map(type, index)) == {int}):
        raise _not_an_index(index, noun, where)
    outside = array[(array < -size) | (array >= size)]
    if len(outside):
        raise _not_found(int(outside[0]), size, noun, where)
    numbers = array.astype(np.int64)
    return np.where(numbers < 0, numbers + size, numbers)


def _checked_number(number: int, size: int, noun: Noun, where: str) -> int:
    if not -size <= number < size:
        raise _not_found(number, size, noun, where)
    return number % size


def _not_found(number: int, size: int, noun: Noun, where: str) -> IndexError:
    message = f"no {noun} {number} in {where}: it has {_counted(size, noun)}, counted from 0"
    return SentenceNotFoundError(message) if noun == "sentence" else IndexError(message)


def _not_an_index(index: Any, noun: Noun, where: str) -> TypeError:
    return TypeError(
        f"{noun}s of {where} can't be chosen by {_shown(index)}: pass integers, a slice, or a mask"
    )


def _shown(index: Any) -> str:
    """Return what was passed and its type; of an array its dtype and shape."""
    kind = type(index).__name__
    if hasattr(index, "dtype") and len(index.shape):
        return f"{kind} of {index.dtype} and shape {tuple(index.shape)}"
    text = repr(index)
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}…"
    return f"{text} ({kind})"


def _counted(size: int, noun: Noun) -> str:
    return f"{size} {noun}{'' if size == 1 else 's'}"


def check_one_axis(index: Any) -> None:
    """Raise TypeError for an index of several axes, ``x[1, 2]``: sentences and rows have one."""
    if isinstance(index, tuple):
        raise TypeError(f"an index of one axis is wanted, got {index!r}: pass numbers as a list")


def as_names(names: Sequence[str] | str) -> list[str]:
    """Return names of ids, columns or states as a list; one string is one name.

    Raises:
        TypeError: something among them is not a string.
    """
    listed = [names] if isinstance(names, str) else list(names)
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(
                f"{name!r} ({type(name).__name__}) is not a string: pass names as strings"
            )
    return listed
