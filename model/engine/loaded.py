"""A model with its engine, for sentences whose states are wanted at once, in memory."""

import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elmo_store.format.layout import state_names
from model.engine.embedder import Embedder
from model.engine.settings import EngineSettings
from model.files.registry import load_model
from model.start_state import StartState
from model.warm import warm_state


class LoadedModel:
    """One loaded model. Calls of several threads wait for each other.

    ``name``, ``fingerprint``: as a store's manifest has them; ``states``: x, fwd1, bwd1, …, each of ``channels`` numbers.
    """

    def __init__(
        self, model: str | None, start_state: str, options: str | None = None, **engine: Any
    ) -> None:
        """``engine``: fields of `EngineSettings`; all else, and errors, as of `load_model`. ``start_state``: "warm" or "zero"."""
        self.name, weights = load_model(model, options)
        self.fingerprint, self.channels = weights.fingerprint, weights.options.projection_dim
        self.states = state_names(weights.options.n_layers)
        start = warm_state(weights) if start_state == "warm" else StartState.zero(weights.options)
        self._embedder = Embedder(weights, start, EngineSettings(**engine))
        self._lock = threading.Lock()

    def embed(
        self,
        sentences: Sequence[Sequence[str]],
        dtype: Literal["float16", "float32"],
        *,
        boundaries: bool = False,
    ) -> list[npt.NDArray[np.floating[Any]]]:
        """The states [rows, 2L+1, p] of tokenised sentences; with ``boundaries`` of BOS and EOS too, where there are tokens."""
        lengths = [
            len(tokens) + 2 if boundaries and tokens else len(tokens) for tokens in sentences
        ]
        with self._lock:
            rows = self._embedder.embed(sentences, boundaries=boundaries, dtype=dtype)
        return np.split(rows, np.cumsum(lengths)[:-1]) if len(sentences) else []
