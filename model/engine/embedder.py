"""The engine's face: sentences in, all 2L+1 states of the wanted rows out.

A sentence's states are a function of the model, the start state, the settings and the sentence alone: the same bytes whatever
else is in the call, in the word tables, or came before.

A call has two phases. `prepare` is the host's: numbers of words, sequences, plans. `run` is the device's. One thread may
prepare the next call while another runs the last; running is for one thread at a time.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmo_store.format.numbers import Int8Rows
from model.characters import boundary_words
from model.engine.cpu import CpuDevice
from model.engine.device import Device, send
from model.engine.planning.grid import PlannedDirection
from model.engine.planning.host import Group, Host, Prepared
from model.engine.planning.text import Text
from model.engine.settings import EngineSettings
from model.engine.states import Dtype, States, Wanted
from model.engine.word_vectors import WordVectorTable
from model.files.weights import BiLMWeights
from model.start_state import StartState

__all__ = ["Embedder", "EngineSettings", "EngineStats", "Prepared", "RunningCall", "Text"]


@dataclass
class EngineStats:
    """What a call counted."""

    rows: int = 0  # returned
    cells: int = 0  # lanes × steps of all grids
    cells_used: int = 0  # those that computed something
    seconds_lstm: float = 0.0  # from the words' vectors to the last state


class RunningCall:
    """A call that a device has been asked for; `result` waits for its states."""

    def __init__(self, states: States, stats: EngineStats, computed_on: str) -> None:
        self.states = states  # as they come in
        self.stats = stats  # its seconds are there once the states are
        self.computed_on = computed_on  # see `Device.computes_on`
        self.seconds = (
            0.0  # from the last call's states, or from the beginning of this one, to its own states
        )
        self.seconds_idle = 0.0  # from the last call's states to the beginning of this one
        self.wait: Callable[[], None] | None = None  # called once, by `result`
        self._lock = threading.Lock()

    def result(self) -> npt.NDArray[Any] | Int8Rows:
        """The states wanted [rows, states, p], in order of request, then row; nothing else is put there while anyone has them.

        Of int8, `Int8Rows` with a scale of NaN where a number is not finite.
        """
        with self._lock:
            if self.wait is not None:
                self.wait()
                self.wait = None
        return self.states.result()


def _device(weights: BiLMWeights, start: StartState, settings: EngineSettings) -> Device:
    if settings.on_cuda:
        from model.engine.cuda import CudaDevice  # here: a CPU needs none of it

        return CudaDevice(
            weights, start, settings, torch.device("cuda", torch.cuda.current_device())
        )
    return CpuDevice(weights, start, settings)


class Embedder:
    """Computes biLM states, every sentence from ``start``. WeightsError: the start state belongs to a model of another shape."""

    def __init__(
        self, weights: BiLMWeights, start: StartState, settings: EngineSettings | None = None
    ) -> None:
        settings = settings or EngineSettings()
        start.check(weights.options)
        self.settings = settings
        self.options = weights.options
        self._lock, self._preparing = threading.Lock(), threading.Lock()
        self._last_end = 0.0
        self._failed = False  # a call; what is remembered of words may be half computed
        self._device = _device(weights, start, settings)
        self.hardware = (
            self._device.hardware
        )  # what computes: "cpu", or "cuda" and the card's name; last bits differ
        self.cell = (
            self._device.cell
        )  # what computes the cell: "c", "torch" or "triton"; last bits differ
        self._host = Host(self._device.word_capacity, boundary_words(weights.lexicon))
        self._x = WordVectorTable(
            self._device.vectors, self.options.projection_dim, self._device.device
        )

    def embed(
        self,
        text: Text | Sequence[Sequence[str]],
        *,
        boundaries: bool = False,
        dtype: Literal["float16", "float32"] = "float16",
    ) -> npt.NDArray[np.floating]:
        """States of all rows of sentences, or of the wanted ones of a `Text`: `prepare` and `run` in one.

        With ``boundaries`` BOS and EOS of sentences with tokens are rows too. Returns [rows, 2L+1, p] in order of sentence, then
        row; states in the order x, fwd1, bwd1, fwd2, … ValueError: a sentence does not have the rows asked for.
        """
        states = self.run(self.prepare(text, boundaries=boundaries), dtype=dtype).result()
        return np.ascontiguousarray(cast(npt.NDArray[np.floating], states))

    def prepare(
        self, text: Text | Sequence[Sequence[str]], *, boundaries: bool = False
    ) -> Prepared:
        """All that the host does for a call before the device can begin; any thread may ask. ValueError as of `embed`."""
        with self._preparing:
            given = text if isinstance(text, Text) else Text.of(text, boundaries)
            return self._host.prepare(given, self._device.limits, boundaries=boundaries)

    def run(
        self, prepared: Prepared, *, dtype: Dtype = "float16", states: Sequence[int] | None = None
    ) -> RunningCall:
        """Compute a prepared call; on a GPU this returns when all of it has been asked for.

        ``states``: numbers of those wanted among x, fwd1, bwd1, …, by default all; ``dtype``: see `Wanted`.

        Raises:
            ValueError: an unknown dtype.
            torch.OutOfMemoryError: too little memory, however few lanes and rows at once.
        """
        wanted = Wanted(tuple(range(self.options.n_states) if states is None else states), dtype)
        if self._failed:
            self._x.forget()
            self._failed = False
        try:
            return self._run_in_memory(prepared, wanted)
        except BaseException:
            self._failed = True
            raise

    def _run_in_memory(self, prepared: Prepared, wanted: Wanted) -> RunningCall:
        """Run a call, and again with fewer lanes and rows at once after out of memory."""
        self._device.restore()
        while True:
            if prepared.limits is not self._device.limits:
                prepared = self._host.planned_for(self._device.limits, prepared)
            try:
                return self._run(prepared, wanted)
            except RuntimeError as error:  # torch.OutOfMemoryError is one
                if not self._device.out_of_memory(error):
                    raise
                problem = str(error)  # the error's frames hold the memory that it ran out of
            if not self._device.shrink():
                raise torch.OutOfMemoryError(problem)

    def _run(self, prepared: Prepared, wanted: Wanted) -> RunningCall:
        device = self._device
        began = time.perf_counter()
        x = self._x.upto(prepared.vocabulary, prepared.n_words)  # [words, p]
        known = time.perf_counter()
        states = device.result(wanted, prepared.n_rows, self.options.projection_dim)
        stats = EngineStats(rows=prepared.n_rows)
        running = RunningCall(states, stats, device.computes_on)
        for group in prepared.groups:
            self._run_group(group, x, states, stats)
        wait = device.delivered()

        def finish() -> None:
            try:
                wait()
            except BaseException:
                self._failed = True
                raise
            ended = time.perf_counter()
            with self._lock:
                running.seconds = ended - max(began, self._last_end)
                running.seconds_idle = max(0.0, began - (self._last_end or began))
                stats.seconds_lstm = ended - max(known, self._last_end)
                self._last_end = ended

        if device.limits.group_rows is None:
            finish()  # it is there already, and time until somebody asks is not the engine's
        else:
            running.wait = finish
        return running

    def _run_group(self, group: Group, x: Tensor, states: States, stats: EngineStats) -> None:
        """Fill the group's rows of the call's states."""
        host = states.rows(group.first_row, len(group.words))
        buffer = self._device.buffer(host)

        def run(k: int) -> None:
            if k == 0:
                # Here and not in the calling thread, whose own threads would get in the way of the workers'.
                buffer.put(
                    0,
                    torch.arange(len(group.words), device=x.device),
                    x,
                    send(group.words, x.device),
                )
            for grid in group.planned[k]:
                self._run_grid(k, grid, x, buffer, stats)

        self._device.run([partial(run, k) for k in (0, 1)])
        self._device.deliver(buffer, host)

    def _run_grid(
        self, k: int, grid: PlannedDirection, x: Tensor, states: States, stats: EngineStats
    ) -> None:
        index, row, opening_row = (
            send(part, x.device) for part in (grid.index, grid.row, grid.opening_row)
        )
        wanted: list[int] = np.diff(grid.bounds).tolist()
        rows, indexes = (
            row.split(wanted),
            index.split(wanted),
        )  # once, as each view takes the interpreter's lock

        def emit(window: int, outputs: list[Tensor]) -> None:
            for j, output in enumerate(outputs):  # [steps, B, p]
                states.put(1 + 2 * j + k, rows[window], output.flatten(0, 1), indexes[window])

        direction = self._device.directions[k]
        opening = direction.run(grid.plan, x, self._x.generation, emit)  # [L, p]
        for j in range(len(opening)):
            states.put(
                1 + 2 * j + k, opening_row, opening[j : j + 1], torch.zeros_like(opening_row)
            )
        with self._lock:
            stats.cells += grid.plan.n_cells
            stats.cells_used += grid.plan.n_computed
