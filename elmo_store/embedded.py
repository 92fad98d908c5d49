"""`embed`: the states of a few sentences in memory, without a job and without Beam; needs the extra ``embed``.

The work is done by ``model.engine.loaded``, imported by name when it is asked for: this package imports none of the packages that
compute.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any, Literal

import numpy.typing as npt

from elmo_store.format.texts import text_fault, token_fault
from elmo_store.mixing.scalar_mix import layers_of_states
from elmo_store.own_packages import import_ours

Array = npt.NDArray[Any]
MODELS_AT_HAND = 2


@dataclass(frozen=True)
class EmbeddedSentence:
    """A sentence and its states, as a store's `Sentence` gives them.

    Attributes:
        tokens: its n tokens.
        states: names of the 2L+1 states.
        rows: [n, 2L+1, p] in the dtype asked for.
    """

    tokens: tuple[str, ...]
    states: tuple[str, ...]
    rows: Array = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, state: str) -> Array:
        """One state: [n, p]. KeyError, naming the states there are."""
        return self.read((state,))[:, 0]

    def read(self, states: Sequence[str] | str | None = None) -> Array:
        """The named states, all by default: [n, len(states), p]."""
        names = self.states if states is None else (states,) if isinstance(states, str) else states
        for name in names:
            if name not in self.states:
                raise KeyError(f"no state {name!r}: there are {', '.join(self.states)}")
        return self.rows[:, [self.states.index(name) for name in names]]

    def layers(self) -> Array:
        """The L+1 layers that a scalar mix weighs: [n, L+1, 2p]; layer 0 is [x; x]."""
        return layers_of_states(self.rows)


def embed(
    sentences: Sequence[str | Sequence[str]],
    model: str | None = "default",
    *,
    dtype: Literal["float16", "float32"] = "float16",
    precision: str = "float32",
    start_state: Literal["warm", "zero"] = "warm",
    tokenizer: str = "ptb",
    device: str = "auto",
) -> list[EmbeddedSentence]:
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
    return [
        EmbeddedSentence(*sentence)
        for sentence in zip(tokens, repeat(loaded.states), loaded.embed(tokens, dtype))
    ]


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
