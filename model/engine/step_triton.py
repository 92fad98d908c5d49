"""A step's products with what follows them in the same Triton kernel: gates and cell, projection and `finish`.

Gates never go to memory, and a tile is always the same size, its sums in the same order: a lane's bytes do not depend on how many
lanes there are or on its place among them. It is used where `EngineSettings.fused` asks for it; no GPU has yet shown that it is
faster (`python -m benchmarks.gpu_day` measures that).
"""

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from model.engine.cell import CellBuffers, OutputBuffers
from model.engine.cell_triton import FP_FUSION

LANES_TILE, UNITS_TILE, PROJECTED_TILE = 128, 32, 64  # 128 lanes × 128 gates; 128 × 64 of the projection
GATES_WARPS, GATES_STAGES, PROJECTED_WARPS, PROJECTED_STAGES = 8, 3, 8, 4  # two programs a processor, no spills
INPUT_BYTES = 128  # of a row of either operand in a tile: 64 numbers of bfloat16, 32 of float32


@triton.jit
def _rows(x, row, stride, inputs, n_inputs):  # type: ignore[no-untyped-def]
    """These inputs of rows of x, [rows, inputs]; zeros where there are none."""
    return tl.load(x + row[:, None] * stride + inputs[None, :], mask=(inputs < n_inputs)[None, :], other=0.0)


@triton.jit
def _gates_cell_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    table,
    table_row,
    c,
    begins,
    begin_c,
    hidden,
    n_lanes,
    d,
    n_inputs,
    x_stride,
    clip,
    HAS_TABLE: tl.constexpr,
    HAS_CLIP: tl.constexpr,
    PRECISION: tl.constexpr,
    LANES: tl.constexpr,
    UNITS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    real, inside = lane < n_lanes, unit < d
    both = real[:, None] & inside[None, :]
    # A tile's lanes and gates beyond the last are computed as the last, and not stored.
    own_lane = tl.minimum(lane, n_lanes - 1)
    gate = tl.minimum(tl.program_id(1) * 4 * UNITS + tl.arange(0, 4 * UNITS), 4 * d - 1)  # interleaved: i, f, g, o of a unit
    # What is added to the product is where its sums begin.
    if HAS_TABLE:
        row = tl.load(table_row + own_lane).to(tl.int64)
        gates = tl.load(table + row[:, None] * 4 * d + gate[None, :]).to(tl.float32)
    else:
        gates = tl.zeros([LANES, 4 * UNITS], dtype=tl.float32) + tl.load(bias + gate).to(tl.float32)[None, :]
    for low in range(0, n_inputs, INPUTS):
        inputs = low + tl.arange(0, INPUTS)
        own = _rows(x, own_lane, x_stride, inputs, n_inputs)
        gates = tl.dot(own, _rows(weight, gate, n_inputs, inputs, n_inputs).T, gates, input_precision=PRECISION)
    even, odd = tl.split(gates.reshape(LANES, UNITS, 2, 2))
    i, g = tl.split(even)
    f, o = tl.split(odd)
    begin = tl.load(begins + lane, mask=real, other=0) > 0
    kept = c + lane[:, None] * d + unit[None, :]
    first = tl.load(begin_c + unit, mask=inside, other=0.0)
    before = tl.where(begin[:, None], first[None, :], tl.load(kept, mask=both, other=0.0))
    after = tl.sigmoid(f) * before + tl.sigmoid(i) * (2.0 * tl.sigmoid(2.0 * g) - 1.0)
    if HAS_CLIP:
        after = tl.minimum(tl.maximum(after, -clip), clip)
    tl.store(kept, after, mask=both)
    out = tl.sigmoid(o) * (2.0 * tl.sigmoid(2.0 * after) - 1.0)
    tl.store(hidden + lane[:, None] * d + unit[None, :], out.to(hidden.dtype.element_ty), mask=both)


@triton.jit
def _project_finish_kernel(  # type: ignore[no-untyped-def]
    hidden,
    weight,
    h,
    skip,
    output,
    following,
    n_lanes,
    p,
    d,
    h_stride,
    skip_stride,
    following_stride,
    clip,
    HAS_SKIP: tl.constexpr,
    HAS_FOLLOWING: tl.constexpr,
    HAS_CLIP: tl.constexpr,
    PRECISION: tl.constexpr,
    LANES: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own_lane, own_column = tl.minimum(lane, n_lanes - 1), tl.minimum(column, p - 1)
    value = tl.zeros([LANES, COLUMNS], dtype=tl.float32)
    for low in range(0, d, INPUTS):
        inputs = low + tl.arange(0, INPUTS)
        own = _rows(hidden, own_lane, d, inputs, d)
        value = tl.dot(own, _rows(weight, own_column, d, inputs, d).T, value, input_precision=PRECISION)
    inside = (lane < n_lanes)[:, None] & (column < p)[None, :]
    if HAS_CLIP:
        value = tl.minimum(tl.maximum(value, -clip), clip)
    stored = value.to(h.dtype.element_ty)
    tl.store(h + lane[:, None] * h_stride + column[None, :], stored, mask=inside)
    value = stored.to(tl.float32)  # what recurs is what is shown: rounded, where h is
    if HAS_SKIP:
        value += tl.load(skip + lane[:, None] * skip_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(output + lane[:, None] * p + column[None, :], value, mask=inside)
    if HAS_FOLLOWING:
        where = following + lane[:, None] * following_stride + column[None, :]
        tl.store(where, value.to(following.dtype.element_ty), mask=inside)


def interleaved(rows: Tensor) -> Tensor:
    """Rows [4d, …] in the order of the gates i, f, g, o → the four of a unit together: what a tile of gates reads."""
    return rows.unflatten(0, (4, -1)).transpose(0, 1).flatten(0, 1).contiguous()


def _options(x: Tensor, tf32: bool) -> dict[str, Any]:
    return {
        "PRECISION": "tf32" if tf32 else "ieee",
        "LANES": LANES_TILE,
        "INPUTS": INPUT_BYTES // x.element_size(),
        "enable_fp_fusion": FP_FUSION,
    }


def gates_cell(weight: Tensor, bias: Tensor | None, buffers: CellBuffers, tf32: bool) -> None:
    """The cell of the gates x · weightᵀ, x [B, inputs] standing in ``buffers.gates``; ``bias`` [4d] where there is no table.

    Rows of weight [4d, inputs], bias and table are `interleaved`. float32 numbers are multiplied in tf32 if ``tf32``.
    """
    x, table, table_row, c, begins, begin_c, hidden, clip = buffers
    lanes, d = c.shape
    has_clip = math.isfinite(clip)
    _gates_cell_kernel[(triton.cdiv(lanes, LANES_TILE), triton.cdiv(d, UNITS_TILE))](
        x,
        weight,
        weight if bias is None else bias,
        weight if table is None else table,
        table_row,
        c,
        begins,
        begin_c,
        hidden,
        lanes,
        d,
        x.shape[1],
        x.stride(0),
        clip if has_clip else 0.0,
        HAS_TABLE=table is not None,
        HAS_CLIP=has_clip,
        UNITS=UNITS_TILE,
        num_warps=GATES_WARPS,
        num_stages=GATES_STAGES,
        **_options(x, tf32),
    )


def project_finish(weight: Tensor, buffers: OutputBuffers, tf32: bool) -> None:
    """`finish` of the projection hidden · weightᵀ, hidden [B, d] standing in ``buffers.projected``; weight [p, d]."""
    hidden, h, skip, output, following, clip = buffers
    lanes, p = h.shape
    has_clip = math.isfinite(clip)
    _project_finish_kernel[(triton.cdiv(lanes, LANES_TILE), triton.cdiv(p, PROJECTED_TILE))](
        hidden,
        weight,
        h,
        h if skip is None else skip,
        output,
        h if following is None else following,
        lanes,
        p,
        hidden.shape[1],
        h.stride(0),
        0 if skip is None else skip.stride(0),
        0 if following is None else following.stride(0),
        clip if has_clip else 0.0,
        HAS_SKIP=skip is not None,
        HAS_FOLLOWING=following is not None,
        HAS_CLIP=has_clip,
        COLUMNS=PROJECTED_TILE,
        num_warps=PROJECTED_WARPS,
        num_stages=PROJECTED_STAGES,
        **_options(hidden, tf32),
    )
