"""Both directions on one GPU, each on a stream of its own. May import torch and the model's own modules.

The result of one group of requests is copied to pinned memory on a third stream while the next group is computed. On
out-of-memory the lanes halve, the engines are made anew, and the group is computed again: the job goes on. In the
character CNN it is the words of a block that halve. How many rows a product has can show in its last bits on a GPU, so
the log says when that happened.

`device` may be the CPU: then the same code runs without streams and graphs, which is how it is tested.
"""

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from model.engine.backend import Backend
from model.engine.cuda_direction import CudaDirection, best_cell_ops
from model.engine.settings import EngineSettings
from model.engine.transfer import send
from model.engine.word_vectors import WordVectors
from model.files.weights import BiLMWeights
from model.options import DIRECTIONS
from model.start_state import StartState

logger = logging.getLogger(__name__)

LANES = 2048
LEAST_LANES = 16
GROUP_ROWS = 1 << 19  # 256 steps of 2,048 lanes: few lanes wait for the longest sentences, and the next group is soon planned
WORDS_PER_BLOCK = 1024

__all__ = ["CudaBackend", "matmul_precision"]


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


class CudaBackend(Backend):
    """See the module; arguments as for `Embedder`, and the device."""

    group_rows = GROUP_ROWS

    def __init__(self, weights: BiLMWeights, start: StartState, settings: EngineSettings, device: torch.device) -> None:
        super().__init__(len(DIRECTIONS), 1)
        self.device = device
        self._weights, self._start, self._settings = weights, start, settings
        self._on_gpu = device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if self._on_gpu else None
        self.directions: list[CudaDirection] = []
        self._in_flight: list[torch.cuda.Event] = []
        self._ops = best_cell_ops(device)
        tensors = {name: t.to(device) for name, t in weights.tensors.items() if not name.startswith("lstm.")}
        self._vectors = WordVectors(
            tensors,
            weights.options,
            dtype=settings.dtype,
            short_words=settings.short_words,
            packed=False,
            words_per_block=WORDS_PER_BLOCK,
        )
        self._lanes = settings.lanes or LANES
        if not self._built() and not self.shrink():
            raise torch.OutOfMemoryError(f"too little GPU memory for the model and {self._lanes} lanes")

    def _built(self) -> bool:
        """Make both directions; False if there is too little memory."""
        try:
            with self._precision():
                self._build()
        except torch.OutOfMemoryError:
            return False
        return True

    def _build(self) -> None:
        options, settings = self._weights.options, self._settings
        self.lane_choices = [self._lanes]
        self.directions = [
            CudaDirection(
                [self._weights.direction(direction, j) for j in range(1, options.n_layers + 1)],
                options,
                self._start.h[k],
                self._start.c[k],
                dtype=settings.dtype,
                device=self.device,
                lanes=self._lanes,
                table_bytes=settings.table_mib << 20,
                ops=self._ops,
            )
            for k, direction in enumerate(DIRECTIONS)
        ]

    def _halve(self) -> bool:
        self.directions = []
        gc.collect()  # an exception that came through futures holds itself, and with it the engines, in a circle
        if self._on_gpu:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        if self._lanes // 2 < LEAST_LANES:
            return False
        logger.warning("out of GPU memory with %d lanes; going on with %d", self._lanes, self._lanes // 2)
        self._lanes //= 2
        return True

    def shrink(self) -> bool:
        """See `Backend.shrink`."""
        self.finish()
        while self._halve():
            if self._built():
                return True
        return False

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

    def vectors(self, words: list[str]) -> Tensor:
        """Blocks of words, one after the other, in the precision asked for; smaller blocks after out of memory."""
        while True:
            try:
                x = torch.empty(len(words), self._vectors.width, device=self.device)
                with self._precision():
                    for index, ids in self._vectors.blocks(words):
                        x[send(index, self.device)] = self._vectors.compute(ids)
                return x
            except torch.OutOfMemoryError:
                if not self._vectors.halve_blocks():
                    raise
            if self._on_gpu:
                torch.cuda.empty_cache()
            logger.warning("out of GPU memory in the character CNN; going on with %d words", self._vectors.words_per_block)

    def result(self, rows: int, states: int, width: int, dtype: torch.dtype) -> Tensor:
        """Pinned memory, which PyTorch keeps for the next call of the same size."""
        return torch.empty(rows, states, width, dtype=dtype, pin_memory=self._on_gpu)

    def buffer(self, host: Tensor) -> Tensor:
        """Device memory of the same shape; two at most, the one that is copied and the one that is computed."""
        while len(self._in_flight) > 1:
            self._in_flight.pop(0).synchronize()
        return torch.empty_like(host, device=self.device)

    def deliver(self, buffer: Tensor, host: Tensor) -> None:
        """Copy on the third stream, after both directions."""
        if self._copies is None:
            host.copy_(buffer)
            return
        self._copies.wait_stream(torch.cuda.current_stream(self.device))
        for direction in self.directions:
            self._copies.wait_stream(direction.stream)
        buffer.record_stream(self._copies)
        with torch.cuda.stream(self._copies):
            host.copy_(buffer, non_blocking=True)
            self._in_flight.append(self._copies.record_event())

    def finish(self) -> None:
        """See `Backend.finish`."""
        if self._copies is not None:
            self._copies.synchronize()
        self._in_flight.clear()
