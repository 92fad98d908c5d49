"""Files with mixing weights that somebody else made: refused by a WeightSetError that names the file; nothing in them is run."""

import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from elmo_store.errors import WeightSetError
from elmo_store.mixing.scalar_mix import ScalarMix
from elmo_store.mixing.weights import read_weight_sets

DEEP = 100_000


def tensors(dtype: torch.dtype) -> bytes:
    return save({"scalar_parameters.0": torch.zeros(1).to(dtype), "gamma": torch.ones(1).to(dtype)})


def state_dict(tensors: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    torch.save(tensors, sink)
    return sink.getvalue()


class Executed:
    """Its pickle makes a folder when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


BAD: dict[str, tuple[str, Callable[[], bytes]]] = {
    "nested 100,000 deep": ("w.json", lambda: b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "a list as deep": ("w.json", lambda: b"[" * DEEP + b"]" * DEEP),
    "w of 10^400": ("w.json", lambda: json.dumps({"w": [10**400, 0, 0], "gamma": 1}).encode()),
    "gamma of 10^400": ("w.json", lambda: json.dumps({"w": [0, 0, 0], "gamma": 10**400}).encode()),
    "gamma of 5,000 digits": ("w.json", lambda: b'{"w": [0, 0, 0], "gamma": 1' + b"0" * 5000 + b"}"),
    "gamma of 1e300": ("w.json", lambda: json.dumps({"w": [0, 0, 0], "gamma": 1e300}).encode()),
    "gamma of -1e39": ("w.json", lambda: json.dumps({"w": [0, 0, 0], "gamma": -1e39}).encode()),
    "s whose sum overflows": ("w.json", lambda: json.dumps({"s": [1e308, 1e308, 0], "gamma": 1}).encode()),
    "NaN": ("w.json", lambda: b'{"w": [NaN, 0, 0], "gamma": 1}'),
    "a name of half a surrogate pair": ("w.json", lambda: b'{"\\ud800": {"w": [0, 0, 0], "gamma": 1}}'),
    "UTF-16": ("w.json", lambda: '{"w": [0, 0, 0], "gamma": 1}'.encode("utf-16")),
    "a header nested as deep": ("w.safetensors", lambda: struct.pack("<Q", 2 * DEEP) + b"[" * DEEP + b"]" * DEEP),
    "a header of 2^62 bytes": ("w.safetensors", lambda: struct.pack("<Q", 2**62)),
    "bfloat16": ("w.safetensors", lambda: tensors(torch.bfloat16)),
    "eight bits": ("w.safetensors", lambda: tensors(torch.float8_e4m3fn)),
    "complex numbers": ("w.safetensors", lambda: tensors(torch.complex64)),
    "no layer": ("w.safetensors", lambda: save({"scalar_parameters.0": torch.zeros(0), "gamma": torch.ones(1)})),
    "a layer of 5,000 digits": (
        "w.pt", lambda: state_dict({"scalar_parameters." + "9" * 5000: torch.ones(1), "gamma": torch.ones(1)}),
    ),
    "a pickle": ("w.pt", lambda: pickle.dumps(Executed(), protocol=2)),
    "a pickle in a state dict": ("w.th", lambda: state_dict({"scalar_parameters.0": Executed()})),
    "a cut state dict": ("w.th", lambda: state_dict({"scalar_parameters.0": torch.ones(1)})[:-100]),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_weights_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.chdir(tmp_path)
    name, data = BAD[what]
    (tmp_path / name).write_bytes(data())
    with pytest.raises(WeightSetError, match=name):
        read_weight_sets(str(tmp_path / name))
    assert not (tmp_path / "executed").exists()


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "w.json").mkdir()
    with pytest.raises(WeightSetError, match="is a folder"):
        read_weight_sets(str(tmp_path / "w.json"))


def test_a_mix_stays_finite_for_every_gamma_that_is_taken() -> None:
    with pytest.raises(WeightSetError, match="float32, which ends at"):
        ScalarMix([0.0, 0.0, 0.0], gamma=1e300)
    mixed = ScalarMix([0.0, 0.0, 0.0], gamma=3e38)(states=np.ones((1, 5, 2), np.float32))
    assert np.isfinite(mixed).all()
