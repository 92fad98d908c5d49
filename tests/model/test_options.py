"""options.json: published ones, checkpoints made for training, and every way to be wrong."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from model.errors import OptionsError
from model.options import BiLMOptions, read_options

PUBLISHED: dict[str, Any] = {
    "lstm": {
        "use_skip_connections": True,
        "projection_dim": 512,
        "cell_clip": 3,
        "proj_clip": 3,
        "dim": 4096,
        "n_layers": 2,
    },
    "char_cnn": {
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "embedding": {"dim": 16},
        "n_characters": 262,
        "max_characters_per_token": 50,
    },
}


def _changed(path: str, value: Any) -> dict[str, Any]:
    options = copy.deepcopy(PUBLISHED)
    *sections, key = path.split(".")
    section = options
    for name in sections:
        section = section[name]
    if value is None:
        del section[key]
    else:
        section[key] = value
    return options


def test_the_original_model() -> None:
    options = BiLMOptions.from_dict(PUBLISHED)
    assert (options.projection_dim, options.dim, options.n_layers, options.n_filters) == (
        512,
        4096,
        2,
        2048,
    )
    assert options.n_states == 5
    assert BiLMOptions.from_dict(options.to_dict()) == options


def test_keys_of_training_are_ignored() -> None:
    extra = {
        "bidirectional": True,
        "all_clip_norm_val": 10.0,
        "dropout": 0.1,
        "n_tokens_vocab": 793471,
        **PUBLISHED,
    }
    assert BiLMOptions.from_dict(extra) == BiLMOptions.from_dict(PUBLISHED)


def test_the_golden_options(shared_dir: Path) -> None:
    options = read_options(shared_dir / "golden" / "options.json")
    assert (options.projection_dim, options.dim, options.n_filters) == (16, 64, 124)


def test_a_clip_of_null_is_no_clip_and_comes_back_as_null() -> None:
    options = BiLMOptions.from_dict(
        {**PUBLISHED, "lstm": {**PUBLISHED["lstm"], "cell_clip": None, "proj_clip": None}}
    )
    assert options.cell_clip == float("inf")
    assert options.to_dict()["lstm"]["cell_clip"] is None
    assert BiLMOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options


def test_whole_and_fractional_clips_are_the_same_model() -> None:
    assert (
        BiLMOptions.from_dict(PUBLISHED).to_dict()
        == BiLMOptions.from_dict(_changed("lstm.cell_clip", 3.0)).to_dict()
    )


def test_261_characters_are_those_of_training_without_the_padding_row() -> None:
    assert BiLMOptions.from_dict(_changed("char_cnn.n_characters", 261)) == BiLMOptions.from_dict(
        PUBLISHED
    )


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("lstm", None, "'lstm'"),
        ("char_cnn", None, "'char_cnn'"),
        ("char_cnn.embedding", None, "'embedding'"),
        ("lstm.dim", None, "'dim'"),
        ("lstm.dim", 0, "dim is 0"),
        ("lstm.n_layers", "2", "n_layers is '2'"),
        ("lstm.n_layers", True, "n_layers is True"),
        ("lstm.cell_clip", -1, "cell_clip is -1"),
        ("lstm.proj_clip", "3", "proj_clip is '3'"),
        ("lstm.use_skip_connections", 1, "use_skip_connections is 1"),
        ("char_cnn.activation", "gelu", "'gelu'"),
        ("char_cnn.filters", [], "filters is \\[\\]"),
        ("char_cnn.filters", [[1, 2, 3]], "of length 2"),
        ("char_cnn.filters", [[1, 0]], r"filters\[0\]\[1\] is 0"),
        ("char_cnn.filters", 7, "filters is 7"),
        ("char_cnn.n_highway", -1, "n_highway is -1"),
        ("char_cnn.n_characters", 60, "it must be 262$"),
        ("char_cnn.max_characters_per_token", 6, "widest filter, 7"),
    ],
)
def test_wrong_options_name_the_key_and_the_value(path: str, value: Any, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        BiLMOptions.from_dict(_changed(path, value))


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "\x00"])
def test_a_file_that_is_no_options_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "options.json"
    path.write_text(text)
    with pytest.raises(OptionsError, match=r"options\.json"):
        read_options(path)


def test_shapes_of_the_small_published_model_add_up_to_its_size() -> None:
    small = copy.deepcopy(PUBLISHED)
    small["lstm"].update(projection_dim=128, dim=1024)
    small["char_cnn"]["n_highway"] = 1
    numbers = 0
    for shape in BiLMOptions.from_dict(small).tensor_shapes().values():
        product = 1
        for size in shape:
            product *= size
        numbers += product
    assert (
        4 * (numbers - 16) <= 54_373_184 < 4 * (numbers - 16) + 200_000
    )  # the file's size: the rest is HDF5's own
