"""One direction of the biLM on a CPU: packed products, activations fused into them, the cell in place.

May import torch, NumPy and the model's own modules. Source of the equations: `model.bilm` (Sak et al. 2014 without
peepholes; clips, forget bias and skips as in bilm-tf). Cells and additions are float32 in either precision.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.bilm import FORGET_BIAS
from model.engine.device import DirectionEngine, StepMoves
from model.engine.onednn import PackedLinear
from model.engine.planner import START_SLOT
from model.engine.words import GateTable, NoTable
from model.options import BiLMOptions

TABLE_BLOCK = 128  # words whose gates are computed in one product, always that many rows
MAX_WINDOW = 64  # steps

__all__ = ["CpuDirection", "CpuLayer"]


class CpuLayer:
    """One LSTM layer: a step for B lanes at once.

    The first layer gets its input's share of the gates from a table and multiplies h alone; every other layer
    multiplies [x, h] in one product. Gates stand in the order input, forget, output | cell, so that one activation
    each covers a contiguous stretch.

    PyTorch's sigmoid is four times as fast as its tanh on a CPU, so tanh(z) is 2 · sigmoid(2z) - 1 here (2e-7 off at
    most). The first layer's cell gate is stored doubled, which is exact, so that one sigmoid covers all its gates.

    Args:
        tensors: weight_ih, weight_hh [4d, p], bias [4d] (published, without the 1.0), weight_proj [p, d], float32.
        options: the model's shape and clips.
        first: whether this is the first layer.
        dtype: float32 or bfloat16, of products.
        lanes: rows that products are packed for.
        packed: see `PackedLinear`.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        options: BiLMOptions,
        first: bool,
        dtype: torch.dtype,
        lanes: int,
        packed: bool,
    ) -> None:
        d = options.dim
        self._options = options
        self.first = first
        self.dtype = dtype
        order = torch.cat([torch.arange(0, 2 * d), torch.arange(3 * d, 4 * d), torch.arange(2 * d, 3 * d)])
        bias = tensors["bias"].clone()  # [4d]
        bias[d : 2 * d] += FORGET_BIAS
        bias = bias[order]
        self.linears: list[PackedLinear] = []
        if first:
            doubled = torch.ones(4 * d)
            doubled[3 * d :] = 2
            weight_ih, weight_hh = (tensors[name][order] * doubled[:, None] for name in ("weight_ih", "weight_hh"))
            self.words = PackedLinear(weight_ih, bias * doubled, dtype, TABLE_BLOCK, packed)
            self.recurrent = PackedLinear(weight_hh, None, dtype, lanes, packed)
            self.linears += [self.words, self.recurrent]
        else:
            weight = torch.cat([tensors["weight_ih"], tensors["weight_hh"]], dim=1)[order]  # [4d, 2p]
            self.gates = PackedLinear(weight[: 3 * d], bias[: 3 * d], dtype, lanes, packed)
            self.cell_gate = PackedLinear(weight[3 * d :], bias[3 * d :], dtype, lanes, packed)
            self.linears += [self.gates, self.cell_gate]
        self.project = PackedLinear(tensors["weight_proj"], None, dtype, lanes, packed)
        self.linears.append(self.project)

    def step(self, x: Tensor, h: Tensor, c: Tensor, scratch: Tensor) -> Tensor:
        """One token in each lane.

        Args:
            x: the first layer's gates from the table [B, 4d]; any other layer's [x, h] [B, 2p].
            h: [B, p]; used by the first layer only (any other has it in x).
            c: [B, d] float32, updated in place.
            scratch: [B, d] float32.

        Returns:
            the new h [B, p].
        """
        d = self._options.dim
        if self.first:
            gates = self.recurrent.add_to(x, h).float().sigmoid_()  # [B, 4d]
            ifo, g = gates[:, : 3 * d], gates[:, 3 * d :].mul_(2).sub_(1)
        else:
            ifo, g = self.gates(x, "sigmoid").float(), self.cell_gate(x, "tanh").float()  # [B, 3d], [B, d]
        i, f, o = ifo[:, :d], ifo[:, d : 2 * d], ifo[:, 2 * d :]  # [B, d] each
        c.mul_(f).addcmul_(i, g)
        if math.isfinite(self._options.cell_clip):
            c.clamp_(-self._options.cell_clip, self._options.cell_clip)
        torch.mul(c, 2, out=scratch).sigmoid_().mul_(2).sub_(1)  # tanh(c)
        hidden = scratch.mul_(o).to(self.dtype)  # [B, d]
        bound = self._options.proj_clip
        return self.project(hidden, "clip", bound) if math.isfinite(bound) else self.project(hidden)


class CpuDirection(DirectionEngine):
    """One direction's layers, lanes, slots and gate table.

    Args:
        tensors: for each layer its weight_ih, weight_hh, bias, weight_proj.
        options: the model's shape.
        start_h, start_c: float32 [L, p] and [L, d], what every sequence starts from.
        dtype: float32 or bfloat16.
        lanes: the usual number of lanes.
        table_bytes: memory for the gate table; it gets at least the slots that one step of lanes needs. 0 = no table,
            every cell's row is computed as the table would have.
        packed: see `PackedLinear`.
    """

    def __init__(
        self,
        tensors: Sequence[Mapping[str, Tensor]],
        options: BiLMOptions,
        start_h: Tensor,
        start_c: Tensor,
        *,
        dtype: torch.dtype,
        lanes: int,
        table_bytes: int,
        packed: bool = True,
    ) -> None:
        self._options = options
        self._dtype = dtype
        self.layers = [CpuLayer(t, options, j == 0, dtype, lanes, packed) for j, t in enumerate(tensors)]
        self._start_h, self._start_c = start_h.to(dtype), start_c
        row_bytes = 4 * options.dim * dtype.itemsize
        n_slots = max(lanes, TABLE_BLOCK, min(table_bytes // row_bytes, 1 << 16))
        self._rows = torch.empty(n_slots if table_bytes else 0, 4 * options.dim, dtype=dtype)  # [slots, 4d]
        self.table = GateTable(n_slots, self._compute_rows) if table_bytes else NoTable()
        self._x = torch.empty(0, options.projection_dim)

    def _compute_rows(self, words: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]) -> None:
        """Gate rows of these words into these slots, TABLE_BLOCK at a time."""
        block = torch.zeros(TABLE_BLOCK, self._options.projection_dim, dtype=self._dtype)
        for low in range(0, len(words), TABLE_BLOCK):
            part = torch.from_numpy(words[low : low + TABLE_BLOCK])
            block[: len(part)] = self._x[part]
            rows = self.layers[0].words(block)  # [TABLE_BLOCK, 4d]
            self._rows[torch.from_numpy(slots[low : low + TABLE_BLOCK])] = rows[: len(part)]

    def prepare(self, lanes: int, n_slots: int, x: Tensor) -> None:
        """See `DirectionEngine.prepare`."""
        self._x = x
        p, d, n_layers = self._options.projection_dim, self._options.dim, self._options.n_layers
        # h of layer j stands where layer j reads it: the first layer's alone, the others' behind their input.
        self._h0 = self._start_h[0].expand(lanes, p).contiguous()  # [B, p]
        self._xh = [self._start_h[j].repeat(lanes, 2) for j in range(1, n_layers)]  # [B, 2p] each
        self._c = [self._start_c[j].expand(lanes, d).contiguous() for j in range(n_layers)]  # [B, d] each
        self._slot_h = torch.zeros(n_layers, n_slots, p, dtype=self._dtype)  # [L, slots, p]
        self._slot_c = torch.zeros(n_layers, n_slots, d)  # [L, slots, d]
        self._slot_h[:, START_SLOT], self._slot_c[:, START_SLOT] = self._start_h, self._start_c
        self._gates = torch.empty(lanes, 4 * d, dtype=self._dtype)  # [B, 4d]
        self._scratch = torch.empty(lanes, d)  # [B, d]
        steps = self.window_steps(lanes)
        self._out = [torch.empty(steps, lanes, p) for _ in range(n_layers)]  # [window, B, p] float32

    def window_steps(self, lanes: int) -> int:
        """Steps in a window: all of its cells might be different words."""
        return max(1, min(MAX_WINDOW, self.table.n_slots // lanes)) if self.table.n_slots else MAX_WINDOW

    def _h(self, layer: int) -> Tensor:
        """The recurrent h of a layer, [B, p], as a view."""
        return self._h0 if layer == 0 else self._xh[layer - 1][:, self._options.projection_dim :]

    def run_window(self, first: int, slots: npt.NDArray[np.int64], loads: StepMoves, saves: StepMoves) -> list[Tensor]:
        """See `DirectionEngine.run_window`."""
        table_slots = torch.from_numpy(slots)  # [steps, B]
        for t in range(len(slots)):
            if (move := loads.at(first + t)) is not None:
                self._load(*move)
            if isinstance(self.table, NoTable):
                gates = self.layers[0].words(self._x[table_slots[t]].to(self._dtype))  # [B, 4d]
            else:
                gates = torch.index_select(self._rows, 0, table_slots[t], out=self._gates)
            self._step(t, gates)
            if (move := saves.at(first + t)) is not None:
                self._save(*move)
        return [out[: len(slots)].flatten(0, 1) for out in self._out]

    def _step(self, t: int, gates: Tensor) -> None:
        """One step of all layers, their outputs going to place t of the window; gates [B, 4d] are the words' share."""
        p, skip = self._options.projection_dim, self._options.use_skip_connections
        for j, layer in enumerate(self.layers):
            x = gates if j == 0 else self._xh[j - 1]
            h = layer.step(x, self._h0, self._c[j], self._scratch)  # [B, p]
            self._h(j).copy_(h)
            output = self._out[j][t]  # [B, p]
            output.copy_(h)
            if skip and j > 0:
                output.add_(self._xh[j - 1][:, :p])
            if j + 1 < len(self.layers):
                self._xh[j][:, :p].copy_(output)

    def _load(self, lanes: Tensor, slots: Tensor) -> None:
        for j, c in enumerate(self._c):
            self._h(j)[lanes] = self._slot_h[j, slots]
            c[lanes] = self._slot_c[j, slots]

    def _save(self, lanes: Tensor, slots: Tensor) -> None:
        for j, c in enumerate(self._c):
            self._slot_h[j, slots] = self._h(j)[lanes]
            self._slot_c[j, slots] = c[lanes]
