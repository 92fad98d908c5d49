"""The forms of a store side by side: all objects of one shard as a worker puts them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import Array, Int8Rows, check_finite, quantized
from elmo_store.forms import parquet_form, zarr_form
from elmo_store.storage.data import Data


def shard_objects(manifest: Manifest, shard: int) -> list[str]:
    """Paths of the objects of a shard in every form of the store."""
    names = []
    if "zarr" in manifest.forms:
        scale = [layout.zarr_scale_shard(shard)] if manifest.is_int8 else []
        names += [layout.zarr_states_shard(shard), *scale, layout.zarr_token_chunk(shard)]
    if "parquet" in manifest.forms:
        names.append(layout.states_part(shard))
    return names


def encode_shard(
    manifest: Manifest,
    shard: int,
    states: Array | Int8Rows,
    tokens: Sequence[str],
    sentence: npt.NDArray[np.int64],
    index_in_sentence: npt.NDArray[np.int32],
) -> list[tuple[str, Data]]:
    """Path in the store and bytes of each object of shard ``shard``; the same rows always give the same bytes.

    Where ``states`` lie in memory state by state, as a view of [n_states, n, channels], bytes may be that memory itself.

    Args:
        states: [n, n_states, channels] in the manifest's dtype, n the rows of this shard. For an int8 store as `Int8Rows`, or in
            any float dtype, which is quantised here.
        tokens: n tokens, "<S>" and "</S>" in the rows that boundaries add.
        sentence: int64 [n], the number of each row's sentence in the store.
        index_in_sentence: int32 [n], the row's place in its sentence.

    ValueError: the arrays are not those of this shard, or what is to be int8 holds a number that is not finite.
    """
    first, stop = manifest.shard_range(shard)
    wanted = (stop - first, len(manifest.states), manifest.channels)
    if isinstance(states, Int8Rows):
        check_finite(
            states.scale, 0, len(states)
        )  # as engines leave the scale of a number that is not
    elif manifest.is_int8:
        states = quantized(states)
    values = states.values if isinstance(states, Int8Rows) else states
    if values.shape != wanted or values.dtype != np.dtype(manifest.dtype):
        raise ValueError(
            f"shard {shard} takes states of shape {wanted} in {manifest.dtype}, these are {values.shape} in {values.dtype}"
        )
    lengths = {
        "tokens": len(tokens),
        "sentence": len(sentence),
        "index_in_sentence": len(index_in_sentence),
    }
    for name, length in lengths.items():
        if length != stop - first:
            raise ValueError(
                f"shard {shard} holds rows {first} … {stop}, {stop - first} of them; {name} has {length}"
            )
    objects: list[tuple[str, Data]] = []
    if "zarr" in manifest.forms:
        objects += zarr_form.encode_shard(manifest, shard, states)
        objects.append(zarr_form.encode_tokens(manifest, shard, tokens))
    if "parquet" in manifest.forms:
        objects.append(
            parquet_form.encode_shard(manifest, shard, states, tokens, sentence, index_in_sentence)
        )
    return objects
