"""A model with its engine, for sentences whose states are wanted at once, in memory."""

import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elmo_store.format.layout import state_names
from elmo_store.format.numbers import FLOAT16_MAX, row_not_finite
from model.engine.embedder import Embedder
from model.engine.settings import EngineSettings
from model.files.registry import load_model
from model.start_state import StartState
from model.warm import warm_state

CHARACTERS_SHOWN = 60  # of a sentence in a message


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
        """Compute the states [rows, 2L+1, p] of tokenised sentences.

        With ``boundaries`` BOS and EOS are rows too, where there are tokens. ValueError, with the sentence, if a state is a
        number that ``dtype`` can't hold.
        """
        lengths = [
            len(tokens) + 2 if boundaries and tokens else len(tokens) for tokens in sentences
        ]
        with self._lock:
            rows = self._embedder.embed(sentences, boundaries=boundaries, dtype=dtype)
        ends = np.cumsum(lengths)
        if (row := row_not_finite(rows)) is not None:
            number = int(np.searchsorted(ends, row, "right"))
            problem = "is not finite: the model's weights are damaged or far too large"
            if dtype == "float16":
                problem = f"float16 can't hold (it ends at {FLOAT16_MAX:,}): compute it in float32"
            shown = " ".join(sentences[number])[:CHARACTERS_SHOWN]
            raise ValueError(
                f"sentence {number} ({shown!r}) has a state with a number that {problem}"
            )
        return np.split(rows, ends[:-1]) if len(sentences) else []
