"""Where states are computed: what the embedder needs from a device, and the CPU's way. May import torch and model.

`model.engine.cuda` has the GPU's way. A backend owns the two direction engines and the pool that runs them at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import wait

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.engine.cpu import CpuDirection
from model.engine.device import DirectionEngine
from model.engine.onednn import largest_stable
from model.engine.settings import EngineSettings
from model.engine.word_vectors import WORDS_PER_BLOCK, WordVectors
from model.files.weights import BiLMWeights
from model.options import DIRECTIONS
from model.start_state import StartState
from model.threads import direction_pool, whole_chunk_threads

__all__ = ["Backend", "CpuBackend"]


class Backend(ABC):
    """A device with both directions of one model on it.

    Attributes:
        device: where tables and states are.
        directions: forward, backward.
        lane_choices: numbers of lanes that give the same bytes, of which a call may take any.
        group_rows: rows after which a call's requests are cut into groups, so that copying one group's result goes on
            while the next is computed; None = one group.
    """

    device: torch.device
    directions: Sequence[DirectionEngine]
    lane_choices: Sequence[int]
    group_rows: int | None

    def __init__(self, workers: int, threads: int) -> None:
        self.pool = direction_pool(workers, threads)

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run jobs at once, one a worker; all have ended when this returns or raises."""
        futures = [self.pool.submit(job) for job in jobs]
        wait(futures)
        for future in futures:
            future.result()

    @abstractmethod
    def vectors(self, words: list[str]) -> Tensor:
        """x [n, p] float32 of distinct words, on the device."""

    @abstractmethod
    def result(self, rows: int, states: int, width: int, dtype: torch.dtype) -> Tensor:
        """Memory on the host for a call's result [rows, states, width]."""

    @abstractmethod
    def buffer(self, host: Tensor) -> Tensor:
        """Where a group's states are put together: memory on the device for this part of the result."""

    @abstractmethod
    def deliver(self, buffer: Tensor, host: Tensor) -> None:
        """Begin to bring a finished buffer to its part of the result."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until everything that was delivered has arrived."""

    @abstractmethod
    def shrink(self) -> bool:
        """After out of memory: go on with half the lanes; False where there is nothing left to halve."""


class CpuBackend(Backend):
    """Both directions on the CPU, each on a worker with half of the threads."""

    group_rows = None

    def __init__(self, weights: BiLMWeights, start: StartState, settings: EngineSettings) -> None:
        options = weights.options
        lanes = settings.lanes or (128 if options.dim > 2048 else 256)
        counts = sorted({lanes, *(n for n in (16, 32, 64, 128, 256, 512) if n < lanes)})
        threads = settings.threads or torch.get_num_threads()
        sizes = [n * options.dim * k for n in counts for k in (1, 3, 4)] + [WORDS_PER_BLOCK * options.n_filters]
        super().__init__(min(2, threads), whole_chunk_threads(threads // 2, sizes))
        self.device = torch.device("cpu")
        self._vectors = WordVectors(
            weights.tensors,
            options,
            dtype=settings.dtype,
            short_words=settings.short_words,
            packed=settings.packed,
        )
        directions = [
            CpuDirection(
                [weights.direction(direction, j) for j in range(1, options.n_layers + 1)],
                options,
                start.h[k],
                start.c[k],
                dtype=settings.dtype,
                lanes=lanes,
                table_bytes=settings.table_mib << 20,
                packed=settings.packed,
            )
            for k, direction in enumerate(DIRECTIONS)
        ]
        self.directions = directions
        # Backward has the same shapes as forward.
        linears = [linear for layer in directions[0].layers for linear in layer.linears]
        self.lane_choices = self.pool.submit(largest_stable, linears, counts).result()

    def vectors(self, words: list[str]) -> Tensor:
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

    def finish(self) -> None:
        """Nothing is under way."""

    def shrink(self) -> bool:
        """A CPU does not get here: it fails where memory is asked for."""
        return False
