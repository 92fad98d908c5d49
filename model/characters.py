"""Words to character ids, exactly as the published models were trained. Imports NumPy only.

A word is its UTF-8 bytes between a begin-word and an end-word marker, padded with a padding marker to 50 ids and cut to
48 bytes (a cut may fall inside a character, as it did in training). Every id is shifted by one, because row 0 of the
character table is the padding of whole words. Source: bilm-tf `UnicodeCharsVocabulary`, AllenNLP `ELMoCharacterMapper`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# The sentence boundaries, under the spellings that the published vocabularies and AllenNLP give them: a token of the
# text with this spelling is the boundary too, as it was for the published models.
BOS = "<S>"
EOS = "</S>"

# Marker ids before the shift by one; 0 to 255 are the bytes.
_BOS_CHARACTER = 256
_EOS_CHARACTER = 257
_BEGIN_WORD = 258
_END_WORD = 259
_PADDING = 260
PADDING_ID = _PADDING + 1  # as `char_ids` gives it


def char_ids(words: Sequence[str], max_chars: int = 50) -> npt.NDArray[np.int16]:
    """Character ids of words.

    Args:
        words: any strings; the empty one gives its two markers alone, BOS and EOS give the boundary rows. Lone
            surrogates, which have no UTF-8 form, are left out.
        max_chars: ids per word, both markers included; at least 3.

    Returns:
        int16 [n, max_chars], each id between 1 and 261.
    """
    encoded = [_utf8(word)[: max_chars - 2] for word in words]
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


def n_words_cut(words: Sequence[str], max_chars: int = 50) -> int:
    """How many of the words have more UTF-8 bytes than the model reads (48 of the published ones)."""
    room = max_chars - 2
    # A character takes at most 4 bytes: most words are known to fit without being encoded.
    return sum(1 for word in words if len(word) * 4 > room and len(_utf8(word)) > room)


def _utf8(word: str) -> bytes:
    return word.encode("utf-8", "ignore")
