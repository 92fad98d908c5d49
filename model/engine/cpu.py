"""Both directions on a CPU: packed products, the cell in C where it was built."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.engine.cell import select_cell
from model.engine.device import TABLE_BYTES, Device, Direction, Layout
from model.engine.planning.grid import Limits
from model.engine.products import int8_problem, largest_stable
from model.engine.settings import EngineSettings, Precision
from model.engine.word_vectors import WORDS_PER_BLOCK, WordVectors
from model.files.weights import BiLMWeights
from model.start_state import StartState
from model.threads import VECTOR, whole_chunk_threads

TABLE_ROWS = 1 << 16
TABLE_BLOCK = 128  # words whose gates are computed in one product, always that many rows
WINDOW = 64  # steps, at most
FEWER_LANES = (2, 4, 8, 16, 32, 64, 128, 256)


def step_lanes(dim: int, precision: Precision) -> int:
    """Lanes of a step of ``dim`` cells where none are asked for, as measured without AMX. They show in no byte."""
    return 256 if precision == "bfloat16" or dim <= 2048 else 128


class CpuDevice(Device):
    """Both directions on the CPU, each on a worker with half of the threads."""

    word_capacity = 1 << 16
    hardware = "cpu"
    device = torch.device("cpu")

    def __init__(self, weights: BiLMWeights, start: StartState, settings: EngineSettings) -> None:
        options = weights.options
        if settings.quantised and (problem := int8_problem()) is not None:
            raise ValueError(
                f"precision int8 can't be had here: {problem}; take bfloat16 or float32, or a processor with VNNI and no AMX"
            )
        ops = select_cell(self.device, settings.cell)
        self.cell = ops.NAME
        lanes = settings.lanes or step_lanes(options.dim, settings.precision)
        counts = sorted({lanes, *(n for n in FEWER_LANES if n < lanes)})
        if (
            ops.NAME == "torch"
        ):  # it computes what is left of a whole vector with other instructions
            counts = [n for n in counts if n * options.dim % VECTOR == 0 or n == lanes]
        threads = settings.threads or torch.get_num_threads()
        sizes = [n * options.dim * k for n in counts for k in (1, 2, 4)] + [
            WORDS_PER_BLOCK * options.n_filters
        ]
        super().__init__(min(2, threads), whole_chunk_threads(threads // 2, sizes))
        self._vectors = WordVectors(weights.tensors, options, weights.lexicon, dtype=settings.dtype)
        layout = Layout(
            dtype=settings.dtype,
            device=self.device,
            lanes=lanes,
            window=WINDOW,
            table_rows=min(TABLE_BYTES // (4 * options.dim * settings.dtype.itemsize), TABLE_ROWS),
            table_block=TABLE_BLOCK,
            packed=True,
            quantised=settings.quantised,
        )
        self.directions = [Direction(weights, start, k, layout, ops) for k in (0, 1)]
        # Backward has the same shapes as forward.
        stable = self.pool.submit(largest_stable, self.directions[0].step_linears, counts).result()
        self.limits = Limits(stable, WINDOW, self.directions[0].table.n_slots)

    def vectors(self, words: Sequence[str]) -> Tensor:
        x = torch.empty(len(words), self._vectors.width)

        def compute(block: tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]) -> None:
            index, ids = block
            x[torch.from_numpy(index)] = self._vectors.compute(ids)

        list(self.pool.map(compute, self._vectors.blocks(words)))
        return x
