"""A `CudaDirection` whose step is three Triton kernels a layer: products with what follows them, gates and cell, projection and
`finish`, in the same one.

Gates never go to memory, and a tile is always the same size, its sums in the same order: a lane's bytes depend neither on the
number of lanes nor on its place, so that the end of a grid is computed with fewer lanes and long sequences need no grid of their
own. It is used where `EngineSettings.fused` asks for it; no GPU has yet shown that it is faster (`python -m benchmarks.gpu.day`
measures that).
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.engine import cell_triton
from model.engine.cell import CellBuffers, CellOps, OutputBuffers
from model.engine.cell_triton import cell_operands, finish_operands, store_projected, tanh, updated
from model.engine.cuda_direction import CudaDirection
from model.engine.device import Layout
from model.engine.products import Linear, PackedLinear
from model.files.weights import BiLMWeights
from model.start_state import StartState

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
    n_lanes,
    d,
    n_inputs,
    x_stride,
    table,
    table_row,
    c,
    begins,
    begin_c,
    hidden,
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
    after = updated(i, f, g, before, clip, HAS_CLIP)
    tl.store(kept, after, mask=both)
    out = (tl.sigmoid(o) * tanh(after)).to(hidden.dtype.element_ty)
    tl.store(hidden + lane[:, None] * d + unit[None, :], out, mask=both)


@triton.jit
def _project_finish_kernel(  # type: ignore[no-untyped-def]
    hidden,
    weight,
    n_lanes,
    p,
    d,
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
    h = h + lane[:, None] * h_stride + column[None, :]
    skip = skip + lane[:, None] * skip_stride + column[None, :]
    output = output + lane[:, None] * p + column[None, :]
    following = following + lane[:, None] * following_stride + column[None, :]
    store_projected(value, inside, h, skip, output, following, clip, HAS_SKIP, HAS_FOLLOWING, HAS_CLIP)


def interleaved(rows: Tensor) -> Tensor:
    """Rows [4d, …] in the order of the gates i, f, g, o → the four of a unit together: what a tile of gates reads."""
    return rows.unflatten(0, (4, -1)).transpose(0, 1).flatten(0, 1).contiguous()


def _options(x: Tensor, tf32: bool) -> dict[str, Any]:
    return {"PRECISION": "tf32" if tf32 else "ieee", "LANES": LANES_TILE, "INPUTS": INPUT_BYTES // x.element_size()}


def gates_cell(weight: Tensor, bias: Tensor | None, buffers: CellBuffers, tf32: bool) -> None:
    """The cell of the gates x · weightᵀ, x [B, inputs] standing in ``buffers.gates``; ``bias`` [4d] where there is no table.

    Rows of weight [4d, inputs], bias and table are `interleaved`. float32 numbers are multiplied in tf32 if ``tf32``.
    """
    x, (lanes, d) = buffers.gates, buffers.c.shape
    operands, constants = cell_operands(buffers)
    _gates_cell_kernel[(triton.cdiv(lanes, LANES_TILE), triton.cdiv(d, UNITS_TILE))](
        x, weight, weight if bias is None else bias, lanes, d, x.shape[1], x.stride(0), *operands, UNITS=UNITS_TILE,
        num_warps=GATES_WARPS, num_stages=GATES_STAGES, **constants, **_options(x, tf32),
    )  # fmt: skip


def project_finish(weight: Tensor, buffers: OutputBuffers, tf32: bool) -> None:
    """`finish` of the projection hidden · weightᵀ, hidden [B, d] standing in ``buffers.projected``; weight [p, d]."""
    hidden, (lanes, p) = buffers.projected, buffers.h.shape
    operands, constants = finish_operands(buffers)
    _project_finish_kernel[(triton.cdiv(lanes, LANES_TILE), triton.cdiv(p, PROJECTED_TILE))](
        hidden, weight, lanes, p, hidden.shape[1], *operands, COLUMNS=PROJECTED_TILE,
        num_warps=PROJECTED_WARPS, num_stages=PROJECTED_STAGES, **constants, **_options(hidden, tf32),
    )  # fmt: skip


class FusedDirection(CudaDirection):
    """See `CudaDirection`; float32 is multiplied in tf32."""

    _gate_order = staticmethod(interleaved)

    def __init__(self, weights: BiLMWeights, start: StartState, k: int, layout: Layout, fewer_lanes: Sequence[int] = ()) -> None:
        super().__init__(weights, start, k, layout, cast(CellOps, cell_triton), fewer_lanes)

    @property
    def step_linears(self) -> list[Linear]:
        """None: no product of a step is a library's."""
        return []

    def _step(self, lanes: int, row: Tensor, begins: Tensor | None, outputs: list[Tensor]) -> None:
        p, options = self._options.projection_dim, self._options
        h0, hidden = self._h0[:lanes], self._hidden[:lanes]  # [B, p], [B, d]
        xh = [both[:lanes] for both in self._xh]  # [B, 2p] each
        tf32 = self._layout.dtype == torch.float32
        for j, (gates, projection) in enumerate(zip(chain(*self._gates), self._projections, strict=True)):
            h = h0 if j == 0 else xh[j - 1][:, p:]  # [B, p]
            self._ops.load_h(h, self._begin_h[j], begins)
            weight, bias = cast(PackedLinear, gates).plain
            table, c = self._rows if j == 0 else None, self._c[j][:lanes]
            inputs = h0 if j == 0 else xh[j - 1]  # [B, p] or [B, 2p]
            buffers = CellBuffers(inputs, table, row, c, begins, self._begin_c[j], hidden, options.cell_clip)
            gates_cell(weight, bias, buffers, tf32)
            skip = xh[j - 1][:, :p] if options.use_skip_connections and j > 0 else None
            following = xh[j][:, :p] if j + 1 < len(self._gates) else None
            weight, _ = cast(PackedLinear, projection).plain
            project_finish(weight, OutputBuffers(hidden, h, skip, outputs[j], following, options.proj_clip), tf32)
