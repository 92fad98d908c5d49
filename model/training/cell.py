"""One step of the LSTM cell and its gradient by PyTorch's operators, for any device and dtype.

`cell_triton` does both on a GPU; `network.cell_of` says which of the two a device computes with.
"""

import torch
from torch import Tensor


def cell_forward(
    products: Tensor, bias: Tensor, c_prev: Tensor, gates: Tensor, c: Tensor, m: Tensor, clip: float
) -> None:
    """One step of a cell: reads products [B, 4d], bias [4d] (1.0 already added to the forget part) and c_prev [B, d].

    Writes gates [B, 4d], the activations i, f, g, o; c [B, d], bounded by ±clip; m [B, d] = o · tanh(c), in the dtype of gates.
    """
    i, f, g, o = (products.to(c.dtype) + bias).chunk(4, dim=1)  # [B, d] each
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    clipped = torch.clamp(f * c_prev + i * g, -clip, clip)  # [B, d]
    c.copy_(clipped)
    m.copy_(o * torch.tanh(clipped))
    gates.copy_(torch.cat((i, f, g, o), dim=1))


def cell_backward(
    gates: Tensor, dm: Tensor, dc: Tensor, c_prev: Tensor, c: Tensor, clip: float
) -> None:
    """The gradient of one step, in place, from that of m, dm [B, d]; where the clip holds no gradient passes.

    gates [B, 4d]: activations before, gradients of the products after, whose sum over the batch is the bias's. dc [B, d]:
    gradient of c from later steps before, that of c_prev after.
    """
    i, f, g, o = gates.to(c.dtype).chunk(4, dim=1)  # [B, d] each
    tanh_c, dm = torch.tanh(c), dm.to(c.dtype)
    dv = (dc + dm * o * (1 - tanh_c * tanh_c)) * (c.abs() < clip)  # [B, d]
    d_input, d_forget = dv * g * i * (1 - i), dv * c_prev * f * (1 - f)
    d_cell, d_output = dv * i * (1 - g * g), dm * tanh_c * o * (1 - o)
    dc.copy_(dv * f)
    gates.copy_(
        torch.cat((d_input, d_forget, d_cell, d_output), dim=1)
    )  # last: i, f, g and o may be views of it
