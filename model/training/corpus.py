"""A training text as numbers: vocabulary, corpus, and the batches cut from it.

Types are numbered so that the softmax needs no table of its own: `</S>`, `<S>`, one number kept for unknown words, then
the words, commonest first. A type's class is its own number below the vocabulary's size and `UNKNOWN` above it. The
order by frequency is also what log-uniform sampling of negatives supposes. Words outside the vocabulary are still read
as themselves: the character CNN knows no unknown words.

The text is one long row of types, each sentence between its boundaries. An epoch is that row in an order of sentences
of its own, cut into as many lanes of equal length as a batch has; a batch is the next few steps of every lane, so that
a lane's state carries from batch to batch (truncated back-propagation). The backward direction reads the same
sentences in the same order, each from its end to its start, as bilm-tf does.
"""

import hashlib
import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from model.characters import BOS, EOS
from model.engine.planning.sequences import Sequences
from model.errors import TrainingError

EOS_TYPE = 0
BOS_TYPE = 1
UNKNOWN = 2
FIRST_WORD = 3
SPECIAL = (EOS, BOS, "<UNK>")


Types = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Corpus:
    types: Types  # int32 [n], the text with boundaries: `<S>`, words, `</S>`, `<S>`, …
    starts: npt.NDArray[
        np.int64
    ]  # int64 [sentences + 1], where each sentence's `<S>` stands; the last one is n
    vocabulary: tuple[str, ...]  # the strings of the types by number; the first three are `SPECIAL`
    n_classes: int  # the specials and the commonest words: types below this number are classes of their own

    @property
    def n_words(self) -> int:
        return len(self.types) - 2 * (len(self.starts) - 1)

    def classes(self, types: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The softmax class of each type, any shape."""
        return np.where(types < self.n_classes, types, UNKNOWN).astype(np.int64)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text, its sentences and its vocabulary: equal for equal training data, whatever files it came from."""
        digest = hashlib.sha256()
        for part in (self.types.astype("<i4", copy=False), self.starts.astype("<i8", copy=False)):
            digest.update(part.tobytes())
        digest.update(json.dumps([self.n_classes, self.vocabulary]).encode())
        return f"sha256:{digest.hexdigest()}"

    @classmethod
    def encode(
        cls, sentences: Iterable[Sequence[str]], n_words: int, order: Sequence[str] | None = None
    ) -> "Corpus":
        """Number a text; sentences of no tokens are passed over.

        ``n_words``: that the softmax tells apart, at most; ``order``: the vocabulary's words, commonest first, where they are
        given from outside; words of it that the text lacks are kept, so that the classes are the same for every text.
        TrainingError: no sentences, or fewer than two words to tell apart.
        """
        number: dict[str, int] = {EOS: 0, BOS: 1}
        row, starts = array("i"), array("q")
        add = number.setdefault
        for tokens in sentences:
            if not tokens:
                continue
            starts.append(len(row))
            row.append(1)
            row.extend([add(token, len(number)) for token in tokens])
            row.append(0)
        if not starts:
            raise TrainingError(
                "the text holds no sentences: give files with at least a few thousand words"
            )
        starts.append(len(row))
        by_appearance = np.frombuffer(row, dtype=np.int32)  # [n]
        seen = list(number)
        if order is None:
            rank = np.argsort(
                -np.bincount(by_appearance), kind="stable"
            )  # equal counts: first come, first numbered
            words = [seen[i] for i in rank if seen[i] not in SPECIAL]
            n_classes = FIRST_WORD + min(n_words, len(words))
        else:
            first = dict.fromkeys(word for word in order[:n_words] if word not in SPECIAL)
            words = [*first, *(word for word in seen if word not in first and word not in SPECIAL)]
            n_classes = FIRST_WORD + len(first)
        if n_classes < FIRST_WORD + 2:
            raise TrainingError(
                f"the vocabulary has {n_classes - FIRST_WORD} word(s); a language model needs at least 2 different words to "
                "choose from: give more text"
            )
        vocabulary = (*SPECIAL, *words)
        type_of = {word: i for i, word in enumerate(vocabulary)}
        renumbered = np.array([type_of[word] for word in seen], np.int32)
        return cls(
            renumbered[by_appearance],
            np.frombuffer(starts, dtype=np.int64).copy(),
            vocabulary,
            n_classes,
        )


def reverse_sentences(types: Types, starts: npt.NDArray[np.int64]) -> Types:
    """The same sentences in the same order, each from its end to its start; starts as in `Corpus`."""
    lengths = np.diff(starts)
    first, last = np.repeat(starts[:-1], lengths), np.repeat(starts[1:] - 1, lengths)
    return types[first + last - np.arange(len(types))]


def shuffle_sentences(
    types: Types, starts: npt.NDArray[np.int64], seed: int, epoch: int
) -> tuple[Types, npt.NDArray[np.int64]]:
    """The sentences in another order, the same for equal seeds and epochs."""
    order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(len(starts) - 1)
    shuffled = Sequences.cut(types, starts[order], np.diff(starts)[order])
    return shuffled.words, shuffled.offsets


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """The next steps of every lane, both directions."""

    words: npt.NDArray[np.int64]  # int64 [n], the distinct types of both inputs, rising
    inputs: npt.NDArray[
        np.int64
    ]  # int64 [2, T, B], places in `words`; index 0 = forward, 1 = backward
    targets: npt.NDArray[
        np.int64
    ]  # int64 [2, T, B], softmax classes of what comes next in each direction's reading order
    # float32 [2, T, B]: 0 where the next token opens the next sentence, which is not a prediction, else 1
    weights: npt.NDArray[np.float32]
    n_words: int  # words (boundaries left out) among the forward inputs


class Epoch:
    """One pass over a corpus in batches of [T, B]."""

    def __init__(self, corpus: Corpus, number: int, lanes: int, unroll: int, seed: int) -> None:
        """Epoch `number` (from 0) of a run, the sentences in an order of its own.

        TrainingError: the text is too short for one batch.
        """
        types, starts = shuffle_sentences(corpus.types, corpus.starts, seed, number)
        self._corpus = corpus
        self._rows = types, reverse_sentences(types, starts)
        self._lane_length = (len(types) - 1) // lanes
        self._lanes, self._unroll = lanes, unroll
        self.n_batches = self._lane_length // unroll
        if self.n_batches == 0:
            raise TrainingError(
                f"the text has {len(types):,} tokens (boundaries counted), too few for one batch of {lanes} lanes x {unroll} "
                f"steps, which needs {lanes * unroll + 1:,}: give more text, or fewer lanes"
            )

    def batch(self, index: int) -> TrainingBatch:
        first = np.arange(self._lanes) * self._lane_length + index * self._unroll  # [B]
        places = first + np.arange(self._unroll)[:, None]  # [T, B]
        read = np.stack([row[places] for row in self._rows])  # [2, T, B]
        following = np.stack([row[places + 1] for row in self._rows])  # [2, T, B]
        words, inputs = np.unique(read, return_inverse=True)
        opens = np.array([BOS_TYPE, EOS_TYPE])[:, None, None]
        return TrainingBatch(
            words=words.astype(np.int64),
            inputs=inputs.reshape(read.shape),
            targets=self._corpus.classes(following),
            weights=(following != opens).astype(np.float32),
            n_words=int((read[0] > BOS_TYPE).sum()),
        )
