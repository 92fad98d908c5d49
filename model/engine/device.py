"""What the CPU and the CUDA engine have in common: running one direction's plan window by window.

May import torch, NumPy and the model's own modules. A window is a constant number of steps; only one window of states
exists at a time, so that memory does not grow with the length of a sentence or of the corpus.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.engine.planner import DirectionPlan, Moves
from model.engine.words import GateTable, WordBook

# Called after each window with its first cell and, layer by layer, its outputs [window × B, p] (skip included).
Emit = Callable[[int, list[Tensor]], None]

__all__ = ["DirectionEngine", "Emit", "StepMoves"]


@dataclass(frozen=True)
class StepMoves:
    """The loads or saves of a plan, cut into steps.

    Attributes:
        bounds: [T + 1] where each step's moves begin.
        lanes, slots: [n] in order of step.
    """

    bounds: npt.NDArray[np.int64]
    lanes: Tensor
    slots: Tensor

    @classmethod
    def of(cls, moves: Moves, steps: int) -> "StepMoves":
        """Cut a plan's moves."""
        bounds = np.searchsorted(moves.step, np.arange(steps + 1))
        return cls(bounds, torch.from_numpy(moves.lane), torch.from_numpy(moves.slot))

    def at(self, step: int) -> tuple[Tensor, Tensor] | None:
        """(lanes, slots) of one step, None where there are none."""
        low, high = self.bounds[step], self.bounds[step + 1]
        return None if low == high else (self.lanes[low:high], self.slots[low:high])


class DirectionEngine(ABC):
    """One direction of one biLM with its state: B lanes of h and c in each layer, and slots of saved states.

    Subclasses say how a step is computed; this class says in which order.
    """

    table: GateTable

    @torch.no_grad()
    def run(self, plan: DirectionPlan, book: WordBook, emit: Emit) -> None:
        """Run a plan from its first step to its last.

        Args:
            plan: from `planner.plan_direction`, its words being numbers of `book`.
            book: holds x of every word of the plan.
            emit: called for each window, in order, before the next one overwrites the outputs.
        """
        loads = StepMoves.of(plan.loads, plan.steps)
        saves = StepMoves.of(plan.saves, plan.steps)
        self.prepare(plan.lanes, plan.n_slots, book.x)
        window = self.window_steps(plan.lanes)
        for first in range(0, plan.steps, window):
            words = plan.words[first : first + window]  # [window, B]
            slots = self.table.slots(words, len(book), book.generation)
            emit(first * plan.lanes, self.run_window(first, slots, loads, saves))

    @abstractmethod
    def prepare(self, lanes: int, n_slots: int, x: Tensor) -> None:
        """Make room for so many lanes and slots, put the start state into slot 0; x [words, p] feeds the table."""

    @abstractmethod
    def window_steps(self, lanes: int) -> int:
        """Steps in a window; window × lanes is at most the table's number of slots."""

    @abstractmethod
    def run_window(self, first: int, slots: npt.NDArray[np.int64], loads: StepMoves, saves: StepMoves) -> list[Tensor]:
        """Compute steps first, first+1, … and return the outputs of each layer, [steps × B, p].

        Args:
            first: the window's first step, to find its loads and saves.
            slots: [steps, B] row of the gate table for each cell.
            loads, saves: of the whole plan.
        """
