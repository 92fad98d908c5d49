"""The engine's face: sentences in, all 2L+1 states of the wanted rows out. May import torch and the model's modules.

A sentence's states are a function of the model, the start state, the settings and the sentence alone: the same bytes
whatever else is in the call, in the word tables, or came before. Methods are not for several threads at once.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.engine.backend import Backend, CpuBackend
from model.engine.planner import choose_lanes, plan_direction
from model.engine.sequences import Rows, Sequences, WordArray, carried_rows, sentence_rows
from model.engine.settings import EngineSettings
from model.engine.transfer import send
from model.engine.words import BOS_ID, WordBook
from model.files.weights import BiLMWeights
from model.start_state import StartState

__all__ = ["Embedder", "EngineSettings", "EngineStats", "SentenceRows"]


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
        words_looked_up: tokens of the requests' sentences. words_computed: words among them that went through the CNN.
        table_wanted: cells that asked the gate tables. table_computed: rows that had to be computed for them.
        cells: lanes × steps of all grids. cells_used: those that computed something.
        cells_asked: tokens, boundaries included, that a grid without sharing would have had.
        seconds_words, seconds_lstm, seconds: numbers of words and character CNN; all the rest, from the plans to the last
            state; both.
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
        """Share of tokens whose word's x was known already."""
        return 1 - self.words_computed / max(1, self.words_looked_up)


def _backend(weights: BiLMWeights, start: StartState, settings: EngineSettings) -> Backend:
    if settings.on_cuda:
        from model.engine.cuda import CudaBackend  # here: a CPU needs none of it

        return CudaBackend(weights, start, settings, torch.device("cuda", torch.cuda.current_device()))
    return CpuBackend(weights, start, settings)


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
        self._backend = _backend(weights, start, settings)
        share = settings.share
        if share == "auto":
            share = "all" if self._backend.group_rows is None else "sentences"
        self._share_sentences, self._share_beginnings = share != "none", share == "all"
        self._book = WordBook(
            self._backend.vectors,
            self.options.projection_dim,
            settings.word_capacity,
            self.options.max_characters_per_token,
            self._backend.device,
        )

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
        sentences = self._numbered([request.tokens for request in requests])
        counts = [request.stop - request.first for request in requests]
        result = self._backend.result(
            sum(counts), self.options.n_states, self.options.projection_dim, getattr(torch, dtype)
        )  # [rows, 2L+1, p]
        known = time.perf_counter()
        limit = self._backend.group_rows
        low = first_row = row = 0  # a group is requests low to high, rows first_row to row
        for high, count in enumerate(counts, start=1):
            row += count
            if high == len(counts) or (limit is not None and row - first_row >= limit):
                self._embed_group(requests[low:high], sentences[low:high], result[first_row:row], 0 if boundaries else 1)
                low, first_row = high, row
        self._backend.finish()
        ended = time.perf_counter()
        self.stats.seconds_lstm += ended - known
        self.stats.seconds += ended - started
        return result.numpy()

    def _embed_group(self, requests: Sequence[SentenceRows], sentences: Sequences, host: Tensor, offset: int) -> None:
        """Fill host [rows, 2L+1, p] with the states of these requests; row + offset counts from BOS."""
        first = np.array([request.first for request in requests], np.int64) + offset
        stop = np.array([request.stop for request in requests], np.int64) + offset
        forward, backward, words = sentence_rows(sentences, first, stop, self._share_sentences)
        if len(words):
            self._compute([forward, backward], words, host, self._share_beginnings)
            self.stats.rows += len(words)
            self.stats.words_cut += int(self._book.cut[words].sum())

    def embed_carry(self, lanes: Sequence[Sequence[Sequence[str]]]) -> list[list[npt.NDArray[np.float32]]]:
        """States with (h, c) carried from sentence to sentence along each lane, as the goldens were made.

        Backward, each sentence runs from its end to its start, and the state left at its start goes on to the end of
        the next sentence.

        Args:
            lanes: lists of sentences; the first of each starts from the start state.

        Returns:
            for each lane and sentence float32 [n, 2L+1, p], without boundary rows.
        """
        sentences = self._numbered([sentence for lane in lanes for sentence in lane])
        forward, backward, words = carried_rows(sentences, [len(lane) for lane in lanes])
        states = self._backend.result(len(words), self.options.n_states, self.options.projection_dim, torch.float32)
        if len(words):
            self._compute([forward, backward], words, states, share=False)
            self._backend.finish()
        each = iter(np.split(states.numpy(), np.cumsum(sentences.lengths - 2)[:-1]))
        return [[next(each) for _ in lane] for lane in lanes]

    def _numbered(self, sentences: Sequence[Sequence[str]]) -> Sequences:
        """`WordBook.numbered`, with its time and its words counted."""
        started = time.perf_counter()
        found = self._book.numbered(sentences)
        self.stats.words_looked_up += sum(map(len, sentences))
        self.stats.words_computed = self._book.n_computed
        self.stats.seconds_words += time.perf_counter() - started
        return found

    def _compute(self, wanted: list[Rows], words: WordArray, host: Tensor, share: bool) -> None:
        """Fill host [rows, 2L+1, p]: x of each row's word, then both directions at once."""
        # An attempt's frames hold the engines that ran out of memory: they must be gone before smaller ones are made.
        while (problem := self._attempt(wanted, words, host, share)) is not None:
            if not self._backend.shrink():
                raise torch.OutOfMemoryError(problem)

    def _attempt(self, wanted: list[Rows], words: WordArray, host: Tensor, share: bool) -> str | None:
        """`_compute` once; what was said if there was too little memory, otherwise None."""
        backend = self._backend
        try:
            states = backend.buffer(host)
            backend.run([partial(self._run_direction, k, wanted[k], states, share, words) for k in (0, 1)])
            backend.deliver(states, host)
        except torch.OutOfMemoryError as error:
            return str(error)
        return None

    def _run_direction(self, k: int, wanted: Rows, states: Tensor, share: bool, words: WordArray) -> None:
        if k == 0:
            # Here and not in the calling thread, whose own threads would get in the way of the workers'.
            states[:, 0] = self._book.x[send(words, states.device)].to(states.dtype)
        lanes = choose_lanes(wanted.sequences.lengths, self._backend.lane_choices)
        plan = plan_direction(wanted.sequences, lanes, share=share, idle_word=BOS_ID)
        cells, rows = wanted.cells_and_rows(plan.cells, lanes)
        steps = cells // lanes
        all_cells, all_rows = send(cells, states.device), send(rows, states.device)

        def emit(first_cell: int, outputs: list[Tensor]) -> None:
            low, high = np.searchsorted(steps, [first_cell // lanes, (first_cell + len(outputs[0])) // lanes])
            index, target = all_cells[low:high] - first_cell, all_rows[low:high]
            for j, output in enumerate(outputs):  # [window × B, p]
                states[:, 1 + 2 * j + k].index_copy_(0, target, output.index_select(0, index).to(states.dtype))

        engine = self._backend.directions[k]
        engine.run(plan, self._book, emit)
        with self._lock:
            self.stats.table_wanted += engine.table.n_wanted
            self.stats.table_computed += engine.table.n_computed
            engine.table.n_wanted = engine.table.n_computed = 0
            self.stats.cells += plan.lanes * plan.steps
            self.stats.cells_used += plan.n_computed
            self.stats.cells_asked += wanted.n_asked
