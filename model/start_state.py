"""The state that every sentence starts from: zero, or one frozen warm state a model. Imports torch and plain model.

The published models were trained with state carried from sentence to sentence, so that zeros are a state they seldom
saw. `warm` is what a fixed text leaves behind: a function of the model alone, never of an earlier batch.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from model.char_cnn import char_cnn
from model.characters import BOS, EOS, char_ids
from model.errors import WeightsError
from model.lstm import lstm_layers, run_layers
from model.options import DIRECTIONS, BiLMOptions
from model.threads import direction_pool
from model.weights import BiLMWeights

# Lewis Carroll, Alice's Adventures in Wonderland (1865, public domain), the opening, tokenised as the Penn Treebank.
# Never change it: the warm state of every model is defined by it.
WARM_TEXT = (
    "Alice was beginning to get very tired of sitting by her sister on the bank , and of having nothing to do : "
    "once or twice she had peeped into the book her sister was reading , but it had no pictures or "
    "conversations in it , `` and what is the use of a book , '' thought Alice `` without pictures or "
    "conversations ? ''",
    "So she was considering in her own mind ( as well as she could , for the hot day made her feel very sleepy "
    "and stupid ) , whether the pleasure of making a daisy-chain would be worth the trouble of getting up and "
    "picking the daisies , when suddenly a White Rabbit with pink eyes ran close by her .",
    "There was nothing so very remarkable in that ; nor did Alice think it so very much out of the way to hear "
    "the Rabbit say to itself , `` Oh dear !",
    "Oh dear !",
    "I shall be late ! ''",
)


@dataclass(frozen=True, eq=False)
class StartState:
    """What (h, c) a sentence starts from, for each direction and layer; the forward one is index 0.

    Attributes:
        kind: "zero" or "warm".
        h: float32 [2, L, p], the recurrent output, skip connection left out.
        c: float32 [2, L, d], the cell.
    """

    kind: Literal["zero", "warm"]
    h: Tensor
    c: Tensor

    def __post_init__(self) -> None:
        if self.kind not in ("zero", "warm"):
            raise WeightsError(f"start state kind is {self.kind!r}; known are 'zero' and 'warm'")
        for name, tensor in (("h", self.h), ("c", self.c)):
            if tensor.dtype != torch.float32 or tensor.ndim != 3 or tensor.shape[0] != 2:
                raise WeightsError(f"start state {name} is {tensor.dtype} {tuple(tensor.shape)}, not float32 (2, L, width)")
            if not bool(torch.isfinite(tensor).all()):
                raise WeightsError(f"start state {name} holds NaN or infinity")
        if self.h.shape[1] != self.c.shape[1]:
            raise WeightsError(f"start state h has {self.h.shape[1]} layers, c has {self.c.shape[1]}")

    @classmethod
    def zero(cls, options: BiLMOptions) -> "StartState":
        """All zeros."""
        return cls(
            "zero",
            torch.zeros(2, options.n_layers, options.projection_dim),
            torch.zeros(2, options.n_layers, options.dim),
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of kind, shapes and float32 bytes, as 64 hexadecimal digits."""
        header = json.dumps({"kind": self.kind, "h": list(self.h.shape), "c": list(self.c.shape)}, sort_keys=True)
        digest = hashlib.sha256(header.encode())
        for tensor in (self.h, self.c):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def check(self, options: BiLMOptions) -> None:
        """Raise WeightsError unless the state has this model's shape."""
        want = (2, options.n_layers, options.projection_dim), (2, options.n_layers, options.dim)
        have = tuple(self.h.shape), tuple(self.c.shape)
        if have != want:
            raise WeightsError(f"start state has h, c of shapes {have}, the model has {want}: it belongs to another model")

    def to_bytes(self) -> bytes:
        """A safetensors file with `h` and `c`, the kind in its metadata; equal states are equal bytes."""
        return save({"h": self.h.contiguous(), "c": self.c.contiguous()}, metadata={"kind": self.kind})

    @classmethod
    def from_bytes(cls, data: bytes) -> "StartState":
        """Read what `to_bytes` wrote.

        Raises:
            WeightsError: not such a file.
        """
        try:
            tensors = load(data)
            # safetensors reads metadata from files only; the header is JSON after its length in 8 little-endian bytes.
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            return cls(header["__metadata__"]["kind"], tensors["h"], tensors["c"])
        except (SafetensorError, KeyError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise WeightsError(f"the start state can't be read: {error!r}; this program did not write it") from error


def compute_warm(weights: BiLMWeights) -> StartState:
    """The state that WARM_TEXT leaves behind, read sentence by sentence from zeros with the state carried.

    Forward, it is the state after the last sentence's EOS; backward, where each sentence is read from its end to its
    start, the state after the last sentence's BOS. Computed in float64 and rounded once, so that neither the machine
    nor its number of threads shows in the result but for a rare last bit.
    """
    with torch.no_grad():
        x = _warm_words(weights)
    # One token at a time is too little work for several threads: two of them took twice as long as one.
    with direction_pool(len(DIRECTIONS), 1) as pool:
        ends = list(pool.map(partial(_run_warm, weights, sentences=x), DIRECTIONS))
    h, c = (torch.stack(parts).float() for parts in zip(*ends, strict=True))
    return StartState("warm", h, c)


def _warm_words(weights: BiLMWeights) -> list[Tensor]:
    """x [n+2, p] in float64 of each sentence of WARM_TEXT, boundaries included."""
    options = weights.options
    tensors = {name: t.double() for name, t in weights.tensors.items() if not name.startswith("lstm.")}
    sentences = [[BOS, *line.split(" "), EOS] for line in WARM_TEXT]
    ids = [torch.from_numpy(char_ids(words, options.max_characters_per_token)).long() for words in sentences]
    return [char_cnn(tensors, options, one) for one in ids]


@torch.no_grad()
def _run_warm(weights: BiLMWeights, direction: str, sentences: list[Tensor]) -> tuple[Tensor, Tensor]:
    """h [L, p] and c [L, d] in float64 that one direction is left with."""
    options = weights.options
    prefix = f"lstm.{direction}"
    layers = lstm_layers({n: t.double() for n, t in weights.tensors.items() if n.startswith(prefix)}, options, direction)
    h = torch.zeros(options.n_layers, 1, options.projection_dim, dtype=torch.float64)  # [L, 1, p]
    c = torch.zeros(options.n_layers, 1, options.dim, dtype=torch.float64)  # [L, 1, d]
    for x in sentences:
        read = x if direction == "fwd" else x.flip(0)
        _, h, c = run_layers(layers, read[:, None], h, c, options.use_skip_connections)
    return h[:, 0], c[:, 0]
