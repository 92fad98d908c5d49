"""Words to the numbers that a model's character CNN reads, exactly as the model was trained.

The published models read bytes. A word is its UTF-8 bytes between a begin-word and an end-word marker, padded with a padding
marker to 50 ids and cut to 48 bytes (a cut may fall inside a character, as it did in training). Every id is shifted by one,
because row 0 of the character table is the padding of whole words. Source: bilm-tf `UnicodeCharsVocabulary`, AllenNLP
`ELMoCharacterMapper`.

Models of ELMoForManyLangs read Unicode characters and have a table of words: their `Lexicon` numbers both, as that program's
`create_one_batch` and `read_list` do.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from model.errors import WeightsError

# The sentence boundaries, under the spellings that the published vocabularies and AllenNLP give them: a token of the
# text with this spelling is the boundary too, as it was for the published models. A `Lexicon` has spellings of its own.
BOS = "<S>"
EOS = "</S>"

# Marker ids before the shift by one; 0 to 255 are the bytes.
_BOS_CHARACTER = 256
_EOS_CHARACTER = 257
_BEGIN_WORD = 258
_END_WORD = 259
_PADDING = 260
PADDING_ID = _PADDING + 1  # as `char_ids` gives it

# Of ELMoForManyLangs, with the slip of its `create_one_batch`: "<eow>" begins a word and "<bow>" ends it.
_FIRST, _LAST = "<eow>", "<bow>"
_UNKNOWN, _PAD = "<oov>", "<pad>"
_BOUNDARIES = ("<bos>", "<eos>")


def char_ids(words: Sequence[str], max_chars: int = 50) -> npt.NDArray[np.int16]:
    """Character ids of words.

    Args:
        words: any strings; the empty one gives its two markers alone, BOS and EOS give the boundary rows. Lone
            surrogates, which have no UTF-8 form, are left out.
        max_chars: ids per word, both markers included; at least 3.

    Returns:
        int16 [n, max_chars], each id between 1 and 261.
    """
    encoded = [word.encode("utf-8", "ignore")[: max_chars - 2] for word in words]
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))  # [n]
    ids = np.full((len(encoded), max_chars), _PADDING, dtype=np.int16)  # [n, max_chars]
    rows = np.arange(len(encoded))
    is_byte = np.arange(max_chars - 2) < lengths[:, None]  # [n, max_chars-2]
    # A boolean mask is filled in row order, which is the order of the joined bytes.
    ids[:, 1:-1][is_byte] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    ids[:, 0] = _BEGIN_WORD
    ids[rows, lengths + 1] = _END_WORD
    for row, word in enumerate(words):
        if word in (BOS, EOS):
            ids[row, 1:] = _PADDING
            ids[row, 1] = _BOS_CHARACTER if word == BOS else _EOS_CHARACTER
            ids[row, 2] = _END_WORD
    return ids + np.int16(1)


@dataclass(frozen=True)
class Lexicon:
    """Rows of a model's two tables."""

    characters: Mapping[str, int]  # character or marker → its row in `char_embed`
    words: Mapping[str, int]  # word → its row in `word_embed`; empty for a model without that table

    def __post_init__(self) -> None:
        for name in (_FIRST, _LAST, _UNKNOWN, _PAD, *_BOUNDARIES):
            if name not in self.characters or (self.words and name in (_UNKNOWN, _PAD) and name not in self.words):
                raise WeightsError(f"the model's dictionaries lack {name!r}: char.dic and word.dic of ELMoForManyLangs have it")

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
            spelt = [characters[word]] if word in _BOUNDARIES else [characters.get(character, unknown) for character in word]
            row[0] = self.words.get(word, unknown_word)
            row[1 : len(spelt) + 3] = [characters[_FIRST], *spelt, characters[_LAST]]
        return ids

    def to_bytes(self) -> bytes:
        """The tables as JSON; equal lexicons give equal bytes."""
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
            raise WeightsError("the model's dictionaries give a row that is not a number from 0")
        return cls(characters, words)


def boundary_words(lexicon: Lexicon | None) -> tuple[str, str]:
    """The words that stand for BOS and EOS in `spell`."""
    return (BOS, EOS) if lexicon is None else _BOUNDARIES


def spell(words: Sequence[str], max_chars: int, lexicon: Lexicon | None) -> npt.NDArray[np.int16] | npt.NDArray[np.int32]:
    """The numbers that `model.bilm.char_cnn` takes: by a model's lexicon, or bytes as of the published models."""
    return char_ids(words, max_chars) if lexicon is None else lexicon.spell(words, max_chars)
