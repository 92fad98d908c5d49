"""The functions `cell` and `finish` of `model.engine.cell` as one Triton kernel each, for GPUs.

Importing this module needs triton, which comes with PyTorch for CUDA on Linux. The kernels also run in Triton's interpreter
(TRITON_INTERPRET=1), which is how tests without a GPU compare them with `cell`.

Each program handles a block of one lane's columns, so that loads and stores are contiguous. tanh(z) is 2 · sigmoid(2z) - 1:
Triton's core language has no tanh.
"""

import math

import torch
import triton
import triton.language as tl

from model.engine.cell import CellBuffers, OutputBuffers, agrees

NAME = "triton"
# Products and sums may become one operation. Said explicitly: bytes rest on it, and Triton's default is going to change.
FP_FUSION = True


@triton.jit
def load_gates(row, d, inside):  # type: ignore[no-untyped-def]
    """A row's i, f, g and o, d apart, in float32."""
    i = tl.load(row, mask=inside, other=0.0).to(tl.float32)
    f = tl.load(row + d, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(row + 2 * d, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(row + 3 * d, mask=inside, other=0.0).to(tl.float32)
    return i, f, g, o


@triton.jit
def tanh(z):  # type: ignore[no-untyped-def]
    return 2.0 * tl.sigmoid(2.0 * z) - 1.0


@triton.jit
def _cell_kernel(  # type: ignore[no-untyped-def]
    gates,
    d,
    table,
    table_row,
    c,
    begins,
    begin_c,
    hidden,
    clip,
    HAS_TABLE: tl.constexpr,
    HAS_CLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < d
    i, f, g, o = load_gates(gates + lane * 4 * d + column, d, inside)
    if HAS_TABLE:
        own = load_gates(table + tl.load(table_row + lane) * 4 * d + column, d, inside)
        i, f, g, o = i + own[0], f + own[1], g + own[2], o + own[3]
    begin = tl.load(begins + lane) + tl.zeros(
        [BLOCK], dtype=tl.int64
    )  # the same number for every column
    kept = tl.load(c + lane * d + column, mask=inside, other=0.0)
    loaded = tl.load(begin_c + column, mask=inside & (begin > 0), other=0.0)
    before = tl.where(begin > 0, loaded, kept)
    after = tl.sigmoid(f) * before + tl.sigmoid(i) * tanh(g)
    if HAS_CLIP:
        after = tl.minimum(tl.maximum(after, -clip), clip)
    tl.store(c + lane * d + column, after, mask=inside)
    tl.store(
        hidden + lane * d + column,
        (tl.sigmoid(o) * tanh(after)).to(hidden.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def _finish_kernel(  # type: ignore[no-untyped-def]
    projected,
    p,
    h,
    skip,
    output,
    following,
    h_stride,
    skip_stride,
    following_stride,
    clip,
    HAS_SKIP: tl.constexpr,
    HAS_FOLLOWING: tl.constexpr,
    HAS_CLIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < p
    value = tl.load(projected + lane * p + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_CLIP:
        value = tl.minimum(tl.maximum(value, -clip), clip)
    stored = value.to(h.dtype.element_ty)
    tl.store(h + lane * h_stride + column, stored, mask=inside)
    value = stored.to(tl.float32)  # what recurs is what is shown: rounded, where h is
    if HAS_SKIP:
        value += tl.load(skip + lane * skip_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + lane * p + column, value, mask=inside)
    if HAS_FOLLOWING:
        tl.store(
            following + lane * following_stride + column,
            value.to(following.dtype.element_ty),
            mask=inside,
        )


def launch_grid(lanes: int, width: int) -> tuple[tuple[int, int], int]:
    """Programs for so many lanes and columns, and the columns of each."""
    block = min(1024, triton.next_power_of_2(width))
    return (lanes, triton.cdiv(width, block)), block


def cell(buffers: CellBuffers) -> None:
    gates, table, table_row, c, begins, begin_c, hidden, clip = buffers
    has_clip, (grid, block) = math.isfinite(clip), launch_grid(*c.shape)
    _cell_kernel[grid](
        gates, c.shape[1], gates if table is None else table, table_row, c, begins, begin_c, hidden, clip if has_clip else 0.0,
        HAS_TABLE=table is not None, HAS_CLIP=has_clip, BLOCK=block, enable_fp_fusion=FP_FUSION,
    )  # fmt: skip


def finish(buffers: OutputBuffers) -> None:
    projected, h, skip, output, following, clip = buffers
    has_clip, (grid, block) = math.isfinite(clip), launch_grid(*h.shape)
    skipped, passed_on = (
        h if skip is None else skip,
        h if following is None else following,
    )  # h: never touched
    _finish_kernel[grid](
        projected, h.shape[1], h, skipped, output, passed_on,
        h.stride(0), skipped.stride(0), passed_on.stride(0), clip if has_clip else 0.0,
        HAS_SKIP=skip is not None, HAS_FOLLOWING=following is not None, HAS_CLIP=has_clip,
        BLOCK=block, enable_fp_fusion=FP_FUSION,
    )  # fmt: skip


def check(device: torch.device) -> bool:
    """Whether the kernels, compiled for this device, give the numbers of `cell.cell`."""
    return agrees(cell, device, 1e-5)
