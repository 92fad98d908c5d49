"""Both directions on one GPU, each on a stream of its own, a window of steps being one CUDA graph.

Everything that differs from step to step is a number in a fixed buffer, so that the same graph computes any text. There are two
graphs a direction: one of thousands of lanes, and one of a few for long lines, which would set the steps of all others.

The result of one group of requests is copied to pinned memory on a third stream while the next group is computed. On
out-of-memory the lanes and the rows of a group halve, and the group is computed again. How many rows a product has can show in
its last bits on a GPU, so the log says when that happened.

`device` may be the CPU: then the same code runs without streams and graphs, which is how it is tested.
"""

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from model.engine.cell import select_cell
from model.engine.device import TABLE_BYTES, Device, Direction, GateTable, Layout, Window, send
from model.engine.planning.grid import Limits
from model.engine.planning.text import BOS_ID
from model.engine.settings import EngineSettings
from model.engine.states import States, Wanted
from model.engine.word_vectors import WordVectors
from model.errors import DeviceLostError
from model.files.weights import BiLMWeights
from model.options import DIRECTIONS
from model.start_state import StartState

logger = logging.getLogger(__name__)

WINDOW = 16  # steps in a graph
LANES = 2048
LEAST_LANES = 16
# At least a job's call, of which a group is then all: its grid ends once. Cut in two, calls of held-out text ran at 73% of a
# full grid's rate.
GROUP_ROWS = 1 << 20
LEAST_GROUP_ROWS = 1 << 12
LONG_LANES = 64  # for sequences that 2,048 lanes would wait for; a step of 64 takes about an eighth of one of 2,048
TABLE_BLOCK = 1024  # words whose gates are computed in one product, always that many rows
WORDS_PER_BLOCK = 1024
TABLE_ROWS = 1 << 17


def long_tokens(lanes: int, group_rows: int) -> int:
    """A sequence of more tokens is computed with few lanes, apart: with all, it alone would take 0.6 of a full group's steps."""
    return group_rows * 3 // (lanes * 5)


# What libraries below PyTorch say when there is too little memory, and what is said when a device has been lost: after
# that every call to it fails, until the process is a new one.
_MEMORY_SAID = (
    "out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cudaerrormemoryallocation",
)
_LOST_SAID = (
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "uncorrectable ecc",
    "misaligned address",
    "launch timed out",
    "unknown error",
    "device is lost",
)


@contextlib.contextmanager
def matmul_precision(tf32: bool) -> Iterator[None]:
    """float32 products in tf32 or not, bfloat16 products adding up in float32; what was set before comes back."""
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    matmul.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.allow_bf16_reduced_precision_reduction = before[1]


class CudaDirection(Direction):
    """A `Direction` whose window is a graph on `stream`; plans and windows have ``layout.lanes`` or one of ``long_lanes``.

    All that a plan's windows need goes to the device in one copy, before the first of them is asked for: whatever other threads
    do, the device waits for the interpreter's lock a few times a window.
    """

    def __init__(
        self,
        weights: BiLMWeights,
        start: StartState,
        k: int,
        layout: Layout,
        ops: ModuleType,
        long_lanes: Sequence[int] = (),
    ) -> None:
        self._on_gpu = layout.device.type == "cuda"
        if self._on_gpu:
            self.stream = torch.cuda.Stream(layout.device)
        super().__init__(
            weights,
            start,
            k,
            replace(layout, table_rows=max(WINDOW * layout.lanes + 1, layout.table_rows)),
            ops,
        )
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
        self.stream.wait_stream(
            torch.cuda.current_stream(self._layout.device)
        )  # which filled weights and buffers
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
            missing = np.full(
                (2, -(-n // block) * block), [[BOS_ID], [self.table.n_slots]], np.int32
            )
            missing[:, :n] = new
            parts += [cells, missing]
        sent = send(
            np.concatenate([part.reshape(-1) for part in parts]), self._layout.device
        ).split([part.size for part in parts])
        for (words, _), cells_sent, missing_sent in zip(
            windows, sent[::2], sent[1::2], strict=True
        ):
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
    blocks: Sequence[
        Tensor
    ]  # int32 [2, block]: words and their slots, rows of the gate table to compute before


class CudaDevice(Device):
    word_capacity = 1 << 18  # its calls hold as many as a CPU keeps

    def __init__(
        self,
        weights: BiLMWeights,
        start: StartState,
        settings: EngineSettings,
        device: torch.device,
    ) -> None:
        if settings.quantised:
            raise ValueError("precision int8 is for CPUs; a GPU takes bfloat16, tf32 or float32")
        super().__init__(len(DIRECTIONS), 1)
        self.device = device
        self._weights, self._start, self._settings = weights, start, settings
        self._on_gpu = device.type == "cuda"
        self.hardware = (
            f"cuda {torch.cuda.get_device_name(device)}" if self._on_gpu else "cuda without a GPU"
        )
        self._copies = torch.cuda.Stream(device) if self._on_gpu else None
        self.directions: list[CudaDirection] = []
        self._in_flight: list[torch.cuda.Event] = []
        self._ops = select_cell(device, "auto" if self._on_gpu else "torch")
        self.cell = self._ops.NAME
        tensors = {
            name: t.to(device)
            for name, t in weights.tensors.items()
            if not name.startswith("lstm.")
        }
        self._vectors = WordVectors(
            tensors,
            weights.options,
            weights.lexicon,
            dtype=settings.dtype,
            packed=False,
            words_per_block=WORDS_PER_BLOCK,
        )
        self.restore()

    def restore(self) -> None:
        """Make both directions as at first if an error left none, of fewer lanes where memory does not do; OutOfMemoryError."""
        if self.directions:
            return
        self._lanes, self._group_rows = self._settings.lanes or LANES, GROUP_ROWS
        if not self._built() and not self.shrink():
            raise torch.OutOfMemoryError(
                f"too little GPU memory for the model and {self._lanes} lanes"
            )

    @property
    def computes_on(self) -> str:
        """The card and the lanes of the directions, of which memory may leave fewer than were asked for."""
        return f"{self.hardware}, {self._lanes} lanes"

    def _built(self) -> bool:
        try:
            with self._precision():
                self._build()
        except RuntimeError as error:
            if not self.out_of_memory(error):
                raise
            return False
        return True

    def _build(self) -> None:
        lanes, dtype = self._lanes, self._settings.dtype
        long_lanes = [LONG_LANES] if lanes > LONG_LANES else []
        long = long_tokens(lanes, self._group_rows)
        # A table has room for all cells of a window. A grid has one number of lanes to its end: a row's bytes can depend on how
        # many rows a library's product has.
        self.limits = Limits([lanes], WINDOW, WINDOW * lanes, long_lanes, long, self._group_rows)
        layout = Layout(
            dtype=dtype,
            device=self.device,
            lanes=lanes,
            window=WINDOW,
            table_rows=min(
                TABLE_BYTES // (4 * self._weights.options.dim * dtype.itemsize), TABLE_ROWS
            ),
            table_block=TABLE_BLOCK,
        )
        self.directions = [
            CudaDirection(self._weights, self._start, k, layout, self._ops, long_lanes)
            for k in (0, 1)
        ]

    def shrink(self) -> bool:
        self.delivered()()
        while True:
            self.directions = []
            gc.collect()  # an exception that came through futures holds itself, and with it the engines, in a circle
            if self._on_gpu:
                torch.cuda.synchronize(self.device)
                torch.cuda.empty_cache()
            if self._lanes // 2 < LEAST_LANES:
                return False
            self._lanes, self._group_rows = (
                self._lanes // 2,
                max(LEAST_GROUP_ROWS, self._group_rows // 2),
            )
            logger.warning(
                "out of GPU memory: going on with %d lanes, and %d rows at once",
                self._lanes,
                self._group_rows,
            )
            if self._built():
                return True

    def out_of_memory(self, error: RuntimeError) -> bool:
        """Whether PyTorch or a library below it ran out of memory. DeviceLostError if the device is of no use any more."""
        said = str(error).lower()
        if any(words in said for words in _LOST_SAID) and "cuda" in said:
            raise DeviceLostError(
                f"the GPU {self.device} was lost ({error}): this process can't use it any more, start it again"
            ) from error
        return isinstance(error, torch.OutOfMemoryError) or any(
            words in said for words in _MEMORY_SAID
        )

    def _precision(self) -> contextlib.AbstractContextManager[None]:
        """Around all work of both directions: PyTorch's switches are the process's, two workers must not set them."""
        return matmul_precision(self._settings.precision == "tf32")

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Each job on the stream of its direction, after what the calling thread has asked for so far."""
        if not self._on_gpu:
            super().run(jobs)
            return
        asked = torch.cuda.current_stream(self.device).record_event()

        def on_stream(job: Callable[[], None], stream: torch.cuda.Stream) -> None:
            with torch.cuda.stream(stream):
                stream.wait_event(asked)
                job()

        streams = [direction.stream for direction in self.directions]
        with self._precision():
            super().run([partial(on_stream, *pair) for pair in zip(jobs, streams, strict=True)])

    def vectors(self, words: Sequence[str]) -> Tensor:
        """Blocks of words, one after the other, in the precision asked for.

        The last call may still read the x of its words, which this one's are going to stand beside or instead of: the
        stream waits for it, the host does not.
        """
        if self._on_gpu:
            for direction in self.directions:
                torch.cuda.current_stream(self.device).wait_stream(direction.stream)
        x = torch.empty(len(words), self._vectors.width, device=self.device)
        with self._precision():
            for index, ids in self._vectors.blocks(words):
                x[send(index, self.device)] = self._vectors.compute(ids)
        return x

    def result(self, wanted: Wanted, rows: int, width: int) -> States:
        """Pinned memory, which PyTorch uses again for a call of the same size, once copies to it have been made."""
        if not self._on_gpu:
            return super().result(wanted, rows, width)
        return States.empty(
            wanted, rows, width, partial(torch.empty, dtype=torch.uint8, pin_memory=True)
        )

    def buffer(self, host: States) -> States:
        """Device memory of the same shape; two at most, the one that is copied and the one that is computed."""
        while len(self._in_flight) > 1:
            self._in_flight.pop(0).synchronize()
        memory = partial(torch.empty, dtype=torch.uint8, device=self.device)
        return States.empty(host.wanted, len(host), host.values.shape[2], memory)

    def deliver(self, buffer: States, host: States) -> None:
        """Copy on the third stream, after both directions. Runs without gaps: of others a copy is waited for."""
        copies = list(zip(host.runs(), buffer.runs(), strict=True))
        if self._copies is None:
            for to, run in copies:
                to.copy_(run)
            return
        self._copies.wait_stream(torch.cuda.current_stream(self.device))
        for direction in self.directions:
            self._copies.wait_stream(direction.stream)
        buffer.values.record_stream(
            self._copies
        )  # and with it the scale, which is in the same block
        with torch.cuda.stream(self._copies):
            for to, run in copies:
                to.copy_(run, non_blocking=True)
            self._in_flight.append(self._copies.record_event())

    def delivered(self) -> Callable[[], None]:
        """The copies asked for so far; what went wrong on the device shows here."""
        if self._copies is None:
            return lambda: None
        arrived = self._copies.record_event()

        def wait() -> None:
            try:
                arrived.synchronize()
            except RuntimeError as error:
                self.out_of_memory(error)  # DeviceLostError, if it is that
                raise

        return wait
