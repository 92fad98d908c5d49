"""The biLM of Peters et al. 2018 (arXiv:1802.05365): the whole model in plain PyTorch, to be read from top to bottom.

    words ─ char_cnn ─→ x [n+2, p] ─ run_layers, forward and backward ─→ outputs [L, n+2, p] each ─ bilm ─→ [n+2, 2L+1, p]

This is *the* model: the published goldens and every faster engine (`model.engine`, `model.training`) are tested against it.
Letters: n tokens of a sentence, p projection_dim, d dim (the cell's width), L layers, T steps, B lanes.

Sources: section 3.4 of the paper after Kim et al. 2016 (arXiv:1508.06615) for the character CNN, Sak et al. 2014
(arXiv:1402.1128) without peepholes for the LSTM; clips, forget bias, gate order and skip connections as in bilm-tf.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.characters import Lexicon, boundary_words, spell
from model.files.weights import BiLMWeights
from model.options import DIRECTIONS, BiLMOptions
from model.start_state import StartState

FORGET_BIAS = 1.0  # added to the forget gate's published bias at run time (TensorFlow's LSTMCell)


def char_cnn(tensors: Mapping[str, Tensor], options: BiLMOptions, ids: Tensor) -> Tensor:
    """The context-free vector x of words, from their characters.

    Args:
        tensors: canonical tensors (`BiLMOptions.tensor_shapes`), of any floating dtype, on the device to compute on.
        options: the model's shape.
        ids: int64 [n, 50] from `characters.spell`, on the same device; [n, 1 + 50] with a lexicon, the word's own row first.

    Returns:
        x [n, p] in the tensors' dtype.
    """
    activate = torch.relu if options.activation == "relu" else torch.tanh
    words, ids = (ids[:, 0], ids[:, 1:]) if options.alphabet == "characters" else (None, ids)
    characters = F.embedding(ids, tensors["char_embed"]).transpose(1, 2)  # [n, chars, 50]
    # The maximum runs over every window of the 50 characters, those of padding too.
    pooled = [
        F.conv1d(characters, tensors[f"conv{i}.weight"], tensors[f"conv{i}.bias"]).amax(
            dim=2
        )  # [n, f]
        for i in range(len(options.filters))
    ]
    x = activate(torch.cat(pooled, dim=1))  # [n, filters]
    for k in range(options.n_highway):
        x = highway(x, tensors, f"highway{k}")  # [n, filters]
    if words is not None and options.word_dim:
        x = torch.cat(
            [F.embedding(words, tensors["word_embed"]), x], dim=1
        )  # [n, word_dim + filters]
    return F.linear(x, tensors["proj.weight"], tensors["proj.bias"])  # [n, p]


def highway(x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """carry · relu(transform(x)) + (1 - carry) · x, x [n, filters]."""
    carry = torch.sigmoid(
        F.linear(x, tensors[f"{name}.carry.weight"], tensors[f"{name}.carry.bias"])
    )  # [n, filters]
    transformed = torch.relu(
        F.linear(x, tensors[f"{name}.transform.weight"], tensors[f"{name}.transform.bias"])
    )  # [n, filters]
    return carry * transformed + (1 - carry) * x  # [n, filters]


@dataclass(frozen=True)
class LSTMLayer:
    """One layer in one direction: weight_ih, weight_hh [4d, p], bias [4d], weight_proj [p, d]; gates i, f, g, o."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias: Tensor
    weight_proj: Tensor
    cell_clip: float
    proj_clip: float

    def input_gates(self, x: Tensor) -> Tensor:
        """The half of the gates that no recurrence enters, for any number of tokens at once: [..., p] → [..., 4d]."""
        return F.linear(x, self.weight_ih, self.bias)  # [..., 4d]

    def step(self, x_gates: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One token in each of B lanes: its input_gates [B, 4d], h [B, p], c [B, d] → the new h [B, p] and c [B, d]."""
        gates = x_gates + F.linear(h, self.weight_hh)  # [B, 4d]
        i, f, g, o = gates.chunk(4, dim=1)  # [B, d] each
        c = torch.sigmoid(f + FORGET_BIAS) * c + torch.sigmoid(i) * torch.tanh(g)  # [B, d]
        c = c.clamp(-self.cell_clip, self.cell_clip)  # [B, d]
        h = F.linear(torch.sigmoid(o) * torch.tanh(c), self.weight_proj)  # [B, p]
        return h.clamp(-self.proj_clip, self.proj_clip), c  # [B, p], [B, d]


def lstm_layers(
    tensors: Mapping[str, Tensor], options: BiLMOptions, direction: str
) -> list[LSTMLayer]:
    """The L layers of "fwd" or "bwd", first to last, from canonical tensors of any floating dtype."""
    return [
        LSTMLayer(
            weight_ih=tensors[f"lstm.{direction}{j}.weight_ih"],  # [4d, p]
            weight_hh=tensors[f"lstm.{direction}{j}.weight_hh"],  # [4d, p]
            bias=tensors[f"lstm.{direction}{j}.bias"],  # [4d]
            weight_proj=tensors[f"lstm.{direction}{j}.weight_proj"],  # [p, d]
            cell_clip=options.cell_clip,
            proj_clip=options.proj_clip,
        )
        for j in range(1, options.n_layers + 1)
    ]


def run_layers(
    layers: list[LSTMLayer], x: Tensor, h: Tensor, c: Tensor, skip: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one direction's layers over a sequence.

    Args:
        layers: first to last.
        x: [T, B, p], in the order in which this direction reads: the caller reverses it for the backward one.
        h: [L, B, p], recurrent output of each layer before the first step (without skip connection).
        c: [L, B, d], cell of each layer before the first step.
        skip: add a layer's input to its output, from the second layer on.

    Returns:
        outputs [L, T, B, p] (skip connections included) and h, c after the last step.
    """
    outputs, last_h, last_c = [], [], []
    for j, layer in enumerate(layers):
        h_j, c_j, steps = h[j], c[j], []  # [B, p], [B, d]
        for x_gates in layer.input_gates(x):  # [B, 4d]
            h_j, c_j = layer.step(x_gates, h_j, c_j)  # [B, p], [B, d]
            steps.append(h_j)
        output = torch.stack(steps)  # [T, B, p]
        # The skip joins what the next layer and the reader see; the recurrence itself never sees it.
        x = output + x if skip and j > 0 else output  # [T, B, p]
        outputs.append(x)
        last_h.append(h_j)
        last_c.append(c_j)
    return (
        torch.stack(outputs),
        torch.stack(last_h),
        torch.stack(last_c),
    )  # [L, T, B, p], [L, B, p], [L, B, d]


def read_sentence(
    tensors: Mapping[str, Tensor],
    options: BiLMOptions,
    tokens: Sequence[str],
    h: Tensor,
    c: Tensor,
    lexicon: Lexicon | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """All states of one sentence, and what it leaves behind for a reader that carries its state on.

    Args:
        tensors: canonical tensors, of any floating dtype.
        options: the model's shape.
        tokens: n words, without boundaries.
        h: [2, L, p] what forward (0) and backward (1) start from, in the tensors' dtype.
        c: [2, L, d] the same of the cells.
        lexicon: of a model that has one.

    Returns:
        states [n+2, 2L+1, p] (row 0 is BOS, row n+1 EOS; states x, fwd1, bwd1, fwd2, …), h and c at each direction's end.
    """
    bos, eos = boundary_words(lexicon)
    ids = torch.from_numpy(
        spell([bos, *tokens, eos], options.max_characters_per_token, lexicon)
    ).long()  # [n+2, 50]
    x = char_cnn(tensors, options, ids)  # [n+2, p]
    outputs, last_h, last_c = [], [], []
    for k, direction in enumerate(DIRECTIONS):
        backward = direction == "bwd"
        layers = lstm_layers(tensors, options, direction)
        read = (x.flip(0) if backward else x)[:, None]  # [n+2, 1, p]: one lane
        output, h_k, c_k = run_layers(
            layers, read, h[k][:, None], c[k][:, None], options.use_skip_connections
        )
        output = output[:, :, 0]  # [L, n+2, p]
        outputs.append(output.flip(1) if backward else output)
        last_h.append(h_k[:, 0])  # [L, p]
        last_c.append(c_k[:, 0])  # [L, d]
    states = [
        x,
        *(outputs[k][j] for j in range(options.n_layers) for k in range(len(DIRECTIONS))),
    ]  # [n+2, p] each
    return (
        torch.stack(states, dim=1),
        torch.stack(last_h),
        torch.stack(last_c),
    )  # [n+2, 2L+1, p], [2, L, p], [2, L, d]


def bilm(
    weights: BiLMWeights,
    tokens: Sequence[str],
    start: StartState,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The biLM: all states [n+2, 2L+1, p] of one sentence of n tokens that begins in the start state, in `dtype`."""
    tensors = {name: tensor.to(dtype) for name, tensor in weights.tensors.items()}
    with torch.no_grad():
        h, c = start.h.to(dtype), start.c.to(dtype)  # [2, L, p], [2, L, d]
        return read_sentence(tensors, weights.options, tokens, h, c, weights.lexicon)[
            0
        ]  # [n+2, 2L+1, p]
