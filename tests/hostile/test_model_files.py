"""Weights and options that somebody else made: refused by a typed error that names the file; nothing in them is run."""

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from model.errors import ModelError, OptionsError, WeightsError
from model.files.registry import random_weights
from model.files.weights import BiLMWeights
from model.options import MOST_LAYERS, read_options
from tests.pipeline.conftest import TINY

DEEP = 100_000  # levels; Python's and Rust's parsers give up at far fewer


def deep_json() -> str:
    return '{"a":' * DEEP + "1" + "}" * DEEP


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the published layout (options.json, weights.hdf5), and weights.safetensors in ``one/``."""
    folder = tmp_path_factory.mktemp("model")
    weights = random_weights(TINY)
    weights.save_hdf5(folder)
    weights.save_safetensors(folder / "one" / "weights.safetensors")
    return folder


def options_with(section: str, key: str, value: Any) -> dict[str, Any]:
    options = TINY.to_dict()
    options[section][key] = value
    return options


BAD_OPTIONS: dict[str, tuple[str, str]] = {
    "nested 100,000 deep": (deep_json(), "can't be read as JSON"),
    "a list as deep": ("[" * DEEP + "]" * DEEP, "can't be read as JSON"),
    "a clip of 10^400": (
        json.dumps(options_with("lstm", "cell_clip", 10**400)),
        "cell_clip is 1000.*: Number out of range",
    ),
    "a clip that is no number": (
        json.dumps(options_with("lstm", "proj_clip", 77)).replace(": 77,", ": NaN,"),
        "proj_clip is nan",
    ),
    "10^7 layers": (
        json.dumps(options_with("lstm", "n_layers", 10**7)),
        f"n_layers is 10000000: .*<= {MOST_LAYERS}",
    ),
    "10^30 wide": (
        json.dumps(options_with("lstm", "projection_dim", 10**30)),
        "projection_dim is 1000.*<= 1048576",
    ),
    "10^9 highways": (
        json.dumps(options_with("char_cnn", "n_highway", 10**9)),
        "n_highway is 1000",
    ),
    "words of 10^9": (
        json.dumps(options_with("char_cnn", "max_characters_per_token", 10**9)),
        "max_characters_per_token is",
    ),
    "10^30 filters": (
        json.dumps(options_with("char_cnn", "filters", [[1, 10**30]])),
        r"filters\[0\]\[1\] is 1000.*<= 1048576",
    ),
    "1,000 kinds of filter": (
        json.dumps(options_with("char_cnn", "filters", [[1, 1]] * 1000)),
        "filters is .*length <= 256",
    ),
    "a list": ("[]", "no options of a biLM .* holds the objects 'lstm' and 'char_cnn'"),
}


@pytest.mark.parametrize("what", BAD_OPTIONS)
def test_options_that_no_model_has(tmp_path: Path, what: str) -> None:
    text, said = BAD_OPTIONS[what]
    path = tmp_path / "options.json"
    path.write_text(text)
    with pytest.raises(OptionsError, match=said) as caught:
        read_options(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_options_with_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(TINY.to_dict()).encode())
    assert read_options(tmp_path / "options.json") == TINY


def safetensors_of(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def _with_options(good: Path, options: str) -> bytes:
    """The sound file with other options in its metadata."""
    whole = (good / "one" / "weights.safetensors").read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size]) | {"__metadata__": {"options": options}}
    return safetensors_of(json.dumps(header).encode(), whole[8 + size :])


def _nan(good: Path) -> bytes:
    whole = bytearray((good / "one" / "weights.safetensors").read_bytes())
    whole[-4:] = np.array([np.nan], "<f4").tobytes()
    return bytes(whole)


def _bfloat16(good: Path) -> bytes:
    """A tensor of half the bytes, declared twice as wide."""
    whole = (good / "one" / "weights.safetensors").read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    header["char_embed"] |= {"dtype": "BF16", "shape": [262, 8]}
    return safetensors_of(json.dumps(header).encode(), whole[8 + size :])


BAD_SAFETENSORS: dict[str, Callable[[Path], bytes]] = {
    "empty": lambda good: b"",
    "a header of 2^62 bytes": lambda good: struct.pack("<Q", 2**62) + b"{}",
    "a header longer than the file": lambda good: struct.pack("<Q", 10**6) + b"{}",
    "a header of 101 MB": lambda good: safetensors_of(b"{" + b" " * 101_000_000 + b"}"),
    "a header nested 100,000 deep": lambda good: safetensors_of(deep_json().encode()),
    "options nested 100,000 deep": lambda good: _with_options(good, deep_json()),
    "options of 10^400": lambda good: _with_options(
        good, json.dumps(options_with("lstm", "cell_clip", 10**400))
    ),
    "10^7 layers": lambda good: _with_options(
        good, json.dumps(options_with("lstm", "n_layers", 10**7))
    ),
    "another model's options": lambda good: _with_options(
        good, json.dumps(options_with("lstm", "dim", 64))
    ),
    "NaN": _nan,
    "bfloat16 of another shape": _bfloat16,
    "a pickle by that name": lambda good: pickle.dumps(Executed()),
}


class Executed:
    """Its pickle makes a folder when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("what", BAD_SAFETENSORS)
def test_safetensors_that_are_none(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.safetensors").write_bytes(BAD_SAFETENSORS[what](good))
    with pytest.raises(ModelError):
        BiLMWeights.load(str(tmp_path))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["w.pkl", "w.pt", "w.bin", "w.npy", "w.ckpt"])
def test_formats_that_can_run_code_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps(Executed()))
    with pytest.raises(WeightsError, match="can hold code"):
        BiLMWeights.load(str(tmp_path / name))
    with pytest.raises(WeightsError, match="no weights that can be recognised"):
        BiLMWeights.load(str(tmp_path))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.hdf5", "options.json"])
def test_a_folder_in_place_of_a_file(good: Path, tmp_path: Path, name: str) -> None:
    for other in ("options.json", "weights.hdf5"):
        if other != name:
            (tmp_path / other).write_bytes((good / other).read_bytes())
    (tmp_path / name).mkdir()
    with pytest.raises(ModelError, match=name):
        BiLMWeights.load(str(tmp_path))


def _secret(folder: Path) -> Path:
    """A sound dataset that stands outside."""
    path = folder / "outside.hdf5"
    with h5py.File(path, "w") as file:
        file["CNN_proj/W_proj"] = np.zeros((32, 16), np.float32)
        file["CNN_proj/b_proj"] = np.zeros(16, np.float32)
    return path


def _external_link(file: h5py.File, outside: Path) -> None:
    del file["CNN_proj/b_proj"]
    file["CNN_proj/b_proj"] = h5py.ExternalLink(str(outside), "/CNN_proj/b_proj")


def _external_group(file: h5py.File, outside: Path) -> None:
    del file["CNN_proj"]
    file["CNN_proj"] = h5py.ExternalLink(str(outside), "/CNN_proj")


def _soft_link(file: h5py.File, outside: Path) -> None:
    file["out"] = h5py.ExternalLink(str(outside), "/CNN_proj")
    del file["CNN_proj/b_proj"]
    file["CNN_proj/b_proj"] = h5py.SoftLink("/out/b_proj")


def _external_bytes(file: h5py.File, outside: Path) -> None:
    del file["CNN_proj/b_proj"]
    file.create_dataset("CNN_proj/b_proj", (16,), np.float32, external=[(str(outside), 0, 64)])


def _virtual(file: h5py.File, outside: Path) -> None:
    layout = h5py.VirtualLayout((16,), np.float32)
    layout[:] = h5py.VirtualSource(str(outside), "/CNN_proj/b_proj", (16,))
    del file["CNN_proj/b_proj"]
    file.create_virtual_dataset("CNN_proj/b_proj", layout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [_external_link, _external_group, _soft_link, _external_bytes, _virtual]
)
def test_hdf5_is_not_followed_out_of_its_file(
    good: Path, tmp_path: Path, change: Callable[[h5py.File, Path], None]
) -> None:
    for name in ("options.json", "weights.hdf5"):
        (tmp_path / name).write_bytes((good / name).read_bytes())
    with h5py.File(tmp_path / "weights.hdf5", "r+") as file:
        change(file, _secret(tmp_path))
    with pytest.raises(WeightsError, match="must be in the file itself"):
        BiLMWeights.load(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((2, 3), np.float32), "has shape"),
        (np.zeros(16, np.int32), "not floating point"),
        (np.full(16, np.nan, np.float32), "NaN or infinity"),
        (np.full(16, 1e300, np.float64), "NaN or infinity"),
        (np.array([b"x"] * 16), "not floating point"),
    ],
)
def test_hdf5_of_wrong_shapes_types_and_numbers(
    good: Path, tmp_path: Path, value: Any, said: str
) -> None:
    for name in ("options.json", "weights.hdf5"):
        (tmp_path / name).write_bytes((good / name).read_bytes())
    with h5py.File(tmp_path / "weights.hdf5", "r+") as file:
        del file["CNN_proj/b_proj"]
        file["CNN_proj/b_proj"] = value
    with np.errstate(over="ignore"), pytest.raises(WeightsError, match=said):
        BiLMWeights.load(str(tmp_path))


def test_a_cut_hdf5_file_is_damaged(good: Path, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_bytes((good / "options.json").read_bytes())
    whole = (good / "weights.hdf5").read_bytes()
    random = np.random.default_rng(0)
    for stop in random.integers(0, len(whole), 10).tolist():
        (tmp_path / "weights.hdf5").write_bytes(whole[:stop])
        with pytest.raises(WeightsError):
            BiLMWeights.load(str(tmp_path))


@pytest.mark.slow
def test_flipped_bits_of_hdf5_are_weights_or_a_typed_error(good: Path, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_bytes((good / "options.json").read_bytes())
    whole = (good / "weights.hdf5").read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for place in [*random.integers(0, len(whole), 40), *random.integers(0, 4096, 40)]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(random.integers(8))
        (tmp_path / "weights.hdf5").write_bytes(damaged)
        try:
            BiLMWeights.load(
                str(tmp_path)
            )  # HDF5 has no checksums here: a flipped weight is another weight
        except ModelError:
            refused += 1
    assert refused
