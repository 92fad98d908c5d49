"""One direction of the biLM on a GPU: a window of steps is one CUDA graph of constant shape. May import torch, NumPy.

Everything that differs from step to step (which word, which lane starts from which slot, which state is saved) is a
number in a fixed buffer, so that the same graph computes any text. Products go to cuBLAS; all the rest of a step is
three small kernels a layer (`cuda_cell_triton`, or `cuda_cell` where Triton is missing). Without a GPU the same code runs
step by step on the CPU, which is how it is tested.
"""

import logging
from collections.abc import Mapping, Sequence
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from model.bilm import FORGET_BIAS
from model.engine import cuda_cell
from model.engine.device import DirectionEngine, StepMoves
from model.engine.planner import MAX_SLOTS, START_SLOT
from model.engine.transfer import fill, send
from model.engine.words import GateTable
from model.options import BiLMOptions

logger = logging.getLogger(__name__)

WINDOW = 16  # steps in a graph
TABLE_BLOCK = 1024  # words whose gates are computed in one product, always that many rows

__all__ = ["CudaDirection", "best_cell_ops"]


def best_cell_ops(device: torch.device) -> ModuleType:
    """`cuda_cell_triton` where it compiles and gives the right numbers, `cuda_cell` otherwise, with a log line on a GPU."""
    if device.type != "cuda":
        return cuda_cell
    try:
        from model.engine import cuda_cell_triton
    except ImportError as error:
        problem: str | None = f"Triton is not installed: {error}"
    else:
        problem = cuda_cell_triton.check(device)
        if problem is None:
            return cuda_cell_triton
    logger.warning("the fused cell is off, computing it with plain torch (slower): %s", problem)
    return cuda_cell


class CudaDirection(DirectionEngine):
    """One direction's layers, lanes, slots, gate table and graph; `stream` is the one to run it on, on a GPU.

    Args:
        tensors: for each layer its weight_ih, weight_hh, bias, weight_proj; float32 on the CPU.
        options: the model's shape.
        start_h, start_c: float32 [L, p] and [L, d], what every sequence starts from.
        dtype: float32 or bfloat16, of products and h; c is float32.
        device: a CUDA device, or the CPU to test.
        lanes: B, of every plan that will be run.
        table_bytes: memory for the gate table; it gets at least the slots that one window needs.
        ops: `cuda_cell` or `cuda_cell_triton`.
        max_forks: slots beside the start state's.
        window: steps in a graph.
    """

    def __init__(
        self,
        tensors: Sequence[Mapping[str, Tensor]],
        options: BiLMOptions,
        start_h: Tensor,
        start_c: Tensor,
        *,
        dtype: torch.dtype,
        device: torch.device,
        lanes: int,
        table_bytes: int,
        ops: ModuleType = cuda_cell,
        max_forks: int = MAX_SLOTS,
        window: int = WINDOW,
    ) -> None:
        d, p, n_layers = options.dim, options.projection_dim, options.n_layers
        self._options, self._dtype, self._device = options, dtype, device
        self._ops, self._window, self._lanes = ops, window, lanes
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            self.stream = torch.cuda.Stream(device)

        def put(tensor: Tensor) -> Tensor:
            return tensor.to(device=device, dtype=dtype).contiguous()

        biases = []
        for layer in tensors:
            bias = layer["bias"].clone()
            bias[d : 2 * d] += FORGET_BIAS
            biases.append(put(bias))
        self._word_weight, self._word_bias = put(tensors[0]["weight_ih"]), biases[0]  # [4d, p], [4d]
        self._weights = [put(tensors[0]["weight_hh"])]  # [4d, p]
        self._weights += [put(torch.cat([t["weight_ih"], t["weight_hh"]], dim=1)) for t in tensors[1:]]  # [4d, 2p]
        self._biases = biases[1:]
        self._projections = [put(t["weight_proj"]) for t in tensors]  # [p, d]

        n_table = max(window * lanes, TABLE_BLOCK, min(table_bytes // (4 * d * dtype.itemsize), 1 << 17))
        self._rows = torch.empty(n_table, 4 * d, dtype=dtype, device=device)  # [slots, 4d]
        self.table = GateTable(n_table, self._compute_rows)
        self._x = torch.empty(0, p, device=device)

        n_slots = max_forks + 2  # the start state's, and the last one, which takes what nobody wants
        self._slot_h = torch.zeros(n_layers, n_slots, p, dtype=dtype, device=device)
        self._slot_c = torch.zeros(n_layers, n_slots, d, device=device)
        self._slot_h[:, START_SLOT] = put(start_h)
        self._slot_c[:, START_SLOT] = start_c.to(device)
        self._h0 = torch.zeros(lanes, p, dtype=dtype, device=device)  # [B, p]
        self._xh = [torch.zeros(lanes, 2 * p, dtype=dtype, device=device) for _ in range(n_layers - 1)]  # [B, 2p] each
        self._c = [torch.zeros(lanes, d, device=device) for _ in range(n_layers)]  # [B, d] each
        self._hidden = torch.empty(lanes, d, dtype=dtype, device=device)
        self._out = torch.empty(n_layers, window, lanes, p, dtype=dtype, device=device)
        # What a graph reads: row of the gate table, slot to load (-1 = none), slot to save to (last = none).
        self._row, self._source, self._target = (
            torch.full((window, lanes), value, dtype=torch.int64, device=device) for value in (0, -1, n_slots - 1)
        )
        # Here, before there are workers: entering a capture frees PyTorch's cached memory, which it refuses to do while
        # another thread is capturing.
        self._graph = self._captured() if self._on_gpu else None

    def prepare(self, lanes: int, n_slots: int, x: Tensor) -> None:
        """See `DirectionEngine.prepare`; buffers and graph were made with the engine."""
        if lanes != self._lanes or n_slots > self._slot_h.shape[1] - 1:
            raise ValueError(
                f"a plan of {lanes} lanes and {n_slots} slots does not fit this engine, which was made for "
                f"{self._lanes} lanes and {self._slot_h.shape[1] - 1} slots"
            )
        self._x = x

    def window_steps(self, lanes: int) -> int:
        """Steps in a window, the graph's."""
        return self._window

    @torch.no_grad()
    def _captured(self) -> torch.cuda.CUDAGraph:
        """One window, recorded. Stale states do no harm: a lane loads a slot before anything it computes is wanted."""
        self.stream.wait_stream(torch.cuda.current_stream(self._device))  # which filled weights and buffers
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            self._all_steps()  # outside a graph first: cuBLAS and Triton set themselves up
        self.stream.synchronize()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            self._all_steps()
        return graph

    def run_window(self, first: int, slots: npt.NDArray[np.int64], loads: StepMoves, saves: StepMoves) -> list[Tensor]:
        """See `DirectionEngine.run_window`; the plan's last window is filled up with lanes that do nothing."""
        steps, lanes = slots.shape
        row = np.zeros((self._window, lanes), np.int64)
        source = np.full((self._window, lanes), -1, np.int64)
        target = np.full((self._window, lanes), self._slot_h.shape[1] - 1, np.int64)
        row[:steps] = slots
        for moves, where in ((loads, source), (saves, target)):
            low, high = moves.bounds[first], moves.bounds[first + steps]
            step = np.repeat(np.arange(steps), np.diff(moves.bounds[first : first + steps + 1]))
            where[step, moves.lanes[low:high].numpy()] = moves.slots[low:high].numpy()
        for buffer, values in ((self._row, row), (self._source, source), (self._target, target)):
            fill(buffer, values)
        if self._graph is not None:
            self._graph.replay()
        else:
            self._all_steps()
        return [out[:steps].flatten(0, 1) for out in self._out]

    def _h(self, layer: int) -> Tensor:
        """The recurrent h of a layer, [B, p], as a view."""
        return self._h0 if layer == 0 else self._xh[layer - 1][:, self._options.projection_dim :]

    def _all_steps(self) -> None:
        for t in range(self._window):
            self._step(t)

    def _step(self, t: int) -> None:
        """One step of all layers: what the graph holds `window` times."""
        p, options, ops = self._options.projection_dim, self._options, self._ops
        source, target = self._source[t], self._target[t]
        for j, weight in enumerate(self._weights):
            h = self._h(j)
            ops.load_h(h, self._slot_h[j], source)
            gates = F.linear(self._h0, weight) if j == 0 else F.linear(self._xh[j - 1], weight, self._biases[j - 1])
            table = self._rows if j == 0 else None
            c, slot_c = self._c[j], self._slot_c[j]
            ops.cell(gates, table, self._row[t], c, slot_c, source, target, self._hidden, options.cell_clip)
            projected = F.linear(self._hidden, self._projections[j])  # [B, p]
            skip = self._xh[j - 1][:, :p] if options.use_skip_connections and j > 0 else None
            following = self._xh[j][:, :p] if j + 1 < len(self._weights) else None
            ops.finish(projected, h, self._slot_h[j], target, skip, self._out[j, t], following, options.proj_clip)

    def _compute_rows(self, words: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]) -> None:
        """Gate rows of these words into these slots, TABLE_BLOCK at a time."""
        block = torch.zeros(TABLE_BLOCK, self._options.projection_dim, dtype=self._dtype, device=self._device)
        for low in range(0, len(words), TABLE_BLOCK):
            part = send(words[low : low + TABLE_BLOCK], self._device)
            block[: len(part)] = self._x[part].to(self._dtype)
            rows = F.linear(block, self._word_weight, self._word_bias)  # [TABLE_BLOCK, 4d]
            self._rows[send(slots[low : low + TABLE_BLOCK], self._device)] = rows[: len(part)]
