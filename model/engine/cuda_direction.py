"""One direction on one GPU: a window of steps is one CUDA graph.

Everything that differs from step to step is a number in a fixed buffer, so that the same graph computes any text; each number of
lanes has its own. On the CPU the same code runs without streams and graphs, which is how it is tested.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from model.engine.cell import CellOps
from model.engine.device import Direction, GateTable, Layout, Window, send
from model.engine.planning.text import BOS_ID
from model.files.weights import BiLMWeights
from model.start_state import StartState

WINDOW = 16  # steps in a graph


class CudaDirection(Direction):
    """A `Direction` whose window is a graph on `stream`; plans and windows have ``layout.lanes`` or one of ``long_lanes``.

    All that a plan's windows need goes to the device in one copy, before the first of them is asked for: whatever other threads
    do, the device waits for the interpreter's lock a few times a window.
    """

    def __init__(
        self, weights: BiLMWeights, start: StartState, k: int, layout: Layout, ops: CellOps, long_lanes: Sequence[int] = ()
    ) -> None:
        self._on_gpu = layout.device.type == "cuda"
        if self._on_gpu:
            self.stream = torch.cuda.Stream(layout.device)
        super().__init__(weights, start, k, replace(layout, table_rows=max(WINDOW * layout.lanes + 1, layout.table_rows)), ops)
        # The last row is nobody's: what fills up a block of words goes there.
        self.table = GateTable(len(self._rows) - 1)
        self._grids = {n: self._grid(n) for n in (layout.lanes, *long_lanes)}

    def _grid(self, lanes: int) -> "_Grid":
        cells = torch.zeros(2, WINDOW, lanes, dtype=torch.int32, device=self._layout.device)
        size = WINDOW * lanes * self._options.projection_dim
        grid = _Grid(cells, [out[:size].view(WINDOW, lanes, -1) for out in self._out])
        # Here, before there are workers: entering a capture frees PyTorch's cached memory, which it refuses to do while
        # another thread is capturing.
        return replace(grid, graph=self._captured(grid)) if self._on_gpu else grid

    @torch.no_grad()
    def _captured(self, grid: "_Grid") -> torch.cuda.CUDAGraph:
        """One window, recorded. Stale states do no harm: a lane begins anew before anything it computes is wanted."""
        self.stream.wait_stream(torch.cuda.current_stream(self._layout.device))  # which filled weights and buffers
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            self._all_steps(grid)  # outside a graph first: cuBLAS and Triton set themselves up
        self.stream.synchronize()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            self._all_steps(grid)
        return graph

    def _ready(self, windows: Sequence[Window], generation: int) -> Iterator["_Sent"]:
        """All windows of a plan on the device, by one copy of int32 numbers.

        A short window is filled up with its last words, computed from where lanes begin: after the opening's one step, which
        begins in every lane, h and c are therefore those of that step. After an error the table may name rows that were not
        computed; the words' generation has ended then.
        """
        block, parts = self._layout.table_block, []
        for words, begins in windows:
            cells = np.ones((2, WINDOW, words.shape[1]), np.int32)
            cells[0, : len(words)], new = self.table.slots(words, len(self._x), generation)
            cells[0, len(words) :] = cells[0, len(words) - 1]
            cells[1, : len(words)] = begins
            n = new.shape[1]
            missing = np.full((2, -(-n // block) * block), [[BOS_ID], [self.table.n_slots]], np.int32)
            missing[:, :n] = new
            parts += [cells, missing]
        sent = send(np.concatenate([part.reshape(-1) for part in parts]), self._layout.device).split(
            [part.size for part in parts]
        )
        for (words, _), cells_sent, missing_sent in zip(windows, sent[::2], sent[1::2], strict=True):
            blocks = missing_sent.view(2, -1, block).unbind(1) if len(missing_sent) else ()
            yield _Sent(len(words), cells_sent.view(2, WINDOW, -1), blocks)

    def run_window(self, window: "_Sent") -> list[Tensor]:
        """See `Direction.run_window`."""
        grid = self._grids[window.cells.shape[2]]
        for block in window.blocks:
            x = self._x.index_select(0, block[0]).to(self._rows.dtype)  # [block, p]
            self._rows.index_copy_(0, block[1].long(), self.table_linear(x))
        grid.cells.copy_(window.cells)
        if grid.graph is not None:
            grid.graph.replay()
        else:
            self._all_steps(grid)
        return [output[: window.steps] for output in grid.outputs]

    def _all_steps(self, grid: "_Grid") -> None:
        for t in range(WINDOW):
            outputs = [output[t] for output in grid.outputs]  # [B, p] each
            self._step(grid.cells.shape[2], grid.cells[0, t], grid.cells[1, t], outputs)


@dataclass(frozen=True, eq=False)
class _Grid:
    """What a graph of so many lanes reads and writes, and the graph on a GPU."""

    cells: Tensor  # int32 [2, WINDOW, B]: row of the gate table; 1 where a lane begins anew
    outputs: list[Tensor]  # [WINDOW, B, p] a layer
    graph: torch.cuda.CUDAGraph | None = None


@dataclass(frozen=True, eq=False)
class _Sent:
    """What a graph needs to compute one window, on the device."""

    steps: int  # that are wanted
    cells: Tensor  # as those of `_Grid`
    blocks: Sequence[Tensor]  # int32 [2, block]: words and their slots, rows of the gate table to compute before
