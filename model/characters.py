"""Words to the numbers that a model's character CNN reads, exactly as the model was trained.

The published models read bytes (`elmo_store.format.characters`); row 0 of the character table is the padding of whole words.

Models of ELMoForManyLangs read Unicode characters and have a table of words: their `Lexicon` numbers both, as that program's
`create_one_batch` and `read_list` do.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elmo_store.format.characters import char_ids
from elmo_store.format.layout import BOS_TOKEN, EOS_TOKEN
from model.errors import WeightsError

# The sentence boundaries, under the spellings that the published vocabularies and AllenNLP give them. A `Lexicon` has its own.
BOS, EOS = BOS_TOKEN, EOS_TOKEN

# Of ELMoForManyLangs, with the slip of its `create_one_batch`: "<eow>" begins a word and "<bow>" ends it.
_FIRST, _LAST = "<eow>", "<bow>"
_UNKNOWN, _PAD = "<oov>", "<pad>"
_BOUNDARIES = ("<bos>", "<eos>")


@dataclass(frozen=True)
class Lexicon:
    """Rows of a model's two tables."""

    characters: Mapping[str, int]  # character or marker → its row in `char_embed`
    words: Mapping[str, int]  # word → its row in `word_embed`; empty for a model without that table

    def __post_init__(self) -> None:
        for name in (_FIRST, _LAST, _UNKNOWN, _PAD, *_BOUNDARIES):
            if name not in self.characters or (
                self.words and name in (_UNKNOWN, _PAD) and name not in self.words
            ):
                raise WeightsError(
                    f"the model's dictionaries lack {name!r}: char.dic and word.dic of ELMoForManyLangs have it"
                )

    @property
    def padding(self) -> int:
        return self.characters[_PAD]

    def spell(self, words: Sequence[str], max_chars: int) -> npt.NDArray[np.int32]:
        """Of each word its row in the table of words (0 without one), then the rows of its characters: int32 [n, 1 + max_chars].

        A word is cut to ``max_chars - 2`` characters, for the table of words too. "<bos>" and "<eos>" are the boundaries, as one
        character. Every other word is spelt, "<S>", "<oov>" and "<pad>" too, though the table of words may have rows for them.
        """
        ids = np.full((len(words), 1 + max_chars), self.padding, np.int32)
        characters, unknown = self.characters, self.characters[_UNKNOWN]
        unknown_word = self.words.get(_UNKNOWN, 0)
        for row, word in zip(ids, words, strict=True):
            word = word[: max_chars - 2]
            spelt = (
                [characters[word]]
                if word in _BOUNDARIES
                else [characters.get(character, unknown) for character in word]
            )
            row[0] = self.words.get(word, unknown_word)
            row[1 : len(spelt) + 3] = [characters[_FIRST], *spelt, characters[_LAST]]
        return ids

    def to_bytes(self) -> bytes:
        """The tables as JSON; equal lexicons give equal bytes."""
        tables = {"characters": dict(self.characters), "words": dict(self.words)}
        return json.dumps(tables, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode(
            "utf-8", "surrogatepass"
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Lexicon":
        """Read what `to_bytes` wrote. WeightsError for anything else."""
        try:
            tables = json.loads(data.decode("utf-8", "surrogatepass"))
            characters, words = tables["characters"], tables["words"]
            numbers = [*characters.values(), *words.values()]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WeightsError(
                f"the model's dictionaries can't be read ({error!r}); this program did not write them"
            ) from error
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise WeightsError("the model's dictionaries give a row that is not a number from 0")
        return cls(characters, words)


def boundary_words(lexicon: Lexicon | None) -> tuple[str, str]:
    """The words that stand for BOS and EOS in `spell`."""
    return (BOS, EOS) if lexicon is None else _BOUNDARIES


def spell(
    words: Sequence[str], max_chars: int, lexicon: Lexicon | None
) -> npt.NDArray[np.int16] | npt.NDArray[np.int32]:
    """The numbers that `model.bilm.char_cnn` takes: by a model's lexicon, or bytes as of the published models."""
    return char_ids(words, max_chars) if lexicon is None else lexicon.spell(words, max_chars)
