"""The goldens, see docs/development/data.md: the original TensorFlow code's top layer of 30 sentences in 3 lanes."""

import json
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt


def lanes(shared_dir: Path) -> list[list[list[str]]]:
    """Tokens of each sentence of each lane."""
    text: list[list[str]] = json.loads((shared_dir / "golden" / "sentences.json").read_text(encoding="utf-8"))
    return [[sentence.split() for sentence in lane] for lane in text]


def top_layers(shared_dir: Path) -> list[list[npt.NDArray[np.float32]]]:
    """[2, n, 16] (forward, backward) of each sentence of each lane; no boundary rows."""
    result = []
    for k in range(3):
        with h5py.File(shared_dir / "golden" / f"lm_embeddings_{k}.hdf5", "r") as file:
            result.append([np.asarray(file[str(i)][()]) for i in range(10)])
    return result
