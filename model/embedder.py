"""The engine's face: sentences in, all 2L+1 states of the wanted rows out. May import torch and the model's modules.

A sentence's states are a function of the model, the start state, the settings and the sentence alone: the same bytes
whatever else is in the call, in the word tables, or came before. Methods are not for several threads at once.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.engine import DirectionEngine
from model.engine_cpu import CpuDirection
from model.engine_linear import largest_stable
from model.planner import DirectionPlan, choose_lanes, plan_direction
from model.start_state import StartState
from model.threads import direction_pool, whole_chunk_threads
from model.weights import BiLMWeights
from model.word_table import BOS_ID, EOS_ID, WordBook
from model.word_vectors import WordVectors

Precision = Literal["float32", "bfloat16", "tf32"]
_DIRECTIONS: tuple[Literal["fwd", "bwd"], ...] = ("fwd", "bwd")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "tf32": torch.float32}

__all__ = ["Embedder", "EngineSettings", "EngineStats", "SentenceRows"]


@dataclass(frozen=True)
class EngineSettings:
    """How to compute; everything here but `precision` leaves the numbers as they are (on one machine).

    Attributes:
        precision: of products: "float32", "bfloat16", or "tf32" (CUDA only; on a CPU it is float32). Cells are float32.
        device: "cpu", "cuda", or "auto" = cuda where there is one.
        lanes: rows of a step, None = 128 on a CPU, 2048 on a GPU.
        threads: CPU threads for both directions together, None = PyTorch's number.
        table_mib: MiB for each direction's table of first-layer gates.
        word_capacity: words whose x is kept from call to call (2 KB a word in the published model).
        share: "all" computes repeated sentences and shared beginnings once, "sentences" repeated sentences, "none"
            computes every token of the call.
        short_words: compute short words narrow in the character CNN.
        packed: use oneDNN's packed products where they work.
    """

    precision: Precision = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lanes: int | None = None
    threads: int | None = None
    table_mib: int = 256
    word_capacity: int = 65_536
    share: Literal["all", "sentences", "none"] = "all"
    short_words: bool = True
    packed: bool = True

    def __post_init__(self) -> None:
        if self.precision not in _DTYPES:
            raise ValueError(f"precision is {self.precision!r}; known are {', '.join(_DTYPES)}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}; known are auto, cpu, cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is 'cuda', but PyTorch finds no CUDA device here; use 'auto' or 'cpu'")
        for name in ("lanes", "threads", "table_mib", "word_capacity"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")

    @property
    def on_cuda(self) -> bool:
        """Whether this computes on a GPU."""
        return self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())


@dataclass(frozen=True)
class SentenceRows:
    """A sentence and which of its rows are wanted.

    Attributes:
        tokens: the whole sentence, without boundaries.
        first, stop: rows [first, stop). Rows are tokens 0 to n-1; with boundaries row 0 is BOS, 1 to n are the tokens
            and n+1 is EOS. A sentence of zero tokens has no rows, with or without boundaries.
    """

    tokens: Sequence[str]
    first: int
    stop: int


@dataclass
class EngineStats:
    """What an embedder has done so far.

    Attributes:
        rows: rows returned. words_cut: how many of them are of words longer than the model reads.
        words_looked_up: rows and boundaries that asked for an x. words_computed: words that went through the CNN.
        table_wanted: cells that asked the gate tables. table_computed: rows that had to be computed for them.
        cells: lanes × steps of all grids. cells_used: those that computed something.
        cells_asked: tokens, boundaries included, that a grid without sharing would have had.
        seconds_words, seconds_lstm, seconds: character CNN; both directions; all.
    """

    rows: int = 0
    words_cut: int = 0
    words_looked_up: int = 0
    words_computed: int = 0
    table_wanted: int = 0
    table_computed: int = 0
    cells: int = 0
    cells_used: int = 0
    cells_asked: int = 0
    seconds_words: float = 0.0
    seconds_lstm: float = 0.0
    seconds: float = 0.0

    @property
    def lane_fill(self) -> float:
        """Share of cells that computed something."""
        return self.cells_used / max(1, self.cells)

    @property
    def table_hits(self) -> float:
        """Share of cells whose first-layer gates were in the table already."""
        return 1 - self.table_computed / max(1, self.table_wanted)

    @property
    def word_hits(self) -> float:
        """Share of rows whose x was known already."""
        return 1 - self.words_computed / max(1, self.words_looked_up)


@dataclass
class _Wanted:
    """One direction's distinct sequences, and which of their tokens go to which rows of the result."""

    sequences: dict[tuple[int, ...], int] = field(default_factory=dict)
    listed: list[tuple[int, ...]] = field(default_factory=list)
    picks: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def add(self, sequence: tuple[int, ...], once: bool, first: int, row: int, count: int, row_step: int) -> None:
        """Tokens first, first+1, … (count of them) of the sequence go to rows row, row+row_step, …"""
        index = self.sequences.get(sequence) if once else None
        if index is None:
            index = len(self.listed)
            self.sequences[sequence] = index
            self.listed.append(sequence)
        self.picks.append((index, first, row, count, row_step))

    def cells_and_rows(self, plan: DirectionPlan) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Cell and row of every wanted token, in order of cell."""
        index, first, row, count, row_step = np.array(self.picks, np.int64).reshape(-1, 5).T
        ends = np.cumsum(count)
        within = np.arange(int(count.sum())) - np.repeat(ends - count, count)
        cells = plan.cells[np.repeat(plan.offsets[index] + first, count) + within]
        rows = np.repeat(row, count) + within * np.repeat(row_step, count)
        order = np.argsort(cells, kind="stable")
        return cells[order], rows[order]


class Embedder:
    """Computes biLM states.

    Args:
        weights: the model.
        start: what every sentence starts from.
        settings: how to compute.

    Raises:
        WeightsError: the start state belongs to a model of another shape.
    """

    def __init__(self, weights: BiLMWeights, start: StartState, settings: EngineSettings | None = None) -> None:
        settings = settings or EngineSettings()
        start.check(weights.options)
        self.settings = settings
        self.options = weights.options
        self.stats = EngineStats()
        self._lock = threading.Lock()
        self._build_cpu(weights, start)

    def _build_cpu(self, weights: BiLMWeights, start: StartState) -> None:
        options, settings = self.options, self.settings
        lanes = settings.lanes or 128
        counts = sorted({lanes, *(n for n in (16, 32, 64, 128, 256, 512) if n < lanes)})
        threads = settings.threads or torch.get_num_threads()
        sizes = [n * options.dim * k for n in counts for k in (1, 3, 4)] + [128 * options.n_filters]
        self._pool = direction_pool(min(2, threads), whole_chunk_threads(threads // 2, sizes))
        dtype = _DTYPES[settings.precision]
        vectors = WordVectors(weights.tensors, options, dtype=dtype, short_words=settings.short_words, packed=settings.packed)
        self._directions: list[DirectionEngine] = []
        linears = []
        for k, direction in enumerate(_DIRECTIONS):
            engine = CpuDirection(
                [weights.direction(direction, j) for j in range(1, options.n_layers + 1)],
                options,
                start.h[k],
                start.c[k],
                dtype=dtype,
                lanes=lanes,
                table_bytes=settings.table_mib << 20,
                packed=settings.packed,
            )
            linears += [linear for layer in engine.layers for linear in layer.linears]
            self._directions.append(engine)
        self._lane_choices = self._pool.submit(largest_stable, linears[: len(linears) // 2], counts).result()
        self._book = WordBook(
            lambda words: self._vectors_on_pool(vectors, words),
            options.projection_dim,
            settings.word_capacity,
            options.max_characters_per_token,
        )

    def _vectors_on_pool(self, vectors: WordVectors, words: list[str]) -> Tensor:
        """x [n, p] of words, blocks of them on both workers at once."""
        x = torch.empty(len(words), self.options.projection_dim)
        blocks = vectors.blocks(words)
        for (index, _), rows in zip(blocks, self._pool.map(lambda block: vectors.compute(block[1]), blocks), strict=True):
            x[torch.from_numpy(index)] = rows
        return x

    def embed(
        self,
        requests: Sequence[SentenceRows],
        *,
        boundaries: bool = False,
        dtype: Literal["float16", "float32"] = "float16",
    ) -> npt.NDArray[np.floating]:
        """States of the wanted rows.

        Args:
            requests: sentences in any order, repeated or not.
            boundaries: rows are counted with BOS and EOS (see `SentenceRows`).
            dtype: of the result.

        Returns:
            [Σ (stop - first), 2L+1, p] in order of request, then row; states in the order x, fwd1, bwd1, fwd2, …

        Raises:
            ValueError: a request asks for rows that its sentence does not have.
        """
        if dtype not in ("float16", "float32"):
            raise ValueError(f"dtype is {dtype!r}; known are float16 and float32")
        started = time.perf_counter()
        for i, request in enumerate(requests):
            n_rows = len(request.tokens) + (2 if boundaries and request.tokens else 0)
            if not 0 <= request.first <= request.stop <= n_rows:
                raise ValueError(f"request {i} asks for rows {request.first} to {request.stop} of a sentence that has {n_rows}")
        ids = self._learn(word for request in requests for word in request.tokens)
        forward, backward = _Wanted(), _Wanted()
        words: list[int] = []  # word of each row
        once, offset = self.settings.share != "none", 0 if boundaries else 1
        for request in requests:
            count = request.stop - request.first
            if not count:
                continue
            sentence = (BOS_ID, *[ids[word] for word in request.tokens], EOS_ID)
            first, stop = request.first + offset, request.stop + offset
            # Forward nothing after the last wanted row matters, backward nothing before the first.
            row = len(words)
            forward.add(sentence[:stop], once, first, row, count, 1)
            backward.add(sentence[first:][::-1], once, len(sentence) - stop, row + count - 1, count, -1)
            words += sentence[first:stop]
        states = torch.empty(
            len(words), self.options.n_states, self.options.projection_dim, dtype=getattr(torch, dtype)
        )  # [rows, 2L+1, p]
        if words:
            states[:, 0] = self._book.x[torch.tensor(words)].to(states.dtype)
            self.stats.words_cut += int(self._book.cut[words].sum())
            share = self.settings.share == "all"
            self._run([forward, backward], states, share)
        self.stats.rows += len(words)
        self.stats.words_looked_up += len(words)
        self.stats.seconds += time.perf_counter() - started
        return states.numpy()

    def embed_carry(self, lanes: Sequence[Sequence[Sequence[str]]]) -> list[list[npt.NDArray[np.float32]]]:
        """States with (h, c) carried from sentence to sentence along each lane, as the goldens were made.

        Backward, each sentence runs from its end to its start, and the state left at its start goes on to the end of
        the next sentence.

        Args:
            lanes: lists of sentences; the first of each starts from the start state.

        Returns:
            for each lane and sentence float32 [n, 2L+1, p], without boundary rows.
        """
        ids = self._learn(word for lane in lanes for sentence in lane for word in sentence)
        forward, backward = _Wanted(), _Wanted()
        words: list[int] = []
        bounds: list[list[tuple[int, int]]] = []
        for lane in lanes:
            bounds.append([])
            full = [(BOS_ID, *[ids[word] for word in sentence], EOS_ID) for sentence in lane]
            read = tuple(word for sentence in full for word in sentence)
            read_back = tuple(word for sentence in full for word in reversed(sentence))
            at = 0
            for sentence in full:
                n, row = len(sentence) - 2, len(words)
                bounds[-1].append((row, row + n))
                if n:
                    # Within a sentence the two directions meet at the same place counted from either end.
                    forward.add(read, True, at + 1, row, n, 1)
                    backward.add(read_back, True, at + 1, row + n - 1, n, -1)
                words += sentence[1:-1]
                at += len(sentence)
        states = torch.empty(len(words), self.options.n_states, self.options.projection_dim)
        if words:
            states[:, 0] = self._book.x[torch.tensor(words)]
            self._run([forward, backward], states, share=False)
        array = states.numpy()
        return [[array[low:high] for low, high in lane] for lane in bounds]

    def _learn(self, words: Iterable[str]) -> dict[str, int]:
        started = time.perf_counter()
        ids = self._book.learn(words)
        self.stats.words_computed = self._book.n_computed
        self.stats.seconds_words += time.perf_counter() - started
        return ids

    def _run(self, wanted: list[_Wanted], states: Tensor, share: bool) -> None:
        """Fill states[:, 1:] by running both directions, each on its own worker."""
        started = time.perf_counter()
        futures = [self._pool.submit(self._run_direction, k, wanted[k], states, share) for k in range(len(self._directions))]
        for future in futures:
            future.result()
        self.stats.seconds_lstm += time.perf_counter() - started
        tables = [engine.table for engine in self._directions]
        self.stats.table_wanted = sum(table.n_wanted for table in tables)
        self.stats.table_computed = sum(table.n_computed for table in tables)

    def _run_direction(self, k: int, wanted: _Wanted, states: Tensor, share: bool) -> None:
        lanes = choose_lanes([len(sequence) for sequence in wanted.listed], self._lane_choices)
        plan = plan_direction(wanted.listed, lanes, share=share, idle_word=BOS_ID)
        cells, rows = wanted.cells_and_rows(plan)

        def emit(first_cell: int, outputs: list[Tensor]) -> None:
            low, high = np.searchsorted(cells, [first_cell, first_cell + len(outputs[0])])
            index = torch.from_numpy(cells[low:high] - first_cell)
            target = torch.from_numpy(rows[low:high])
            for j, output in enumerate(outputs):  # [window × B, p]
                states[:, 1 + 2 * j + k].index_copy_(0, target, output.index_select(0, index).to(states.dtype))

        self._directions[k].run(plan, self._book, emit)
        with self._lock:
            self.stats.cells += plan.lanes * plan.steps
            self.stats.cells_used += plan.n_computed
            self.stats.cells_asked += sum(count for *_, count, _ in wanted.picks)
