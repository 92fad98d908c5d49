"""A `CudaDirection` whose step is three Triton kernels a layer: products with what follows them, see `step_triton`.

A lane's bytes depend neither on the number of lanes nor on its place, so that the end of a grid is computed with fewer lanes and
long sequences need no grid of their own.
"""

from collections.abc import Sequence
from itertools import chain
from typing import cast

import torch
from torch import Tensor

from model.engine import cell_triton, step_triton
from model.engine.cell import CellBuffers, CellOps, OutputBuffers
from model.engine.cuda_direction import CudaDirection
from model.engine.device import Layout
from model.engine.products import Linear, PackedLinear
from model.files.weights import BiLMWeights
from model.start_state import StartState


class FusedDirection(CudaDirection):
    """See `CudaDirection`; float32 is multiplied in tf32."""

    _gate_order = staticmethod(step_triton.interleaved)

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
            step_triton.gates_cell(weight, bias, buffers, tf32)
            skip = xh[j - 1][:, :p] if options.use_skip_connections and j > 0 else None
            following = xh[j][:, :p] if j + 1 < len(self._gates) else None
            weight, _ = cast(PackedLinear, projection).plain
            step_triton.project_finish(weight, OutputBuffers(hidden, h, skip, outputs[j], following, options.proj_clip), tf32)
