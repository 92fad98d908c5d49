"""Word vectors x, as fast as the plain `model.bilm` allows.

The same numbers as `char_cnn.char_cnn` up to the order of additions, computed as three packed products:

- All convolutions are one product: a window of the widest filter's characters times one matrix, in which narrower
  filters have zeros. Of the published models' products that wastes a seventh.
- Windows that see padding only all give the same number, and the maximum needs one of them. So a word of n bytes is
  computed at n + 3 positions instead of 50, with the same bytes coming out.
- Shapes are constant (`WORDS_PER_BLOCK` words, a few widths), so that a word's bytes do not depend on its neighbours.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from elmo_store.format.characters import PADDING_ID
from model.characters import Lexicon, spell
from model.engine.device import send
from model.engine.products import PackedLinear
from model.options import BiLMOptions

WORDS_PER_BLOCK = 128
Ids = npt.NDArray[np.int16] | npt.NDArray[np.int32]
WIDTH_STEP = 4  # widths are multiples of it: few shapes, little waste


def merged_convolutions(
    tensors: Mapping[str, Tensor], options: BiLMOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """All convolutions as one of the greatest width w: weight [filters, w · chars], bias and width of each filter [filters]."""
    names = [f"conv{i}" for i in range(len(options.filters))]
    widest = max(width for width, _ in options.filters)
    weights = [tensors[f"{name}.weight"] for name in names]  # [f, chars, width] each
    weight = (
        torch.cat([F.pad(part, (0, widest - part.shape[2])) for part in weights])
        .transpose(1, 2)
        .flatten(1)
    )
    bias = torch.cat([tensors[f"{name}.bias"] for name in names])
    return (
        weight,
        bias,
        torch.cat(
            [torch.full((count,), width, device=bias.device) for width, count in options.filters]
        ),
    )


class WordVectors:
    """Character CNN with packed weights; blocks of words in, rows of x out.

    ``tensors`` are float32. ``dtype`` is that of the highways' products, which are four fifths of the work; all else is float32
    (what a highway adds to its input is small, the input itself goes past it unrounded). ``words_per_block`` are computed at
    once, always that many.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        options: BiLMOptions,
        lexicon: Lexicon | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        packed: bool = True,
        words_per_block: int = WORDS_PER_BLOCK,
    ) -> None:
        self._options = options
        self._lexicon = lexicon
        self._padding = PADDING_ID if lexicon is None else lexicon.padding
        self._dtype = dtype
        self._widest = max(width for width, _ in options.filters)
        self._embed = tensors["char_embed"]  # [262, chars]
        self._device = self._embed.device
        self.words_per_block = rows = words_per_block
        self.width = options.projection_dim
        weight, bias, self._filter_width = merged_convolutions(tensors, options)
        self._conv = PackedLinear(weight, bias, torch.float32, rows * 16, packed)
        self._highways = [
            PackedLinear(
                torch.cat(
                    [tensors[f"highway{k}.carry.weight"], tensors[f"highway{k}.transform.weight"]]
                ),
                torch.cat(
                    [tensors[f"highway{k}.carry.bias"], tensors[f"highway{k}.transform.bias"]]
                ),
                dtype,
                rows,
                packed,
            )
            for k in range(options.n_highway)
        ]
        own, of_filters = tensors["proj.weight"].split([options.word_dim, options.n_filters], dim=1)
        self._project = PackedLinear(of_filters, tensors["proj.bias"], torch.float32, rows, packed)
        # A row of the table of words is projected beside the CNN's output: the two products add up.
        self._words = tensors["word_embed"] if options.word_dim else None
        self._project_words = (
            PackedLinear(own, None, torch.float32, rows, packed) if options.word_dim else None
        )

    def blocks(self, words: Sequence[str]) -> list[tuple[npt.NDArray[np.int64], Ids]]:
        """Words → blocks of (index of each word, character ids [≤ words_per_block, width]), each of one width.

        With a lexicon the words' own rows are a column before the ids.

        The width is the word's own and one position of padding, rounded up, at most all 50 characters.
        """
        full = self._options.max_characters_per_token
        spelt = spell(words, full, self._lexicon)  # [n, 50], or [n, 1 + 50]
        extra = spelt.shape[1] - full
        ids = spelt[:, extra:]  # [n, 50]
        used = (ids != self._padding).sum(axis=1)  # [n] bytes and markers
        wanted = (
            used + 1
        )  # the position after them begins a window of padding only, for every filter
        width = np.minimum(full, -(-wanted // WIDTH_STEP) * WIDTH_STEP)  # [n]
        blocks = []
        for w in np.unique(width):
            members = np.flatnonzero(width == w)
            parts = np.split(
                members, range(self.words_per_block, len(members), self.words_per_block)
            )
            blocks += [(part, spelt[part, : extra + w]) for part in parts]
        return blocks

    @torch.no_grad()
    def compute(self, ids: Ids) -> Tensor:
        """x [n, p] float32 of one block, n ≤ words_per_block; always computed at words_per_block rows."""
        words, ids = (ids[:, :0], ids) if self._lexicon is None else (ids[:, :1], ids[:, 1:])
        n, width = ids.shape
        full, widest, chars = (
            self._options.max_characters_per_token,
            self._widest,
            self._options.char_embedding_dim,
        )
        # Room for the widest window at the last character; what it sees beyond 50 characters is masked below.
        host = np.full((self.words_per_block, width + widest - 1), self._padding, np.int64)
        host[:n, :width] = ids
        padded = send(host, self._device)
        characters = F.embedding(padded, self._embed)  # [words, width+widest-1, chars]
        windows = characters.unfold(1, widest, 1).transpose(2, 3)  # [words, width, widest, chars]
        flat = windows.reshape(self.words_per_block * width, widest * chars)
        values = self._conv(flat).view(self.words_per_block, width, -1)  # [words, width, filters]
        for position in range(full - widest + 1, width):  # only words of nearly full width get here
            values[:, position].masked_fill_(self._filter_width > full - position, -torch.inf)
        x = values.amax(dim=1)  # [words, filters]
        x = x.relu_() if self._options.activation == "relu" else x.tanh_()
        for highway in self._highways:
            carry, transformed = (
                highway(x.to(self._dtype)).float().chunk(2, dim=1)
            )  # [words, filters] each
            x = x + carry.sigmoid() * (transformed.relu() - x)
        projected = self._project(x)  # [words, p]
        if self._project_words is not None and self._words is not None:
            rows = np.zeros(self.words_per_block, np.int64)
            rows[:n] = words[:, 0]
            projected = projected + self._project_words(
                F.embedding(send(rows, self._device), self._words)
            )
        return projected[:n]  # [n, p]


class WordVectorTable:
    """x of the words of one vocabulary, on the device; ``compute`` takes distinct words to x [n, p] float32 there."""

    def __init__(
        self, compute: Callable[[Sequence[str]], Tensor], projection_dim: int, device: torch.device
    ) -> None:
        self._compute = compute
        self._vocabulary: list[str] = []
        self._known = 0
        self._x = torch.empty(0, projection_dim, device=device)
        self.generation = (
            0  # counts the changes of vocabulary: numbers of another one mean other words
        )

    def forget(self) -> None:
        """Hold no words; what others keep by number of word belongs to an earlier generation from now on."""
        self.generation += 1
        self._known = 0
        self._vocabulary = []

    def upto(self, vocabulary: list[str], n: int) -> Tensor:
        """x [n, p] of the first n words of a vocabulary; computes what is missing."""
        if vocabulary is not self._vocabulary:
            self.forget()
            self._vocabulary = vocabulary
        if n > self._known:
            new = vocabulary[self._known : n]
            x = self._compute(new)  # [new, p]
            if n > len(self._x):
                grown = torch.empty(
                    max(n, min(2 * len(self._x), 1 << 16)), x.shape[1], device=x.device
                )
                grown[: self._known] = self._x[: self._known]
                self._x = grown
            self._x[self._known : n] = x
            self._known = n
        return self._x[:n]
