"""Writes the golden stores of tests/store/golden: ``python -m tests.store.write_goldens FOLDER``.

Run it for a new form, kind or codec, into a new folder; the stores that are committed are never written again: they show
that what version 1 wrote can be read for ever. Their contents are `expected`, by arithmetic that no writer is part of.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

import elmo_store
from elmo_store import collecting
from elmo_store.format.manifest import MixInfo, WeightSet
from elmo_store.format.numbers import Int8Rows
from elmo_store.storage.root import Root
from tests.store import support

LENGTHS = (3, 0, 5, 0, 1, 2)  # sentence 1 is a blank line, sentence 3 a record that was refused
CHANNELS, SHARD_ROWS = 4, 8
SETS = (WeightSet("task", (0.25, 0.25, 0.5), 2.0), WeightSet("other", (1.0, 0.0, 0.0), 1.0))
MIX = MixInfo("golden/zarr", "3" * 64, False, SETS)
# Some have other sizes inside than this version writes: a reader takes them from the manifest.
STORES: dict[str, dict[str, Any]] = {
    "zarr": {"store_forms": ("zarr",), "sentence_chunk": 4096},
    "zarr-float32-zstd-crc32c": {
        "store_forms": ("zarr",),
        "dtype": "float32",
        "compression": "zstd",
        "checksum": "crc32c",
        "chunk_rows": 4,
    },
    "zarr-boundaries-blosc": {"store_forms": ("zarr",), "boundaries": True, "compression": "blosc"},
    "parquet": {"store_forms": ("parquet",)},
    "both-some-states": {
        "store_forms": ("zarr", "parquet"),
        "states": ("x", "bwd1", "fwd2"),
        "sentence_chunk": 4,
    },
    "int8": {"store_forms": ("zarr", "parquet"), "dtype": "int8"},
    "int8-zstd-crc32c": {
        "store_forms": ("zarr",),
        "dtype": "int8",
        "compression": "zstd",
        "checksum": "crc32c",
    },
    "int8-boundaries": {
        "store_forms": ("zarr",),
        "dtype": "int8",
        "boundaries": True,
        "chunk_rows": 4,
    },
    "mix": {"store_forms": ("zarr", "parquet"), "mix": MIX, "dtype": "float32"},
}
COLLECTED = (
    (LENGTHS, SHARD_ROWS),
    ((4, 0, 2, 6), SHARD_ROWS),
    ((1, 2), 4),
)  # lengths and shards of the golden collection
REMOVED = ("doc.txt:0", "doc.txt:3")  # the first store and the second have both of them


def expected(n_rows: int, n_states: int) -> npt.NDArray[np.float32]:
    """[rows, states, channels]: numbers that every dtype holds exactly."""
    row, state, channel = np.ogrid[:n_rows, :n_states, :CHANNELS]
    return ((row * 31 + state * 7 + channel * 3) % 64 - 32).astype(np.float32) / 8


def expected_raw(n_rows: int, n_states: int) -> Int8Rows:
    """The same of int8 stores: values that all differ, scales that are powers of two."""
    row, state, channel = np.ogrid[:n_rows, :n_states, :CHANNELS]
    values = (row * 31 + state * 7 + channel * 53) % 255 - 127
    scale = 2.0 ** ((row + 2 * state)[..., 0] % 5 - 8)
    return Int8Rows(values.astype(np.int8), scale.astype(np.float32))


def write(folder: Path) -> None:
    """Every store of `STORES` that is not there yet."""
    for name, settings in STORES.items():
        if not (folder / name).exists():
            shape: dict[str, Any] = {
                "lengths": LENGTHS,
                "parts": (2, 4),
                "shard_rows": SHARD_ROWS,
                "channels": CHANNELS,
            }
            values = expected_raw if settings.get("dtype") == "int8" else expected
            support.make_store(str(folder / name), values=values, **shape, **settings)
            print(name)


def write_collection(folder: Path) -> None:
    """The golden collection: two stores laid out alike, in version 2 one that is not, in version 3 without `REMOVED`."""
    shape: dict[str, Any] = {"channels": CHANNELS, "values": expected, "store_forms": ("zarr",)}
    with TemporaryDirectory() as scratch:
        stores = []
        for number, (lengths, shard_rows) in enumerate(COLLECTED):
            url = f"{scratch}/{number}"
            support.make_store(
                url, lengths=lengths, parts=(len(lengths),), shard_rows=shard_rows, **shape
            )
            stores.append(elmo_store.open(url))
        collecting.collect(folder, stores[:2])
        collecting.collect(folder, stores[2:])
    collecting.remove(Root(folder), REMOVED)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    write_collection(Path(sys.argv[1]).with_name("golden-collection"))
