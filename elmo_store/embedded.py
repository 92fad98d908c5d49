"""`embed`: the states of a few sentences in memory, without a job and without Beam; needs the extra ``embed``.

The work is done by ``model.engine.loaded``, imported by name when it is asked for: this package imports none of the packages that
compute.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from elmo_store.errors import StateNotFoundError, StoreError
from elmo_store.format.fields import KeptField
from elmo_store.format.numbers import Array
from elmo_store.format.texts import text_fault, token_fault
from elmo_store.own_packages import import_ours
from elmo_store.reading.index import Index, as_names, resolve_numbers
from elmo_store.reading.sentence import Sentence
from elmo_store.reading.sentences import SentenceRecord
from elmo_store.reading.store import Span

MODELS_AT_HAND = 2


class ComputedSentences:
    """Sentences that were computed in memory, as `Sentence` reads them; see `SentenceSource`."""

    is_int8 = False

    def __init__(
        self, sentences: Sequence[tuple[str, ...]], states: tuple[str, ...], rows: Sequence[Array]
    ) -> None:
        """Keep sentences and their rows.

        Args:
            sentences: the tokens of each.
            states: names of the 2L+1 states.
            rows: of each sentence [n_tokens, 2L+1, p].
        """
        self.url = "memory"
        self.states = states
        self.fields: dict[str, KeptField] = {}
        self._tokens, self._rows = sentences, rows
        self._edges = [0, *accumulate(map(len, rows))]

    def sentences(self) -> list[Sentence]:
        """Return the sentences, numbered from 0."""
        return [Sentence(self, number, span) for number, span in enumerate(pairwise(self._edges))]

    @property
    def all_places(self) -> range:
        """The indices of all states."""
        return range(len(self.states))

    def state_indices(self, states: Sequence[str] | str | None = None) -> Sequence[int]:
        """Return the indices of the named states. StateNotFoundError."""
        if states is None:
            return self.all_places
        names = as_names(states)
        for name in names:
            if name not in self.states:
                known = ", ".join(self.states)
                raise StateNotFoundError(f"there is no state {name!r}: there are {known}")
        return [self.states.index(name) for name in names]

    def records(self, numbers: Index) -> list[SentenceRecord]:
        """Return tokens and rows of each sentence; it has no id and no file."""
        chosen = resolve_numbers(numbers, len(self._rows), "sentence", self.url)
        return [
            SentenceRecord(
                index=number,
                id="",
                source="",
                position=number,
                first_row=self._edges[number],
                n_rows=len(self._rows[number]),
                tokens=self._tokens[number],
            )
            for number in map(int, chosen)
        ]

    def table(self, numbers: Index, columns: Sequence[str]) -> pa.Table:
        """Raise StoreError: what is computed in memory has no columns."""
        raise StoreError(f"a sentence in memory has no {columns[0]}: embed a corpus into a store")

    def inner_span(self, span: Span) -> Span:
        """Return the span: there are no rows of BOS and EOS."""
        return span

    def map_span(self, states: Sequence[int], first: int, stop: int) -> None:
        """Return None: nothing is mapped."""

    def read_span(
        self, states: Sequence[int], first: int, stop: int, raw: bool = False, copy: bool = True
    ) -> Array:
        """Return the rows of one sentence: [rows, len(states), p]; without ``copy`` read-only."""
        if first == stop:  # several sentences may begin here
            return np.empty((0, len(states), self._rows[0].shape[2]), self._rows[0].dtype)
        number = bisect_right(self._edges, first) - 1
        first_row = self._edges[number]
        rows = self._rows[number][first - first_row : stop - first_row, list(states)]
        rows.flags.writeable = copy
        return rows


def embed(
    sentences: Sequence[str | Sequence[str]],
    model: str | None = "default",
    *,
    dtype: Literal["float16", "float32"] = "float16",
    precision: str = "float32",
    start_state: Literal["warm", "zero"] = "warm",
    tokenizer: str = "ptb",
    device: str = "auto",
) -> list[Sentence]:
    """The states of every token of ``sentences``: the same bytes as in a store that is made with the same settings.

    The model is loaded once and kept for the next call.

    Args:
        sentences: strings, tokenised by ``tokenizer``, or lists of tokens, taken as they are. One that is empty has no rows.
            What a store rejects is a ValueError: an empty token, a NUL character, half a surrogate pair.
        model: as ``elmo-store embed --model``: a name, a folder or a URL.
        dtype: of the states.
        precision: float32, tf32 or bfloat16, as ``--precision``.
        start_state: what every sentence starts from, as ``--start-state``.
        tokenizer: ptb (running text), whitespace or unicode, as ``--tokenizer``.
        device: auto, cpu or cuda.

    Raises:
        ImportError: the extra is not installed, or modules of other programs stand under the names of ours.
        ValueError, TypeError: a setting or a sentence that makes no sense.
        Exception: a model that can't be found or read, with its name and the remedy.
    """
    if isinstance(sentences, str):
        raise TypeError('give a list of sentences: embed(["…"])')
    if start_state not in ("warm", "zero"):
        raise ValueError(f"start_state is {start_state!r}; known are warm and zero")
    if dtype not in ("float16", "float32"):
        raise ValueError(f"dtype is {dtype!r}; known are float16 and float32")
    tokens = [tokenised(sentence, tokenizer) for sentence in sentences]
    loaded = loaded_model(model, precision=precision, start_state=start_state, device=device)
    rows = loaded.embed(tokens, dtype)
    return ComputedSentences(tokens, loaded.states, rows).sentences()


@lru_cache(MODELS_AT_HAND)
def loaded_model(
    model: str | None,
    *,
    precision: str = "float32",
    start_state: str = "zero",
    device: str = "auto",
    options: str | None = None,
) -> Any:
    """The `model.engine.loaded.LoadedModel` of these settings, kept for the next call. Errors as `embed`'s.

    ``options``: a file that stands in for the options beside the weights.
    """
    return import_ours("model.engine.loaded").LoadedModel(
        model, start_state, options, precision=precision, device=device
    )


def tokenised(sentence: str | Sequence[str], tokenizer: str) -> tuple[str, ...]:
    """Return the tokens of a sentence: a string is split by ``tokenizer``, anything else is taken as it is.

    Raises:
        TypeError: neither a string nor a sequence of strings.
        ValueError: there is no such tokenizer, or a store would reject the sentence.
    """
    # Also where nothing is split: a name that is wrong is wrong for every sentence.
    split = import_ours("transforms.text.tokenizers").get(tokenizer, "text").sentence
    if isinstance(sentence, str):
        if fault := text_fault(sentence):
            raise ValueError(f"the sentence {sentence!r:.100} {fault}")
        return tuple(split(sentence))
    tokens = tuple(sentence)
    for place, token in enumerate(tokens):
        if not isinstance(token, str):
            raise TypeError(
                f"a sentence is a string or a sequence of tokens; {token!r} is not a token"
            )
        if fault := token_fault(token):
            raise ValueError(f"token {place} of the sentence {tokens!r:.100} {fault}")
    return tokens
