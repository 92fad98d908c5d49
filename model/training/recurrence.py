"""One LSTM layer over the steps of a batch, with its gradient. Imports torch and the kernels.

Plain autograd over the steps ran at under a third of this speed: here each step is two products and one pass over the
cell, and the gradients of the weights are one product over all steps at the end. Equations: `model.bilm`.
"""

from typing import Any

import torch
from torch import Tensor

from model.bilm import FORGET_BIAS
from model.engine.onednn import PackedLinear
from model.training import kernels


class LSTMRecurrence(torch.autograd.Function):
    """x [T, B, p] → (h [T, B, p], c after the last step [B, d]); gradients for x and the weights, none for the state.

    x's dtype is the one that products are computed in; the weights may be wider (their gradients are as wide).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h_0: Tensor,
        c_0: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias: Tensor,
        weight_proj: Tensor,
        cell_clip: float,
        proj_clip: float,
    ) -> tuple[Tensor, Tensor]:
        """x [T, B, p], h_0 [B, p], c_0 [B, d] (float32 or wider), weight_ih and weight_hh [4d, p], weight_proj [p, d]."""
        steps, batch, p = x.shape
        d = c_0.shape[1]
        w = torch.cat((weight_ih, weight_hh), dim=1).to(x.dtype)  # [4d, 2p]
        w_proj = weight_proj.to(x.dtype)  # [p, d]
        shifted = bias.to(c_0.dtype).clone()  # [4d]
        shifted[d : 2 * d] += FORGET_BIAS
        xh = x.new_empty(steps, batch, 2 * p)
        xh[:, :, :p] = x
        gates = x.new_empty(steps, batch, 4 * d)
        m = x.new_empty(steps, batch, d)
        h = x.new_empty(steps, batch, p)
        c = c_0.new_empty(steps + 1, batch, d)
        c[0] = c_0
        gate_product, projection = _packed(w, batch), _packed(w_proj, batch)
        h_t = h_0.to(x.dtype)
        for t in range(steps):
            xh[t, :, p:] = h_t
            kernels.cell_forward(gate_product(xh[t]), shifted, c[t], gates[t], c[t + 1], m[t], cell_clip)
            h_t = projection(m[t], "clip", proj_clip)
            h[t] = h_t
        ctx.save_for_backward(xh, gates, m, h, c, w, w_proj)
        ctx.clips = cell_clip, proj_clip
        ctx.dtypes = weight_ih.dtype, weight_proj.dtype
        last_c = c[steps].clone()
        ctx.mark_non_differentiable(last_c)
        return h, last_c

    @staticmethod
    def backward(ctx: Any, dh_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """dh_out [T, B, p] → the gradients of x, weight_ih, weight_hh, bias and weight_proj."""
        xh, gates, m, h, c, w, w_proj = ctx.saved_tensors
        cell_clip, proj_clip = ctx.clips
        steps, batch, p = h.shape
        d = c.shape[2]
        # Where the clip holds, no gradient passes; known for all steps before the loop.
        free = (h.abs() < proj_clip).to(h.dtype)  # [T, B, p]
        dh = (dh_out.to(h.dtype) * free).contiguous()
        dxh = torch.empty_like(xh)
        dc = torch.zeros_like(c[0])
        dbias = c.new_zeros(4 * d)
        gate_product, projection = _packed(w.t(), batch), _packed(w_proj.t(), batch)
        for t in reversed(range(steps)):
            if t + 1 < steps:
                dh[t].addcmul_(dxh[t + 1, :, p:], free[t])
            kernels.cell_backward(gates[t], projection(dh[t]), dc, c[t], c[t + 1], dbias, cell_clip)
            dxh[t] = gate_product(gates[t])
        # This way round oneDNN is an eighth faster than with the wide operand turned.
        dw = torch.mm(xh.view(-1, 2 * p).t(), gates.view(-1, 4 * d)).t().to(ctx.dtypes[0])  # [4d, 2p]
        dw_proj = torch.mm(dh.view(-1, p).t(), m.view(-1, d)).to(ctx.dtypes[1])  # [p, d]
        dbias = dbias.to(ctx.dtypes[0])
        return dxh[:, :, :p], None, None, dw[:, :p], dw[:, p:], dbias, dw_proj, None, None


def _packed(weight: Tensor, rows: int) -> PackedLinear:
    """Weight [out, in] made ready for products with so many rows; packing pays for itself within a few steps."""
    packed = weight.dtype == torch.bfloat16 and weight.device.type == "cpu"
    return PackedLinear(weight, None, weight.dtype, rows, packed)
