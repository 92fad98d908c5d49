"""Models of ELMoForManyLangs (44 languages): `token_embedder.pkl`, `encoder.pkl`, `char.dic`, `word.dic`, `config.json`.

Source: the package elmoformanylangs 0.0.4. Its equations are those of the published biLM but for what a word is: a row of a
table of words beside a CNN over Unicode characters, both projected together (`model.characters.Lexicon`). Three things are
written in another way there and mean the same:

- Its highway's gate carries the input, ours the transformed half: 1 - sigmoid(z) = sigmoid(-z), so gate weights change their
  sign.
- Its forget bias holds the 1.0 that our engines, like TensorFlow, add when they compute: it is taken off (rounded once, to
  float32).
- Its LSTM carries state from batch to batch; here sentences start as `--start-state` says, and `zero` is what its first batch
  does.

The .pkl files are read with ``weights_only=True``: tensors, never code.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from model.characters import Lexicon
from model.errors import OptionsError, WeightsError
from model.options import DIRECTIONS, BiLMOptions, read_json

FILES = ("config.json", "char.dic", "token_embedder.pkl", "encoder.pkl")
# What config.json names by `config_path` and most zips leave out, because the package has it.
_USUAL: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn", "activation": "relu", "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2, "word_dim": 100, "char_dim": 50, "max_characters_per_token": 50,
    },
}  # fmt: skip
_USUAL_NAMES = ("cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json")


def read(folder: Path) -> tuple[BiLMOptions, dict[str, torch.Tensor], Lexicon]:
    """Options, canonical tensors and lexicon.

    Raises:
        WeightsError, OptionsError: a file is missing or damaged, or the model is of a kind whose equations are others.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise WeightsError(f"{folder} is a model of ELMoForManyLangs without {', '.join(missing)}")
    config = _config(folder)
    words = (
        _dictionary(folder / "word.dic")
        if (folder / "word.dic").is_file() and config["token_embedder"]["word_dim"]
        else {}
    )
    lexicon = Lexicon(_dictionary(folder / "char.dic"), words)
    tensors = _state(folder / "token_embedder.pkl") | {
        f"encoder.{n}": t for n, t in _state(folder / "encoder.pkl").items()
    }
    options = _options(folder, config, tensors)
    try:
        return options, _canonical(tensors, options), lexicon
    except KeyError as error:
        raise WeightsError(
            f"{folder}: its state dicts lack {error.args[0]!r}, which its configuration calls for"
        ) from error


def _config(folder: Path) -> dict[str, Any]:
    """What the model was configured with. OptionsError for a kind whose equations are not the biLM's."""
    try:
        name = Path(str(read_json(folder / "config.json")["config_path"])).name
        beside = folder / name
        config = read_json(beside) if name and beside.is_file() and name != "config.json" else None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise OptionsError(
            f"{folder}/config.json can't be used ({error!r}): it names the model's configuration as config_path"
        ) from error
    if config is None:
        if name not in _USUAL_NAMES:
            raise OptionsError(
                f"{folder}/config.json names the configuration {name}, which is not in the folder: put it there"
            )
        config = _USUAL
    embedder, encoder = config.get("token_embedder"), config.get("encoder")
    if not isinstance(embedder, dict) or not isinstance(encoder, dict):
        raise OptionsError(f"{folder}/{name} has no token_embedder and encoder")
    for part, kind, known in (
        ("token_embedder", embedder.get("name"), "cnn"),
        ("encoder", encoder.get("name"), "elmo"),
    ):
        if str(kind).lower() != known:
            raise OptionsError(
                f"{folder}/{name}: its {part} is {kind!r}; only {known!r} is the biLM that a store is made of"
            )
    if not embedder.get("char_dim"):
        raise OptionsError(
            f"{folder}/{name}: char_dim is {embedder.get('char_dim')!r}: words alone have no character CNN"
        )
    embedder.setdefault("word_dim", 0)
    return dict(config)


def _options(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> BiLMOptions:
    embedder, encoder = config["token_embedder"], config["encoder"]
    tables = {name: tensors.get(f"{name}_emb_layer.embedding.weight") for name in ("char", "word")}
    rows = {name: 0 if table is None else len(table) for name, table in tables.items()}
    try:
        values = {name: encoder[name] for name in ("projection_dim", "dim", "n_layers")}
        values |= {
            name: embedder[name]
            for name in (
                "activation",
                "filters",
                "n_highway",
                "max_characters_per_token",
                "word_dim",
            )
        }
        values |= {name: encoder[name] or math.inf for name in ("cell_clip", "proj_clip")}
        values |= {
            "use_skip_connections": True,
            "char_embedding_dim": embedder["char_dim"],
            "alphabet": "characters",
        }
        values |= {
            "n_characters": rows["char"],
            "n_words": rows["word"] if embedder["word_dim"] else 0,
        }
        return BiLMOptions.checked(values)
    except (KeyError, ValueError) as error:
        raise OptionsError(f"{folder}: its configuration can't be used: {error!r}") from error


def _canonical(theirs: Mapping[str, torch.Tensor], options: BiLMOptions) -> dict[str, torch.Tensor]:
    n, d = options.n_filters, options.dim
    tensors = {"char_embed": theirs["char_emb_layer.embedding.weight"]}
    if options.word_dim:
        tensors["word_embed"] = theirs["word_emb_layer.embedding.weight"]
    for i in range(len(options.filters)):
        for part in ("weight", "bias"):
            tensors[f"conv{i}.{part}"] = theirs[f"convolutions.{i}.{part}"]
    for k in range(options.n_highway):
        for part in ("weight", "bias"):
            both = theirs[f"highways._layers.{k}.{part}"]  # the transformed half, then the gate
            tensors[f"highway{k}.transform.{part}"] = both[:n]
            tensors[f"highway{k}.carry.{part}"] = -both[n:]
    tensors["proj.weight"], tensors["proj.bias"] = (
        theirs["projection.weight"],
        theirs["projection.bias"],
    )
    for direction, theirs_direction in zip(DIRECTIONS, ("forward", "backward"), strict=True):
        for layer in range(1, options.n_layers + 1):
            name, cell = f"lstm.{direction}{layer}", f"encoder.{theirs_direction}_layer_{layer - 1}"
            tensors[f"{name}.weight_ih"] = theirs[f"{cell}.input_linearity.weight"]
            tensors[f"{name}.weight_hh"] = theirs[f"{cell}.state_linearity.weight"]
            bias = theirs[
                f"{cell}.state_linearity.bias"
            ].clone()  # [4d], gates input, forget, cell, output as torch's
            bias[d : 2 * d] -= 1.0
            tensors[f"{name}.bias"] = bias
            tensors[f"{name}.weight_proj"] = theirs[f"{cell}.state_projection.weight"]
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _dictionary(path: Path) -> dict[str, int]:
    """Lines of a token, a tab, and its row; a line of a number alone is that of U+3000, which the original strips, too."""
    rows: dict[str, int] = {}
    try:
        for line in path.read_text("utf-8").splitlines():
            token, tab, number = line.strip().rpartition("\t")
            rows[token if tab else "\u3000"] = int(number)
    except ValueError as error:
        raise WeightsError(
            f"{path} is not a dictionary ({error}): each line is a token, a tab and a number"
        ) from error
    return rows


def _state(path: Path) -> dict[str, torch.Tensor]:
    """The float32 tensors of a state dict; nothing in the file is executed."""
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except (
        Exception
    ) as error:  # torch documents none: damaged bytes lead its unpickler into errors of any kind
        raise WeightsError(
            f"{path} can't be read as a torch state dict of plain tensors ({type(error).__name__})"
        ) from error
    if not isinstance(value, Mapping):
        raise WeightsError(f"{path} holds a {type(value).__name__}, not a state dict")
    return {
        str(name): t.float()
        for name, t in value.items()
        if isinstance(t, torch.Tensor) and t.is_floating_point()
    }
