"""The engine's face: sentences in, all 2L+1 states of the wanted rows out.

A sentence's states are a function of the model, the start state, the settings and the sentence alone: the same bytes whatever
else is in the call, in the word tables, or came before.

A call has two phases. `prepare` is the host's: numbers of words, sequences, plans. `run` is the device's. One thread may
prepare the next call while another runs the last; running is for one thread at a time.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
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
from model.engine.planning.sequences import WordArray
from model.engine.planning.text import SentenceRows, Text
from model.engine.settings import EngineSettings
from model.engine.states import Dtype, States, Wanted
from model.engine.word_vectors import WordVectorTable
from model.files.weights import BiLMWeights
from model.start_state import StartState

__all__ = ["Embedder", "EngineSettings", "EngineStats", "Prepared", "RunningCall", "SentenceRows", "Text"]


@dataclass
class EngineStats:
    """What an embedder has done so far."""

    rows: int = 0  # returned
    cells: int = 0  # lanes × steps of all grids
    cells_used: int = 0  # those that computed something
    seconds_lstm: float = 0.0  # from the words' vectors to the last state

    def add(self, other: "EngineStats") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class RunningCall:
    """A call that a device has been asked for; `result` waits for its states."""

    def __init__(self, states: States, stats: EngineStats) -> None:
        self.states = states  # as they come in
        self.stats = stats  # what this call counted; seconds are there once its states are
        self.seconds = 0.0  # from the last call's states, or from the beginning of this one, to its own states
        self.seconds_idle = 0.0  # from the last call's states to the beginning of this one
        self.computed_on: list[str] = []  # as `Device.computes_on` says of its groups: more than one after out of memory
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

        return CudaDevice(weights, start, settings, torch.device("cuda", torch.cuda.current_device()))
    return CpuDevice(weights, start, settings)


class Embedder:
    """Computes biLM states, every sentence from ``start``. WeightsError: the start state belongs to a model of another shape."""

    def __init__(self, weights: BiLMWeights, start: StartState, settings: EngineSettings | None = None) -> None:
        settings = settings or EngineSettings()
        start.check(weights.options)
        self.settings = settings
        self.options = weights.options
        self.stats = EngineStats()
        self._lock, self._preparing = threading.Lock(), threading.Lock()
        self._last_end = 0.0
        self._failed = False  # a call; what is remembered of words may be half computed
        self._device = _device(weights, start, settings)
        self._host = Host(lambda: self._device.limits, self._device.word_capacity, boundary_words(weights.lexicon))
        self._x = WordVectorTable(self._device.vectors, self.options.projection_dim, self._device.device)

    @property
    def hardware(self) -> str:
        """What computes: "cpu", or "cuda" and the card's name; last bits differ."""
        return self._device.hardware

    @property
    def cell(self) -> str:
        """What computes the cell: "c", "torch" or "triton"; last bits differ."""
        return self._device.cell

    def embed(
        self,
        text: Text | Sequence[SentenceRows],
        *,
        boundaries: bool = False,
        dtype: Literal["float16", "float32"] = "float16",
    ) -> npt.NDArray[np.floating]:
        """States of the wanted rows of sentences in any order, repeated or not: `prepare` and `run` in one.

        With ``boundaries`` rows are counted with BOS and EOS (see `SentenceRows`). Returns [Σ (stop - first), 2L+1, p] in order
        of request, then row; states in the order x, fwd1, bwd1, fwd2, … ValueError: a sentence does not have the rows asked for.
        """
        states = self.run(self.prepare(text, boundaries=boundaries), dtype=dtype).result()
        return np.ascontiguousarray(cast(npt.NDArray[np.floating], states))

    def prepare(self, text: Text | Sequence[SentenceRows], *, boundaries: bool = False) -> Prepared:
        """All that the host does for a call before the device can begin; any thread may ask. ValueError as of `embed`."""
        with self._preparing:
            return self._host.prepare(text if isinstance(text, Text) else Text.of(text), boundaries=boundaries)

    def run(self, prepared: Prepared, *, dtype: Dtype = "float16", states: Sequence[int] | None = None) -> RunningCall:
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
            return self._run(prepared, wanted)
        except BaseException:
            self._failed = True
            raise

    def _run(self, prepared: Prepared, wanted: Wanted) -> RunningCall:
        self._device.restore()
        began = time.perf_counter()
        x = self._words(prepared)  # [words, p]
        known = time.perf_counter()
        states = self._device.result(wanted, prepared.n_rows, self.options.projection_dim)
        stats = EngineStats(rows=prepared.n_rows)
        running = RunningCall(states, stats)
        for group in prepared.groups:
            self._run_group(prepared, group, x, running)
        wait = self._device.delivered()

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
                self.stats.add(stats)

        if self._device.limits.group_rows is None:
            finish()  # it is there already, and time until somebody asks is not the engine's
        else:
            running.wait = finish
        return running

    def _words(self, prepared: Prepared) -> Tensor:
        """x [words, p] of the call's words and those before them; again, beside fewer lanes, after out of memory."""
        while True:
            try:
                return self._x.upto(prepared.vocabulary, prepared.n_words)
            except RuntimeError as error:
                if not self._device.out_of_memory(error):
                    raise
                problem = str(error)  # the error holds the memory that it ran out of
            if not self._device.shrink():
                raise torch.OutOfMemoryError(problem)

    def _run_group(self, prepared: Prepared, group: Group, x: Tensor, running: RunningCall) -> None:
        """Fill the group's rows of the call's states; smaller groups of fewer lanes after out of memory."""
        # An attempt's frames hold the buffers that ran out of memory: they must be gone before smaller ones are made.
        problem = self._attempt(group, x, running)
        if problem is None:
            if self._device.computes_on not in running.computed_on:
                running.computed_on.append(self._device.computes_on)
            return
        if not self._device.shrink():
            raise torch.OutOfMemoryError(problem)
        for smaller in self._host.groups(prepared.text, group.low, group.high, group.first_row):
            self._run_group(prepared, smaller, x, running)

    def _attempt(self, group: Group, x: Tensor, running: RunningCall) -> str | None:
        """`_run_group` once; what was said if there was too little memory, otherwise None."""
        device = self._device
        host = running.states.rows(group.first_row, len(group.words))
        planned = group.planned
        possible = {*device.limits.lane_choices, *device.limits.long_lanes}
        if any(grid.plan.lanes not in possible for side in planned for grid in side):  # prepared before lanes were halved
            planned = [self._host.planned(side) for side in group.sides]
        try:
            buffer = device.buffer(host)
            run = partial(self._run_direction, x=x, words=group.words, states=buffer, running=running)
            device.run([partial(run, k, planned[k]) for k in (0, 1)])
            device.deliver(buffer, host)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if not device.out_of_memory(error):
                raise
            return str(error)
        return None

    def _run_direction(
        self, k: int, planned: list[PlannedDirection], x: Tensor, words: WordArray, states: States, running: RunningCall
    ) -> None:
        if k == 0:
            # Here and not in the calling thread, whose own threads would get in the way of the workers'.
            states.put(0, torch.arange(len(words), device=x.device), x, send(words, x.device))
        for grid in planned:
            self._run_grid(k, grid, x, states, running)

    def _run_grid(self, k: int, grid: PlannedDirection, x: Tensor, states: States, running: RunningCall) -> None:
        index, row, opening_row = (send(part, x.device) for part in (grid.index, grid.row, grid.opening_row))
        wanted: list[int] = np.diff(grid.bounds).tolist()
        rows, indexes = row.split(wanted), index.split(wanted)  # once, as each view takes the interpreter's lock

        def emit(window: int, outputs: list[Tensor]) -> None:
            for j, output in enumerate(outputs):  # [steps, B, p]
                states.put(1 + 2 * j + k, rows[window], output.flatten(0, 1), indexes[window])

        direction = self._device.directions[k]
        opening = direction.run(grid.plan, x, self._x.generation, emit)  # [L, p]
        for j in range(len(opening)):
            states.put(1 + 2 * j + k, opening_row, opening[j : j + 1], torch.zeros_like(opening_row))
        with self._lock:
            running.stats.cells += grid.plan.n_cells
            running.stats.cells_used += grid.plan.n_computed
