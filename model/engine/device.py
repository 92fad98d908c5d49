"""Where states are computed: one direction of the biLM, window by window, and what a device must offer around it.

`cpu` and `cuda` have the two devices. A window is a number of steps; only one window of states exists at a time, so that memory
does not grow with the length of a sentence or of the corpus. What differs from step to step (which word, which lane begins anew)
is a number in an array, so that the same window computes any text.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.bilm import FORGET_BIAS
from model.engine.cell import CellBuffers, OutputBuffers, load_h
from model.engine.planning.grid import DirectionPlan, Limits
from model.engine.planning.sequences import IntArray
from model.engine.planning.text import BOS_ID, EOS_ID
from model.engine.products import Int8Linear, Linear, PackedLinear
from model.engine.states import States, Wanted
from model.files.weights import BiLMWeights
from model.options import DIRECTIONS
from model.start_state import StartState
from model.threads import direction_pool

TABLE_BYTES = 384 << 20  # of each direction's table of first-layer gates
_EMPTY = -1

# Called after each window with its number and, layer by layer, its outputs [steps, B, p] (skip included).
Emit = Callable[[int, list[Tensor]], None]
# Words int32, and whether the lane begins a sequence, bool: [steps, B] each.
Window = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]


def send(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor on the device, without waiting for a GPU; on the CPU it shares the array's memory.

    A blocking copy to a GPU waits for all that its stream has been asked for, and the host could not prepare the next
    window meanwhile. PyTorch keeps pinned memory until the copies out of it have been made, so nothing has to be held.
    """
    host = torch.from_numpy(values)
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


@dataclass(frozen=True)
class Layout:
    """How a direction is laid out."""

    dtype: torch.dtype  # float32 or bfloat16, of products and h
    device: torch.device
    lanes: int  # B, of a plan at most
    window: int  # steps in a window, at most
    table_rows: int  # slots of the gate table; it gets at least those that one step of lanes needs
    table_block: int  # words whose gates are computed in one product, always that many rows
    packed: bool = False  # see `PackedLinear`
    quantised: bool = False  # multiply in 8 bits; dtype is then bfloat16, the device a CPU


class GateTable:
    """Which slots hold W_ih · x + b of which words, for one direction's first layer; the longest unused word makes room.

    It changes no byte of a result: a row is computed the same way whenever it is needed. There are at least as many slots as one
    window of steps can hold distinct words.
    """

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._generation = 0
        self._word_of = np.full(n_slots, _EMPTY, np.int64)  # slot → word
        self._slot_of = np.full(0, _EMPTY, np.int64)  # word → slot
        self._asked = np.zeros(0, bool)  # word → whether the present window needs it
        # slot → clock of its last use; free slots are taken from the first on, so that memory is touched as needed
        self._used = np.arange(-n_slots, 0)
        self._clock = 0

    def slots(
        self, words: npt.NDArray[np.int32], n_words: int, generation: int
    ) -> tuple[IntArray, IntArray]:
        """Slots of one window's words at once, shape as given, and words and slots [2, n] whose rows are to be computed.

        ``n_words`` and ``generation`` are those of the word book that gave the numbers. Where rows are not computed, because of
        an error, the generation must end.
        """
        if generation != self._generation:
            self._word_of.fill(_EMPTY)
            self._slot_of.fill(_EMPTY)
            self._generation = generation
        if n_words > len(self._slot_of):
            grown = np.full(max(n_words, 2 * len(self._slot_of)), _EMPTY, np.int64)
            grown[: len(self._slot_of)] = self._slot_of
            self._slot_of = grown
            self._asked = np.zeros(len(grown), bool)
        self._clock += 1
        self._asked[words] = True  # sorting the window's words would take longer
        needed = np.flatnonzero(self._asked)
        self._asked[needed] = False
        if len(needed) > self.n_slots:
            raise ValueError(
                f"{len(needed)} distinct words in a window, the table has {self.n_slots} slots"
            )
        held = self._slot_of[needed]
        self._used[held[held != _EMPTY]] = self._clock
        missing = needed[held == _EMPTY]
        slots = missing[:0]
        if len(missing):
            # Nothing that this window needs is among the longest unused: those have just been marked.
            slots = np.sort(np.argpartition(self._used, len(missing) - 1)[: len(missing)])
            old = self._word_of[slots]
            self._slot_of[old[old != _EMPTY]] = _EMPTY
            self._word_of[slots] = missing
            self._slot_of[missing] = slots
            self._used[slots] = self._clock
        return self._slot_of[words], np.stack([missing, slots])


class Direction:
    """One direction of one biLM: its products, B lanes of h and c in each layer, and a gate table.

    The first layer's input half of the gates comes from the table of words, the rest of a step is two products a layer
    and the three functions of `cell`, computed by ``ops``. Cells and skip sums are float32 in any precision. ``k`` is the
    direction: 0 forward, 1 backward.
    """

    def __init__(
        self, weights: BiLMWeights, start: StartState, k: int, layout: Layout, ops: ModuleType
    ) -> None:
        options, dtype, device, lanes = weights.options, layout.dtype, layout.device, layout.lanes
        d, p, n_layers = options.dim, options.projection_dim, options.n_layers
        self._options, self._layout, self._ops = options, layout, ops
        self._boundary = (BOS_ID, EOS_ID)[k]
        self.stop = False  # set from another thread: the run under way ends with its present window

        def linear(weight: Tensor, bias: Tensor | None, rows: int) -> PackedLinear:
            return PackedLinear(
                weight.to(device),
                None if bias is None else bias.to(device),
                dtype,
                rows,
                layout.packed,
            )

        def recurrent(weight: Tensor, bias: Tensor | None) -> Linear:
            return (
                Int8Linear(weight, bias, lanes) if layout.quantised else linear(weight, bias, lanes)
            )

        self._gates: list[Linear] = []
        self._projections: list[Linear] = []  # d → p
        for j in range(n_layers):
            tensors = weights.direction(DIRECTIONS[k], j + 1)
            bias = tensors["bias"].clone()  # [4d]
            bias[d : 2 * d] += FORGET_BIAS
            weight_ih, weight_hh = tensors["weight_ih"], tensors["weight_hh"]
            if j == 0:
                self.table_linear = linear(weight_ih, bias, layout.table_block)  # p → 4d, of words
                self._gates.append(recurrent(weight_hh, None))  # p → 4d
            else:
                self._gates.append(
                    recurrent(torch.cat([weight_ih, weight_hh], dim=1), bias)
                )  # 2p → 4d
            self._projections.append(recurrent(tensors["weight_proj"], None))

        n_table = max(lanes, layout.table_block, layout.table_rows)
        self._rows = torch.empty(n_table, 4 * d, dtype=dtype, device=device)  # [slots, 4d]
        self.table = GateTable(n_table)
        self._x = torch.empty(0, p, device=device)

        self._start = start.h[k].to(device, dtype), start.c[k].to(device)  # [L, p], [L, d]
        self._openings: dict[
            int, tuple[Tensor, Tensor, Tensor]
        ] = {}  # by lanes: h [L, p], c [L, d], output [L, p]
        # What a lane begins from: the start state while the opening is computed, the state after the boundary otherwise.
        self._begin_h = torch.zeros(n_layers, p, dtype=dtype, device=device)  # [L, p]
        self._begin_c = torch.zeros(n_layers, d, device=device)  # [L, d]
        # h of layer j stands where layer j reads it: the first layer's alone, the others' behind their input.
        self._h0 = torch.zeros(lanes, p, dtype=dtype, device=device)  # [B, p]
        self._xh = [
            torch.zeros(lanes, 2 * p, dtype=dtype, device=device) for _ in range(n_layers - 1)
        ]  # [B, 2p] each
        self._c = [torch.zeros(lanes, d, device=device) for _ in range(n_layers)]  # [B, d] each
        self._hidden = torch.empty(lanes, d, dtype=dtype, device=device)  # [B, d]
        self._out = [
            torch.empty(layout.window * lanes * p, device=device) for _ in range(n_layers)
        ]  # [window, B, p] each, flat

    @property
    def step_linears(self) -> list[Linear]:
        """The products whose rows are lanes."""
        return [*self._gates, *self._projections]

    @torch.no_grad()
    def run(self, plan: DirectionPlan, x: Tensor, generation: int, emit: Emit) -> Tensor:
        """Run a plan from its first step to its last, and return each layer's output after the boundary, [L, p].

        ``plan``: within this device's limits; ``x``: [words, p] float32, of every word of the plan by its number; ``generation``
        counts the emptyings of the word book: numbers of another one mean other words; ``emit`` is called for each window, in
        order, before the next one overwrites the outputs. StoppedError: `stop` was set before the last window.
        """
        self._x = x
        opening = self._open(plan.lanes, generation)
        parts = [
            (slice(first, first + steps), slice(lanes)) for first, steps, lanes in plan.windows
        ]
        ready = self._ready([(plan.words[part], plan.begins[part]) for part in parts], generation)
        for window in range(len(parts)):
            if self.stop:
                raise StoppedError("the call was interrupted")
            emit(window, self.run_window(next(ready)))
        return opening

    def _open(self, lanes: int, generation: int) -> Tensor:
        """Have lanes begin after the boundary; its outputs [L, p]. Computed once for each number of lanes."""
        if lanes not in self._openings:
            self._begin_h.copy_(self._start[0])
            self._begin_c.copy_(self._start[1])
            window = np.full((1, lanes), self._boundary, np.int32), np.ones((1, lanes), bool)
            outputs = self.run_window(next(self._ready([window], generation)))  # [1, B, p] a layer
            h = [
                self._h0[0],
                *(xh[0, self._options.projection_dim :] for xh in self._xh),
            ]  # [p] a layer
            values = h, [c[0] for c in self._c], [output[0, 0] for output in outputs]
            self._openings[lanes] = (
                torch.stack(values[0]),
                torch.stack(values[1]),
                torch.stack(values[2]),
            )
        begin_h, begin_c, opening = self._openings[lanes]
        self._begin_h.copy_(begin_h)
        self._begin_c.copy_(begin_c)
        return opening

    def _ready(self, windows: Sequence[Window], generation: int) -> Iterator[Any]:
        """What `run_window` takes of each: here the rows of the gate table [steps, B], and where lanes begin."""
        for words, begins in windows:
            rows, missing = self.table.slots(words, len(self._x), generation)
            self._compute_rows(*missing)
            yield rows, begins

    def run_window(self, window: Any) -> list[Tensor]:
        """Compute the next steps, as `_ready` gives them; the outputs of each layer, [steps, B, p]."""
        rows, begins = window
        steps, lanes = rows.shape
        row, begin = (
            torch.from_numpy(rows),
            torch.from_numpy(begins.astype(np.int64)),
        )  # [steps, B] each
        outputs = [
            out[: steps * lanes * self._options.projection_dim].view(steps, lanes, -1)
            for out in self._out
        ]
        for t in range(steps):
            self._step(
                lanes,
                row[t],
                begin[t] if begins[t].any() else None,
                [output[t] for output in outputs],
            )
        return outputs

    def _step(self, lanes: int, row: Tensor, begins: Tensor | None, outputs: list[Tensor]) -> None:
        """One step of all layers in the first lanes; row, begins [B], outputs [B, p] a layer."""
        p, options, ops = self._options.projection_dim, self._options, self._ops
        h0, hidden = self._h0[:lanes], self._hidden[:lanes]  # [B, p], [B, d]
        xh = [both[:lanes] for both in self._xh]  # [B, 2p] each
        for j, products in enumerate(self._gates):
            h = h0 if j == 0 else xh[j - 1][:, p:]  # [B, p]
            load_h(h, self._begin_h[j], begins)
            gates, table = (
                products(h0 if j == 0 else xh[j - 1]),
                self._rows if j == 0 else None,
            )  # [B, 4d], [slots, 4d]
            c, begin_c = self._c[j][:lanes], self._begin_c[j]  # [B, d], [d]
            ops.cell(CellBuffers(gates, table, row, c, begins, begin_c, hidden, options.cell_clip))
            projected = self._projections[j](hidden)  # [B, p]
            skip = xh[j - 1][:, :p] if options.use_skip_connections and j > 0 else None
            following = xh[j][:, :p] if j + 1 < len(self._gates) else None
            ops.finish(OutputBuffers(projected, h, skip, outputs[j], following, options.proj_clip))

    def _compute_rows(self, words: IntArray, slots: IntArray) -> None:
        """Gate rows of these words into these slots, a block at a time."""
        n, device = self._layout.table_block, self._layout.device
        block = torch.zeros(
            n, self._options.projection_dim, dtype=self._layout.dtype, device=device
        )
        for low in range(0, len(words), n):
            part = send(words[low : low + n], device)
            block[: len(part)] = self._x[part].to(block.dtype)
            rows = self.table_linear(block)  # [block, 4d]
            self._rows[send(slots[low : low + n], device)] = rows[: len(part)]


class StoppedError(RuntimeError):
    """A direction ended early because its call was interrupted; whoever interrupted it raises an error of its own."""


class Device:
    """A device with both directions of one model on it, and the pool that runs them at once; results in ordinary memory."""

    device: torch.device  # where tables and states are
    directions: Sequence[Direction]  # forward, backward
    limits: Limits  # of plans
    word_capacity: int  # words of which numbers and x are kept from call to call (2 KB a word in the published model)
    cell: str  # what computes the cell: "c", "torch" or "triton"
    hardware: str  # "cpu", or "cuda" and the card's name; last bits differ

    def __init__(self, workers: int, threads: int) -> None:
        self.pool = direction_pool(workers, threads)
        self._jobs: list[Future[None]] = []

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run jobs of the directions at once, one a worker.

        All have ended when this returns or raises, Ctrl-C included: they end with the window that they are at. A second Ctrl-C
        does not wait for that; the next run does.
        """
        wait(self._jobs)
        for direction in self.directions:
            direction.stop = False
        self._jobs = []
        try:
            for job in jobs:
                self._jobs.append(self.pool.submit(job))
            wait(self._jobs)
        except BaseException:
            for direction in self.directions:
                direction.stop = True
            for future in self._jobs:
                future.cancel()
            wait(self._jobs)
            raise
        ended, self._jobs = (
            self._jobs,
            [],
        )  # an error holds its frames, and with them the buffers of a GPU
        for future in ended:
            future.result()

    @abstractmethod
    def vectors(self, words: Sequence[str]) -> Tensor:
        """x [n, p] float32 of distinct words, on the device."""

    @property
    def computes_on(self) -> str:
        """The hardware, and where they show in the last bits the lanes at present."""
        return self.hardware

    def result(self, wanted: Wanted, rows: int, width: int) -> States:
        """Memory on the host for a call's states."""
        return States.empty(wanted, rows, width, partial(torch.empty, dtype=torch.uint8))

    def buffer(self, host: States) -> States:
        """Where a group's states are put together: memory on the device for this part of the result, or that part itself."""
        return host

    def deliver(self, buffer: States, host: States) -> None:
        """Begin to bring a finished buffer to its part of the result."""

    def delivered(self) -> Callable[[], None]:
        """A function that waits until everything delivered so far has arrived."""
        return lambda: None

    def restore(self) -> None:
        """Make what a call that failed left unmade; called before each call."""

    def out_of_memory(self, error: RuntimeError) -> bool:
        """Whether the error says that there was too little memory, and the device is as good as before."""
        return isinstance(error, torch.OutOfMemoryError)

    def shrink(self) -> bool:
        """After out of memory: go on with half the lanes and rows at once; False where nothing is left to halve."""
        return False
