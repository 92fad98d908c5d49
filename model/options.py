"""The shape of a biLM, as the published options.json states it.

Source: the options.json of the models of Peters et al. 2018 (arXiv:1802.05365), as bilm-tf writes and AllenNLP reads.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from elmo_store.errors import ShardCorruptError
from elmo_store.format.typed import converted
from elmo_store.storage.data import regular_size
from model.errors import ModelError, OptionsError

DIRECTIONS: tuple[Literal["fwd", "bwd"], ...] = ("fwd", "bwd")
MOST_OPTIONS_BYTES = 1 << 20  # of an options.json; Python's values take some twenty times as much
N_BYTES_AND_MARKERS = (
    261  # 256 byte values and 5 markers; the 262nd row is the padding of whole words (id 0)
)
# Far beyond every biLM that was ever trained; an options.json that asks for more is refused before anything of that size is made.
MOST_LAYERS, MOST_CHARACTERS = 256, 1024
Width = Annotated[int, Meta(ge=1, le=1 << 20)]
Rows = Annotated[int, Meta(ge=0, le=1 << 24)]  # of a table of characters or words
Clip = Annotated[float, Meta(gt=0)]
Filter = tuple[Annotated[int, Meta(ge=1, le=MOST_CHARACTERS)], Width]


@dataclass(frozen=True)
class BiLMOptions:
    """Everything about a biLM but its weights. `checked` holds values from elsewhere to the types' bounds."""

    cell_clip: Clip  # bound on |c| after each update; inf = no clip (null in JSON)
    proj_clip: Clip  # bound on |h| after the projection; inf = no clip (null in JSON)
    use_skip_connections: (
        bool  # whether a layer's input is added to its output, from the second layer on
    )
    projection_dim: Width  # p, width of x and of every h
    dim: Width  # d, width of the cell c
    n_layers: Annotated[int, Meta(ge=1, le=MOST_LAYERS)]  # L, LSTM layers in each direction
    activation: Literal["relu", "tanh"]  # of the character CNN
    # (width in characters, count) of each convolution
    filters: Annotated[tuple[Filter, ...], Meta(min_length=1, max_length=MOST_LAYERS)]
    n_highway: Annotated[
        int, Meta(ge=0, le=MOST_LAYERS)
    ]  # highway layers between the convolutions and the projection
    char_embedding_dim: Width  # width of a character's vector
    n_characters: Annotated[int, Meta(ge=1, le=1 << 24)] = (
        262  # rows of the character table; 262 in all models that are ready
    )
    # characters a word is padded or cut to, its two markers included
    max_characters_per_token: Annotated[int, Meta(ge=3, le=MOST_CHARACTERS)] = 50
    # What a character is: "bytes" as in the published models, or "characters", rows of the model's own lexicon
    alphabet: Literal["bytes", "characters"] = "bytes"
    word_dim: Rows = 0  # width and
    n_words: Rows = 0  # rows of a table of words that is projected beside the CNN; 0 without one

    def __post_init__(self) -> None:
        widest = max(width for width, _ in self.filters)
        if self.max_characters_per_token < widest:
            raise OptionsError(
                f"max_characters_per_token is {self.max_characters_per_token}; it must be at least the widest filter, {widest}"
            )
        if (self.word_dim == 0) != (self.n_words == 0) or (
            self.word_dim and self.alphabet == "bytes"
        ):
            raise OptionsError(
                f"word_table has {self.n_words} words of {self.word_dim} numbers, the alphabet is {self.alphabet!r}: a table of "
                "words has both, and belongs to an alphabet of characters"
            )
        if self.alphabet == "bytes" and self.n_characters != N_BYTES_AND_MARKERS + 1:
            raise OptionsError(
                f"n_characters is {self.n_characters!r}; it must be {N_BYTES_AND_MARKERS + 1}"
            )

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> "BiLMOptions":
        """From a value of any kind for each field. OptionsError for one that no biLM can have; names the field."""
        try:
            return converted(values, cls)
        except (ValueError, OverflowError) as error:
            raise OptionsError(str(error)) from error

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
        try:
            lstm, char_cnn, table = (
                options["lstm"],
                options["char_cnn"],
                options.get("word_table", {}),
            )
            alphabet, n_characters = char_cnn.get("alphabet", "bytes"), char_cnn["n_characters"]
            values = {
                "cell_clip": math.inf if lstm.get("cell_clip") is None else lstm["cell_clip"],
                "proj_clip": math.inf if lstm.get("proj_clip") is None else lstm["proj_clip"],
                "use_skip_connections": lstm.get("use_skip_connections", False),
                "projection_dim": lstm["projection_dim"],
                "dim": lstm["dim"],
                "n_layers": lstm["n_layers"],
                "activation": char_cnn.get("activation", "relu"),
                "filters": char_cnn["filters"],
                "n_highway": char_cnn.get("n_highway") or 0,
                "char_embedding_dim": char_cnn["embedding"]["dim"],
                "n_characters": 262
                if alphabet == "bytes" and n_characters == N_BYTES_AND_MARKERS
                else n_characters,
                "max_characters_per_token": char_cnn["max_characters_per_token"],
                "alphabet": alphabet,
                "word_dim": table.get("word_dim", 0),
                "n_words": table.get("n_words", 0),
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise OptionsError(
                f"no options of a biLM ({error!r}): an ELMo options.json holds the objects 'lstm' and 'char_cnn' "
                "(a word-level biLM without a character CNN is not supported)"
            ) from error
        return cls.checked(values)

    def to_dict(self) -> dict[str, Any]:
        """The published JSON layout; `from_dict(to_dict())` gives equal options back."""
        own: dict[str, Any] = {} if self.alphabet == "bytes" else {"alphabet": self.alphabet}
        table = (
            {"word_table": {"word_dim": self.word_dim, "n_words": self.n_words}}
            if self.word_dim
            else {}
        )
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
        shapes: dict[str, tuple[int, ...]] = {
            "char_embed": (self.n_characters, self.char_embedding_dim)
        }
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


def check_regular(path: str | Path, kind: type[ModelError]) -> None:
    """Raise ``kind`` for a pipe or a device, before a library that opens the file by name waits or reads for ever.

    A file that is missing or can't be opened is left to that library.
    """
    try:
        with suppress(OSError):
            regular_size(str(path))
    except ShardCorruptError as error:
        raise kind(str(error)) from error


def read_json(path: str | Path) -> Any:
    """The content of a JSON file. OptionsError: it is none, or larger than options are."""
    check_regular(path, OptionsError)
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(MOST_OPTIONS_BYTES + 1)
        if len(text) > MOST_OPTIONS_BYTES:
            raise ValueError(f"{MOST_OPTIONS_BYTES:,} characters are the most that options have")
        return json.loads(text)
    except (ValueError, OSError, RecursionError) as error:
        raise OptionsError(f"{path} can't be read as JSON: {error}") from error


def options_in(value: Any, where: str | Path) -> BiLMOptions:
    """The options in parsed JSON. OptionsError: they are not a biLM's."""
    try:
        return BiLMOptions.from_dict(value)
    except OptionsError as error:
        raise OptionsError(f"{where}: {error}") from error
