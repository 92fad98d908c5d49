"""All objects of one shard, in every form of its store: what a worker calls before it puts them.

May import the two forms, manifest, NumPy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store import parquet_form, zarr_form
from elmo_store.manifest import Manifest


def encode(
    manifest: Manifest,
    shard: int,
    states: npt.NDArray[Any],
    tokens: Sequence[str],
    sentence: npt.NDArray[np.int64],
    index_in_sentence: npt.NDArray[np.int32],
) -> list[tuple[str, bytes | bytearray]]:
    """Path in the store and bytes of each object of shard ``shard``; the same rows always give the same bytes.

    Args:
        manifest: of the store, its counts known.
        shard: its number.
        states: [n, n_states, channels] in the manifest's dtype, n the rows of this shard.
        tokens: n tokens, "<S>" and "</S>" in the rows that boundaries add.
        sentence: int64 [n], the number of each row's sentence in the store.
        index_in_sentence: int32 [n], the row's place in its sentence.

    Raises:
        ValueError: the arrays are not those of this shard.
    """
    first, stop = manifest.shard_range(shard)
    wanted = (stop - first, len(manifest.states), manifest.channels)
    if states.shape != wanted or states.dtype != np.dtype(manifest.dtype):
        raise ValueError(
            f"shard {shard} takes states of shape {wanted} in {manifest.dtype}, these are {states.shape} in {states.dtype}"
        )
    lengths = {"tokens": len(tokens), "sentence": len(sentence), "index_in_sentence": len(index_in_sentence)}
    for name, length in lengths.items():
        if length != stop - first:
            raise ValueError(f"shard {shard} holds rows {first} … {stop}, {stop - first} of them; {name} has {length}")
    objects: list[tuple[str, bytes | bytearray]] = []
    if "zarr" in manifest.forms:
        objects.append(zarr_form.encode_shard(manifest, shard, states))
        objects.append(zarr_form.encode_tokens(manifest, shard, tokens))
    if "parquet" in manifest.forms:
        objects.append(parquet_form.encode_shard(manifest, shard, states, tokens, sentence, index_in_sentence))
    return objects
