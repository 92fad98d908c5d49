"""The shape of a biLM, as the published options.json states it.

Source: the options.json of the models of Peters et al. 2018 (arXiv:1802.05365), as bilm-tf writes and AllenNLP reads.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from model.errors import OptionsError

DIRECTIONS: tuple[Literal["fwd", "bwd"], ...] = ("fwd", "bwd")
# Far beyond every biLM that was ever trained; an options.json that asks for more is refused before anything of that size is made.
MOST_LAYERS, MOST_WIDTH, MOST_CHARACTERS = 256, 1 << 20, 1024
MOST_OPTIONS_BYTES = 1 << 20  # of an options.json; Python's values take some twenty times as much
MOST_ROWS = 1 << 24  # of a table of characters or words
N_BYTES_AND_MARKERS = 261  # 256 byte values and 5 markers; the 262nd row is the padding of whole words (id 0)


@dataclass(frozen=True)
class BiLMOptions:
    """Everything about a biLM but its weights."""

    cell_clip: float  # bound on |c| after each update; inf = no clip (null in JSON)
    proj_clip: float  # bound on |h| after the projection; inf = no clip (null in JSON)
    use_skip_connections: bool  # whether a layer's input is added to its output, from the second layer on
    projection_dim: int  # p, width of x and of every h
    dim: int  # d, width of the cell c
    n_layers: int  # L, LSTM layers in each direction
    activation: Literal["relu", "tanh"]  # of the character CNN
    filters: tuple[tuple[int, int], ...]  # (width in characters, count) of each convolution
    n_highway: int  # highway layers between the convolutions and the projection
    char_embedding_dim: int  # width of a character's vector
    n_characters: int = 262  # rows of the character table; 262 in every model that is ready for use
    max_characters_per_token: int = 50  # characters a word is padded or cut to, its two markers included
    # What a character is: "bytes" as in the published models, or "characters", rows of the model's own lexicon
    alphabet: Literal["bytes", "characters"] = "bytes"
    word_dim: int = 0  # width and
    n_words: int = 0  # rows of a table of words that is projected beside the CNN; 0 without one

    def __post_init__(self) -> None:
        for name in ("projection_dim", "dim", "char_embedding_dim"):
            _check_count(name, getattr(self, name), at_least=1, at_most=MOST_WIDTH)
        _check_count("n_layers", self.n_layers, at_least=1, at_most=MOST_LAYERS)
        _check_count("n_highway", self.n_highway, at_least=0, at_most=MOST_LAYERS)
        _check_count("max_characters_per_token", self.max_characters_per_token, at_least=1, at_most=MOST_CHARACTERS)
        for name in ("cell_clip", "proj_clip"):
            object.__setattr__(self, name, _clip(name, getattr(self, name)))
        if self.activation not in ("relu", "tanh"):
            raise OptionsError(f"char_cnn.activation is {self.activation!r}; known are 'relu' and 'tanh'")
        if not self.filters:
            raise OptionsError("char_cnn.filters is empty; it must list [width, count] pairs")
        if len(self.filters) > MOST_LAYERS:
            raise OptionsError(f"char_cnn.filters lists {len(self.filters)} pairs; at most {MOST_LAYERS} make sense")
        for width, count in self.filters:
            _check_count("char_cnn.filters width", width, at_least=1, at_most=MOST_CHARACTERS)
            _check_count("char_cnn.filters count", count, at_least=1, at_most=MOST_WIDTH)
        self._check_alphabet()
        widest = max(width for width, _ in self.filters)
        if self.max_characters_per_token < max(3, widest):
            raise OptionsError(
                f"char_cnn.max_characters_per_token is {self.max_characters_per_token}; it must be at least 3 and at "
                f"least the widest filter, {widest}"
            )

    def _check_alphabet(self) -> None:
        if self.alphabet not in ("bytes", "characters"):
            raise OptionsError(f"char_cnn.alphabet is {self.alphabet!r}; known are 'bytes' and 'characters'")
        _check_count("char_cnn.n_characters", self.n_characters, at_least=1, at_most=MOST_ROWS)
        for name in ("word_dim", "n_words"):
            _check_count(f"word_table.{name}", getattr(self, name), at_least=0, at_most=MOST_ROWS)
        if (self.word_dim == 0) != (self.n_words == 0) or (self.word_dim and self.alphabet == "bytes"):
            raise OptionsError(
                f"word_table has {self.n_words} words of {self.word_dim} numbers, the alphabet is {self.alphabet!r}: a table of "
                "words has both, and belongs to an alphabet of characters"
            )
        if self.alphabet == "bytes" and self.n_characters != N_BYTES_AND_MARKERS + 1:
            raise OptionsError(f"char_cnn.n_characters is {self.n_characters!r}; it must be {N_BYTES_AND_MARKERS + 1}")

    @property
    def n_filters(self) -> int:
        """Width of the convolutions' output, all filters together."""
        return sum(count for _, count in self.filters)

    @property
    def n_states(self) -> int:
        """2L+1: x, and forward and backward of each layer."""
        return 2 * self.n_layers + 1

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> "BiLMOptions":
        """Read the published JSON layout; keys that only training used are ignored.

        bilm-tf's options of training count the rows of the character table without the padding row: 261 means 262.

        OptionsError: a key is missing or has a value that no biLM can have.
        """
        lstm = _section(options, "lstm")
        char_cnn = _section(options, "char_cnn")
        embedding = _section(char_cnn, "embedding", prefix="char_cnn.")
        table = _section(options, "word_table") if "word_table" in options else {}
        filters = _required(char_cnn, "filters", "char_cnn")
        n_characters = _required(char_cnn, "n_characters", "char_cnn")
        if char_cnn.get("alphabet", "bytes") == "bytes" and n_characters == N_BYTES_AND_MARKERS:
            n_characters += 1
        try:
            pairs = tuple((width, count) for width, count in filters)
        except (TypeError, ValueError):
            raise OptionsError(f"char_cnn.filters is {filters!r}; it must list [width, count] pairs") from None
        return cls(
            cell_clip=math.inf if lstm.get("cell_clip") is None else lstm["cell_clip"],
            proj_clip=math.inf if lstm.get("proj_clip") is None else lstm["proj_clip"],
            use_skip_connections=_flag(lstm.get("use_skip_connections", False)),
            projection_dim=_required(lstm, "projection_dim", "lstm"),
            dim=_required(lstm, "dim", "lstm"),
            n_layers=_required(lstm, "n_layers", "lstm"),
            activation=char_cnn.get("activation", "relu"),
            filters=pairs,
            n_highway=char_cnn.get("n_highway") or 0,
            char_embedding_dim=_required(embedding, "dim", "char_cnn.embedding"),
            n_characters=n_characters,
            max_characters_per_token=_required(char_cnn, "max_characters_per_token", "char_cnn"),
            alphabet=char_cnn.get("alphabet", "bytes"),
            word_dim=table.get("word_dim", 0),
            n_words=table.get("n_words", 0),
        )

    def to_dict(self) -> dict[str, Any]:
        """The published JSON layout; `from_dict(to_dict())` gives equal options back."""
        own: dict[str, Any] = {} if self.alphabet == "bytes" else {"alphabet": self.alphabet}
        table = {"word_table": {"word_dim": self.word_dim, "n_words": self.n_words}} if self.word_dim else {}
        return {
            "lstm": {
                "use_skip_connections": self.use_skip_connections,
                "projection_dim": self.projection_dim,
                "cell_clip": None if math.isinf(self.cell_clip) else self.cell_clip,
                "proj_clip": None if math.isinf(self.proj_clip) else self.proj_clip,
                "dim": self.dim,
                "n_layers": self.n_layers,
            },
            "char_cnn": {
                "activation": self.activation,
                "filters": [list(pair) for pair in self.filters],
                "n_highway": self.n_highway,
                "embedding": {"dim": self.char_embedding_dim},
                "n_characters": self.n_characters,
                "max_characters_per_token": self.max_characters_per_token,
                **own,
            },
            **table,
        }

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical tensor names and their shapes, torch orientation (out, in), in computing order.

        The gates of `weight_ih`, `weight_hh` and `bias` stand in torch's order: input, forget, cell, output.
        """
        n, p, d = self.n_filters, self.projection_dim, self.dim
        shapes: dict[str, tuple[int, ...]] = {"char_embed": (self.n_characters, self.char_embedding_dim)}
        for i, (width, count) in enumerate(self.filters):
            shapes[f"conv{i}.weight"] = (count, self.char_embedding_dim, width)
            shapes[f"conv{i}.bias"] = (count,)
        for k in range(self.n_highway):
            for part in ("transform", "carry"):
                shapes[f"highway{k}.{part}.weight"] = (n, n)
                shapes[f"highway{k}.{part}.bias"] = (n,)
        if self.word_dim:
            shapes["word_embed"] = (self.n_words, self.word_dim)
        shapes["proj.weight"] = (p, self.word_dim + n)
        shapes["proj.bias"] = (p,)
        for direction in DIRECTIONS:
            for j in range(1, self.n_layers + 1):
                name = f"lstm.{direction}{j}"
                shapes[f"{name}.weight_ih"] = (4 * d, p)
                shapes[f"{name}.weight_hh"] = (4 * d, p)
                shapes[f"{name}.bias"] = (4 * d,)
                shapes[f"{name}.weight_proj"] = (p, d)
        return shapes


def read_options(path: str | Path) -> BiLMOptions:
    """Read an options.json. OptionsError: not JSON, or not a biLM's options."""
    return options_in(read_json(path), path)


def read_json(path: str | Path) -> Any:
    """The content of a JSON file. OptionsError: it is none, or larger than options are."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise OptionsError(f"{path} is a pipe or a device: name a file")
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(MOST_OPTIONS_BYTES + 1)
    except (ValueError, OSError) as error:
        raise OptionsError(f"{path} can't be read as JSON: {error}") from error
    return parsed(text, path)


def parsed(text: str, where: str | Path) -> Any:
    """The value of JSON. OptionsError as of `read_json`."""
    try:
        if len(text) > MOST_OPTIONS_BYTES:
            raise ValueError(f"{MOST_OPTIONS_BYTES:,} characters are the most that options have")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionsError(f"{where} can't be read as JSON: {error}") from error


def options_in(value: Any, where: str | Path) -> BiLMOptions:
    """The options in parsed JSON. OptionsError: they are not a biLM's."""
    try:
        return BiLMOptions.from_dict(value)
    except OptionsError as error:
        raise OptionsError(f"{where}: {error}") from error


def _section(options: Mapping[str, Any], key: str, prefix: str = "") -> Mapping[str, Any]:
    value = options.get(key) if isinstance(options, Mapping) else None
    if not isinstance(value, Mapping):
        raise OptionsError(
            f"options have no object {prefix + key!r}; an ELMo options.json holds 'lstm' and 'char_cnn' "
            "(a word-level biLM without a character CNN is not supported)"
        )
    return cast(Mapping[str, Any], value)


def _required(section: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in section:
        raise OptionsError(f"options lack {where}.{key}")
    return section[key]


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionsError(f"lstm.use_skip_connections is {value!r}; it must be true or false")
    return value


def _clip(name: str, value: Any) -> float:
    """As a float: 3 and 3.0 are the same model, with the same fingerprint."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise OptionsError(f"lstm.{name} is {value!r}; it must be a number above 0, or null for no clip")
    try:
        return float(value)
    except OverflowError as error:  # a whole number of hundreds of digits
        raise OptionsError(f"lstm.{name} is beyond every float; it must be a number above 0, or null for no clip") from error


def _check_count(name: str, value: Any, at_least: int, at_most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
        shown = repr(value)[:40]
        raise OptionsError(f"{name} is {shown}; it must be a whole number of at least {at_least} and at most {at_most:,}")
