"""Words to the character ids of the published models, exactly as they were trained.

A word is its UTF-8 bytes between a begin-word and an end-word marker, padded with a padding marker to 50 ids and cut to 48 bytes
(a cut may fall inside a character, as it did in training). Ids are one higher than bytes: 0 is the padding of whole words.
Source: bilm-tf `UnicodeCharsVocabulary`, AllenNLP `ELMoCharacterMapper`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elmo_store.format.layout import BOS_TOKEN, EOS_TOKEN

WORD_IDS = 50
BEGIN_WORD, END_WORD, PADDING_ID = 259, 260, 261
# A token of the text with this spelling is the boundary too, as it was for the published models.
BOUNDARY_IDS = {BOS_TOKEN: 257, EOS_TOKEN: 258}


def char_ids(words: Sequence[str], max_chars: int = WORD_IDS) -> npt.NDArray[np.int16]:
    """Character ids of words: int16 [n, max_chars], each between 1 and 261.

    ``words``: any strings; the empty one gives its two markers alone, BOS and EOS give the boundary rows. Lone surrogates, which
    have no UTF-8 form, are left out. ``max_chars``: both markers included; at least 3.
    """
    encoded = [word.encode("utf-8", "ignore")[: max_chars - 2] for word in words]
    lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))  # [n]
    ids = np.full((len(encoded), max_chars), PADDING_ID, dtype=np.int16)  # [n, max_chars]
    is_byte = np.arange(max_chars - 2) < lengths[:, None]  # [n, max_chars-2]
    # A boolean mask is filled in row order, which is the order of the joined bytes.
    ids[:, 1:-1][is_byte] = np.frombuffer(b"".join(encoded), dtype=np.uint8) + np.int16(1)
    ids[:, 0] = BEGIN_WORD
    ids[np.arange(len(encoded)), lengths + 1] = END_WORD
    for row, word in enumerate(words):
        if word in BOUNDARY_IDS:
            ids[row, 1:] = PADDING_ID
            ids[row, 1:3] = BOUNDARY_IDS[word], END_WORD
    return ids
