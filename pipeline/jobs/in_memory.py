"""A few sentences' states in memory, without a job: started by name by `elmo_store.embed`; also the explorer's box."""

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from elmo_store.format.layout import state_names
from model.engine.embedder import Embedder, EngineSettings, SentenceRows
from model.files.registry import load_model
from model.start_state import StartState
from model.warm import compute_warm
from transforms.text.tokenizers import get

MODELS_AT_HAND = 2


class QuickEmbedder:
    """One loaded model. Calls of several threads wait for each other.

    Attributes:
        name, fingerprint: of the model, as a store's manifest has them.
        states: x, fwd1, bwd1, ….
        channels: numbers of each.
    """

    def __init__(self, model: str | None, precision: str, start_state: str, device: str, options: str | None = None) -> None:
        self.name, weights = load_model(model, options)
        self.fingerprint, self.channels = weights.fingerprint, weights.options.projection_dim
        self.states = state_names(weights.options.n_layers)
        start = compute_warm(weights) if start_state == "warm" else StartState.zero(weights.options)
        self._embedder = Embedder(weights, start, EngineSettings(precision=precision, device=device))  # type: ignore[arg-type]
        self._lock = threading.Lock()

    def embed(
        self, sentences: Sequence[Sequence[str]], dtype: Literal["float16", "float32"], *, boundaries: bool = False
    ) -> list[npt.NDArray[np.floating]]:
        """The states [rows, 2L+1, p] of tokenised sentences; with ``boundaries`` of BOS and EOS too, where there are tokens."""
        lengths = [len(tokens) + 2 if boundaries and tokens else len(tokens) for tokens in sentences]
        asked = [SentenceRows(tokens, 0, n) for tokens, n in zip(sentences, lengths, strict=True)]
        with self._lock:
            rows = self._embedder.embed(asked, boundaries=boundaries, dtype=dtype)
        ends = np.cumsum(lengths)
        return np.split(rows, ends[:-1]) if len(sentences) else []


@lru_cache(MODELS_AT_HAND)
def embedder(
    model: str | None, precision: str = "float32", start_state: str = "warm", device: str = "auto", options: str | None = None
) -> QuickEmbedder:
    """A loaded model, kept for the next call. ``options`` and errors as of `model.files.registry.load_model`."""
    return QuickEmbedder(model, precision, start_state, device, options)


def tokenised(sentence: str | Sequence[str], tokenizer: str) -> tuple[str, ...]:
    """The tokens of a sentence: a string by ``tokenizer``, anything else as it is. TypeError for what is neither."""
    if isinstance(sentence, str):
        return tuple(get(tokenizer, "text").sentence(sentence))
    tokens = tuple(sentence)
    for token in tokens:
        if not isinstance(token, str):
            raise TypeError(f"a sentence is a string or a sequence of tokens; {token!r} is not a token")
    return tokens
