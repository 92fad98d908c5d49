"""Both directions on a CPU: packed products, the cell in C where it was built."""

import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.engine import cell, cell_c
from model.engine.cell import CellOps
from model.engine.device import Device, Direction
from model.engine.int8 import int8_problem
from model.engine.onednn import largest_stable
from model.engine.settings import EngineSettings
from model.engine.word_vectors import WORDS_PER_BLOCK, WordVectors
from model.files.weights import BiLMWeights
from model.options import DIRECTIONS
from model.start_state import StartState
from model.threads import VECTOR, whole_chunk_threads

logger = logging.getLogger(__name__)

TABLE_BLOCK = 128  # words whose gates are computed in one product, always that many rows
WINDOW = 64  # steps, at most
FEWER_LANES = (2, 4, 8, 16, 32, 64, 128, 256)

__all__ = ["CpuDevice", "cpu_cell"]


def cpu_cell(asked: str = "auto") -> CellOps:
    """What computes the cell on a CPU: `cell_c` where it was built and gives the right numbers, else `cell`, with a log line.

    Raises:
        ValueError: "c" was asked for, and can't be had.
    """
    problem = None if asked == "torch" else cell_c.problem()
    if asked == "torch":
        return cell
    if problem is None:
        return cell_c.CellC()
    if asked == "c":
        raise ValueError(f"cell is 'c', which can't be had here: {problem}")
    logger.warning("the cell in C is off, computing it with plain torch (slower): %s", problem)
    return cell


class CpuDevice(Device):
    """Both directions on the CPU, each on a worker with half of the threads."""

    group_rows = None
    word_capacity = 1 << 16
    hardware = computes_on = "cpu"

    def __init__(self, weights: BiLMWeights, start: StartState, settings: EngineSettings) -> None:
        options = weights.options
        if settings.quantised and (problem := int8_problem()) is not None:
            raise ValueError(f"precision int8 can't be had here: {problem}; take bfloat16 or float32")
        ops = cpu_cell(settings.cell)
        self.cell = ops.NAME
        lanes = settings.lanes or (128 if options.dim > 2048 else 256)
        counts = sorted({lanes, *(n for n in FEWER_LANES if n < lanes)})
        if ops.NAME == "torch":  # it computes what is left of a whole vector with other instructions
            counts = [n for n in counts if n * options.dim % VECTOR == 0 or n == lanes]
        threads = settings.threads or torch.get_num_threads()
        sizes = [n * options.dim * k for n in counts for k in (1, 2, 4)] + [WORDS_PER_BLOCK * options.n_filters]
        super().__init__(min(2, threads), whole_chunk_threads(threads // 2, sizes))
        self.device = torch.device("cpu")
        self._vectors = WordVectors(
            weights.tensors,
            options,
            weights.lexicon,
            dtype=settings.dtype,
            short_words=settings.short_words,
            packed=settings.packed,
        )
        self.directions = [
            Direction(
                [weights.direction(direction, j) for j in range(1, options.n_layers + 1)],
                options,
                start.h[k],
                start.c[k],
                dtype=settings.dtype,
                device=self.device,
                lanes=lanes,
                window=WINDOW,
                table_rows=min((settings.table_mib << 20) // (4 * options.dim * settings.dtype.itemsize), 1 << 16),
                table_block=TABLE_BLOCK,
                ops=ops,
                packed=settings.packed,
                quantised=settings.quantised,
            )
            for k, direction in enumerate(DIRECTIONS)
        ]
        # Backward has the same shapes as forward.
        self.lane_choices = self.pool.submit(largest_stable, self.directions[0].step_linears, counts).result()
        self.narrower = self.lane_choices
        places = [(self.directions[0].table_linear, TABLE_BLOCK), *self._vectors.linears]
        self.pool.submit(lambda: [largest_stable([linear], [rows]) for linear, rows in places]).result()

    def restore(self) -> None:
        """All is made from the start."""

    def vectors(self, words: Sequence[str]) -> Tensor:
        """Blocks of words go to both workers."""
        x = torch.empty(len(words), self._vectors.width)

        def compute(block: tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]) -> None:
            index, ids = block
            x[torch.from_numpy(index)] = self._vectors.compute(ids)

        for _ in self.pool.map(compute, self._vectors.blocks(words)):
            pass
        return x

    def result(self, rows: int, states: int, width: int, dtype: torch.dtype) -> Tensor:
        """Ordinary memory."""
        return torch.empty(rows, states, width, dtype=dtype)

    def buffer(self, host: Tensor) -> Tensor:
        """The result itself."""
        return host

    def deliver(self, buffer: Tensor, host: Tensor) -> None:
        """It is there already."""

    def delivered(self) -> Callable[[], None]:
        """Nothing is under way."""
        return lambda: None

    def shrink(self) -> bool:
        """A CPU does not get here: it fails where memory is asked for."""
        return False
