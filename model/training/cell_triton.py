"""The two functions of `cell` as one Triton kernel each, for GPUs.

Importing this module needs triton, which comes with PyTorch for CUDA on Linux; where it is missing `network.cell_of` falls back
to PyTorch's operators. The kernels also run in Triton's interpreter (TRITON_INTERPRET=1): so tests without a GPU compare
them with those. tanh(z) is 2 · sigmoid(2z) - 1: Triton's core language has no tanh.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.engine.cell_triton import FP_FUSION, launch_grid, load_gates, tanh


@triton.jit
def _forward_kernel(products, bias, c_prev, gates, c, m, d, clip, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < d
    i, f, g, o = load_gates(products + lane * 4 * d + column, d, inside)
    own = load_gates(bias + column, d, inside)
    i, f, g, o = i + own[0], f + own[1], g + own[2], o + own[3]
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), tanh(g), tl.sigmoid(o)
    after = f * tl.load(c_prev + lane * d + column, mask=inside, other=0.0) + i * g
    after = tl.minimum(tl.maximum(after, -clip), clip)
    kept = gates + lane * 4 * d + column
    dtype = gates.dtype.element_ty
    tl.store(kept, i.to(dtype), mask=inside)
    tl.store(kept + d, f.to(dtype), mask=inside)
    tl.store(kept + 2 * d, g.to(dtype), mask=inside)
    tl.store(kept + 3 * d, o.to(dtype), mask=inside)
    tl.store(c + lane * d + column, after, mask=inside)
    tl.store(m + lane * d + column, (o * tanh(after)).to(m.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(gates, dm, dc, c_prev, c, d, clip, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < d
    cell = lane * d + column
    row = gates + lane * 4 * d + column
    i, f, g, o = load_gates(row, d, inside)
    now = tl.load(c + cell, mask=inside, other=0.0)
    upstream = tl.load(dm + cell, mask=inside, other=0.0).to(tl.float32)
    tanh_c = tanh(now)
    dv = tl.load(dc + cell, mask=inside, other=0.0) + upstream * o * (1.0 - tanh_c * tanh_c)
    dv = tl.where(tl.abs(now) < clip, dv, 0.0)
    dtype = gates.dtype.element_ty
    tl.store(row, (dv * g * i * (1.0 - i)).to(dtype), mask=inside)
    tl.store(
        row + d,
        (dv * tl.load(c_prev + cell, mask=inside, other=0.0) * f * (1.0 - f)).to(dtype),
        mask=inside,
    )
    tl.store(row + 2 * d, (dv * i * (1.0 - g * g)).to(dtype), mask=inside)
    tl.store(row + 3 * d, (upstream * tanh_c * o * (1.0 - o)).to(dtype), mask=inside)
    tl.store(dc + cell, dv * f, mask=inside)


def cell_forward(
    products: Tensor, bias: Tensor, c_prev: Tensor, gates: Tensor, c: Tensor, m: Tensor, clip: float
) -> None:
    """See `cell.cell_forward`; bias and c are float32."""
    grid, block = launch_grid(*c.shape)
    _forward_kernel[grid](
        products,
        bias,
        c_prev,
        gates,
        c,
        m,
        c.shape[1],
        clip,
        BLOCK=block,
        enable_fp_fusion=FP_FUSION,
    )


def cell_backward(
    gates: Tensor, dm: Tensor, dc: Tensor, c_prev: Tensor, c: Tensor, clip: float
) -> None:
    """See `cell.cell_backward`; c is float32."""
    grid, block = launch_grid(*c.shape)
    _backward_kernel[grid](
        gates, dm, dc, c_prev, c, c.shape[1], clip, BLOCK=block, enable_fp_fusion=FP_FUSION
    )


def check(device: torch.device) -> bool:
    """Whether the kernels, compiled for this device, give the numbers of PyTorch's operators."""
    from model.training import cell

    generator = torch.Generator().manual_seed(0)
    products, bias, c_prev, dm, dc = (
        torch.randn(*shape, generator=generator).to(device)
        for shape in ((4, 32), (32,), (4, 8), (4, 8), (4, 8))
    )
    results = []
    for forward, backward in (cell.cell_forward, cell.cell_backward), (cell_forward, cell_backward):
        gates, c, m, carried = (
            torch.empty_like(products),
            torch.empty_like(dc),
            torch.empty_like(dc),
            dc.clone(),
        )
        forward(products, bias, c_prev, gates, c, m, 0.8)
        seen = [gates.clone(), c, m]
        backward(gates, dm, carried, c_prev, c, 0.8)
        results.append(torch.cat([*seen, gates, carried], dim=1))
    return torch.allclose(results[0], results[1], atol=1e-5)
