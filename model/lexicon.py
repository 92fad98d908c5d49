"""Words to numbers of a model that reads Unicode characters and has a table of words: ELMoForManyLangs. Imports NumPy,
characters.

Everything as its `create_one_batch` and `read_list` do it, their slip included (the marker "<eow>" begins a word and "<bow>"
ends it), since the models were trained so. The published models read bytes instead: `model.characters`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.characters import BOS, EOS, char_ids
from model.errors import WeightsError

_FIRST, _LAST = "<eow>", "<bow>"  # of a word
_UNKNOWN, _PADDING = "<oov>", "<pad>"
_BOUNDARIES = {BOS: "<bos>", EOS: "<eos>"}


@dataclass(frozen=True)
class Lexicon:
    """Rows of a model's two tables.

    Attributes:
        characters: character or marker → its row in `char_embed`.
        words: word → its row in `word_embed`; empty for a model without that table.
    """

    characters: Mapping[str, int]
    words: Mapping[str, int]

    def __post_init__(self) -> None:
        for name in (_FIRST, _LAST, _UNKNOWN, _PADDING, *_BOUNDARIES.values()):
            if name not in self.characters or (self.words and name in (_UNKNOWN, _PADDING) and name not in self.words):
                raise WeightsError(f"the model's dictionaries lack {name!r}: char.dic and word.dic of ELMoForManyLangs have it")

    @property
    def padding(self) -> int:
        """The character behind a word."""
        return self.characters[_PADDING]

    def spell(self, words: Sequence[str], max_chars: int) -> npt.NDArray[np.int32]:
        """Of each word its row in the table of words (0 without one), then the rows of its characters: int32 [n, 1 + max_chars].

        A word is cut to ``max_chars - 2`` characters, for the table of words too. BOS and EOS are "<bos>" and "<eos>".
        """
        ids = np.full((len(words), 1 + max_chars), self.padding, np.int32)
        characters, unknown = self.characters, self.characters[_UNKNOWN]
        unknown_word = self.words.get(_UNKNOWN, 0)
        for row, word in zip(ids, words, strict=True):
            word = _BOUNDARIES.get(word, word)[: max_chars - 2]
            marked = word in _BOUNDARIES.values()
            spelt = [characters[word]] if marked else [characters.get(one, unknown) for one in word]
            row[0] = self.words.get(word, unknown_word)
            row[1 : len(spelt) + 3] = [characters[_FIRST], *spelt, characters[_LAST]]
        return ids

    def to_bytes(self) -> bytes:
        """As JSON, the same for equal ones."""
        tables = {"characters": dict(self.characters), "words": dict(self.words)}
        return json.dumps(tables, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def from_bytes(cls, data: bytes) -> "Lexicon":
        """Read what `to_bytes` wrote. WeightsError for anything else."""
        try:
            tables = json.loads(data.decode("utf-8", "surrogatepass"))
            characters, words = tables["characters"], tables["words"]
            numbers = [*characters.values(), *words.values()]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WeightsError(f"the model's dictionaries can't be read ({error!r}); this program did not write them") from error
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise WeightsError("the model's dictionaries give a row that is no number from 0")
        return cls(characters, words)


def spell(words: Sequence[str], max_chars: int, lexicon: Lexicon | None) -> npt.NDArray[np.int16] | npt.NDArray[np.int32]:
    """The numbers that `model.bilm.char_cnn` takes: by a model's lexicon, or bytes as of the published models."""
    return char_ids(words, max_chars) if lexicon is None else lexicon.spell(words, max_chars)
