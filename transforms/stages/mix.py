"""The layers of a store's rows, weighed by one or more sets of learned weights: a pure function."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.format.manifest import Manifest, WeightSet
from elmo_store.mixing.scalar_mix import ScalarMix

ROWS_AT_ONCE = 2048  # rows mixed in float32 at a time: bounds the memory of the intermediate layers


def mix_rows(states: npt.NDArray[Any], weight_sets: Sequence[WeightSet], *, layer_norm: bool, dtype: str) -> npt.NDArray[Any]:
    """Mix rows with every weight set.

    Args:
        states: [n, 2L+1, p], float16 or float32.
        weight_sets: k sets of L+1 weights each.
        layer_norm: whether each layer of each token is first shifted and scaled over its channels.
        dtype: of the result, "float16" or "float32"; the mix itself is computed in float32.

    Returns:
        [n, k, 2p].

    Raises:
        ValueError: a result does not fit the dtype (float16 ends at 65,504).
    """
    mixes = [ScalarMix.of(weights, "token" if layer_norm else "none") for weights in weight_sets]
    mixed = np.empty((len(states), len(mixes), 2 * states.shape[2]), dtype)
    for first in range(0, len(states), ROWS_AT_ONCE):
        rows = states[first : first + ROWS_AT_ONCE]  # [rows, 2L+1, p]
        for column, mix in enumerate(mixes):
            with np.errstate(over="ignore"):  # reported below, with its place
                mixed[first : first + len(rows), column] = mix(states=rows)
    finite = np.isfinite(mixed)
    if not finite.all():
        row, column, _ = (int(axis) for axis in np.argwhere(~finite)[0])
        raise ValueError(
            f"weight set {weight_sets[column].name!r} gives a value that {dtype} can't hold (row {row} of its shard): "
            "mix to --dtype float32, or look at gamma"
        )
    return mixed


def mixed_rows(states: npt.NDArray[Any], target: Manifest) -> npt.NDArray[Any]:
    """Rows [n, 2L+1, p] as the mixed store ``target`` wants them: [n, k, 2p], in float32 where it quantises them."""
    if target.mix is None:
        raise ValueError("the target is not a mixed store")
    numbers = "float32" if target.is_int8 else target.dtype
    return mix_rows(states, target.mix.weight_sets, layer_norm=target.mix.layer_norm, dtype=numbers)
