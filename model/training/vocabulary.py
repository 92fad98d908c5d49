"""Numbers of types: one for every distinct token of the text, and the classes of the softmax. Imports NumPy only.

Types are numbered so that the softmax needs no table of its own: `</S>`, `<S>`, one number kept for unknown words, then
the words, commonest first. A type's class is its own number below the vocabulary's size and `UNKNOWN` above it. The
order by frequency is also what log-uniform sampling of negatives supposes. Words outside the vocabulary are still read
as themselves: the character CNN knows no unknown words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.characters import BOS, EOS
from model.training.errors import TrainingError

EOS_TYPE = 0
BOS_TYPE = 1
UNKNOWN = 2
FIRST_WORD = 3
SPECIAL = (EOS, BOS, "<UNK>")


@dataclass(frozen=True)
class Vocabulary:
    """All types of a text and how many of them the softmax tells apart.

    Attributes:
        types: the strings by number; the first three are `SPECIAL`.
        n_classes: the specials and the commonest words: types below this number are classes of their own.
    """

    types: tuple[str, ...]
    n_classes: int

    def __post_init__(self) -> None:
        if self.types[:FIRST_WORD] != SPECIAL:
            raise TrainingError(f"a vocabulary starts with {SPECIAL}, not with {self.types[:FIRST_WORD]}")
        if not FIRST_WORD + 2 <= self.n_classes <= len(self.types):
            raise TrainingError(
                f"the vocabulary has {max(0, self.n_classes - FIRST_WORD)} word(s); a language model needs at least 2 "
                "different words to choose from: give more text"
            )

    def classes(self, types: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The softmax class of each type, any shape."""
        return np.where(types < self.n_classes, types, UNKNOWN).astype(np.int64)


def number_types(
    seen: Sequence[str], counts: npt.NDArray[np.int64], n_words: int, order: Sequence[str] | None = None
) -> tuple[Vocabulary, npt.NDArray[np.int32]]:
    """Number the types of a text.

    Args:
        seen: distinct tokens in order of first appearance, boundaries too.
        counts: [len(seen)], how often each appeared.
        n_words: how many words the softmax tells apart, at most.
        order: the vocabulary's words, commonest first, where they are given from outside; words of it that the text
            lacks are kept, so that the classes are the same for every text.

    Returns:
        the vocabulary, and for each of `seen` its number, int32 [len(seen)].
    """
    if order is None:
        rank = np.argsort(-counts, kind="stable")  # equal counts: first come, first numbered
        words = [seen[i] for i in rank if seen[i] not in SPECIAL]
        n_classes = FIRST_WORD + min(n_words, len(words))
    else:
        first = list(dict.fromkeys(word for word in order[:n_words] if word not in SPECIAL))
        known = set(first)
        words = first + [word for word in seen if word not in known and word not in SPECIAL]
        n_classes = FIRST_WORD + len(first)
    types = (*SPECIAL, *words)
    number = {word: i for i, word in enumerate(types)}
    vocabulary = Vocabulary(types, n_classes)
    return vocabulary, np.fromiter((number[word] for word in seen), np.int32, len(seen))
