"""The LSTM with projection, as plain equations: what faster engines must agree with. Imports torch and model.options.

Source: Sak et al. 2014 (arXiv:1402.1128) without peepholes; clips, forget bias and skip connections as in bilm-tf.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.options import BiLMOptions

FORGET_BIAS = 1.0  # added to the forget gate's published bias at run time (TensorFlow's LSTMCell)


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
        return F.linear(x, self.weight_ih, self.bias)

    def step(self, x_gates: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """One token in each of B lanes: its input_gates [B, 4d], h [B, p], c [B, d] → the new h [B, p] and c [B, d]."""
        gates = x_gates + F.linear(h, self.weight_hh)  # [B, 4d]
        i, f, g, o = gates.chunk(4, dim=1)  # [B, d] each
        c = torch.sigmoid(f + FORGET_BIAS) * c + torch.sigmoid(i) * torch.tanh(g)
        c = c.clamp(-self.cell_clip, self.cell_clip)
        h = F.linear(torch.sigmoid(o) * torch.tanh(c), self.weight_proj)  # [B, p]
        return h.clamp(-self.proj_clip, self.proj_clip), c


def lstm_layers(tensors: Mapping[str, Tensor], options: BiLMOptions, direction: str) -> list[LSTMLayer]:
    """The L layers of "fwd" or "bwd", first to last, from canonical tensors of any floating dtype."""
    return [
        LSTMLayer(
            weight_ih=tensors[f"lstm.{direction}{j}.weight_ih"],
            weight_hh=tensors[f"lstm.{direction}{j}.weight_hh"],
            bias=tensors[f"lstm.{direction}{j}.bias"],
            weight_proj=tensors[f"lstm.{direction}{j}.weight_proj"],
            cell_clip=options.cell_clip,
            proj_clip=options.proj_clip,
        )
        for j in range(1, options.n_layers + 1)
    ]


def run_layers(layers: list[LSTMLayer], x: Tensor, h: Tensor, c: Tensor, skip: bool) -> tuple[Tensor, Tensor, Tensor]:
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
        h_j, c_j, steps = h[j], c[j], []
        for x_gates in layer.input_gates(x):  # [B, 4d]
            h_j, c_j = layer.step(x_gates, h_j, c_j)
            steps.append(h_j)
        output = torch.stack(steps)  # [T, B, p]
        # The skip joins what the next layer and the reader see; the recurrence itself never sees it.
        x = output + x if skip and j > 0 else output
        outputs.append(x)
        last_h.append(h_j)
        last_c.append(c_j)
    return torch.stack(outputs), torch.stack(last_h), torch.stack(last_c)
