"""Words to the character ids that AllenNLP's `batch_to_ids` gives (`elmo_store.format.characters`), and back."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elmo_store.format.characters import BEGIN_WORD, BOUNDARY_IDS, END_WORD, WORD_IDS, char_ids

_BOUNDARY_WORDS = {character: word.encode() for word, character in BOUNDARY_IDS.items()}


def batch_to_ids(batch: Sequence[Sequence[str]]) -> torch.Tensor:
    """`allennlp.modules.elmo.batch_to_ids`: character ids, int64 [batch, longest, 50], of lists of tokens.

    Zeros stand behind each sentence. A word is cut to 48 bytes; lone surrogates, which have no UTF-8 form, are left out; the
    tokens "<S>" and "</S>" are the sentence's boundaries. TypeError for a sentence that is a string.
    """
    check_tokens(batch)
    numbers = {
        word: number for number, word in enumerate(dict.fromkeys(chain.from_iterable(batch)))
    }
    table = char_ids(list(numbers))  # [distinct words, 50]
    ids = np.zeros((len(batch), max(map(len, batch), default=0), WORD_IDS), np.int64)
    for own, sentence in zip(ids, batch, strict=True):
        if sentence:
            own[: len(sentence)] = table[[numbers[word] for word in sentence]]
    return torch.from_numpy(ids)


class CharacterIndexer:
    """AllenNLP's `ELMoTokenCharactersIndexer`, as far as programs ask one for ids."""

    def tokens_to_indices(
        self, tokens: Sequence[Any], vocabulary: Any, index_name: str
    ) -> dict[str, list[list[int]]]:
        """The character ids [n, 50] of tokens (their ``text``), under ``index_name``; a vocabulary is not needed."""
        return {index_name: char_ids([token.text for token in tokens]).tolist()}


def check_tokens(batch: Sequence[Sequence[str]]) -> None:
    """TypeError unless a batch is of lists of tokens: a string would be taken for a list of its characters."""
    if isinstance(batch, str) or any(isinstance(sentence, str) for sentence in batch):
        raise TypeError(
            f"{batch!r:.200} has a string for a sentence: give each as a list of tokens"
        )


def tokens_of_ids(ids: npt.NDArray[Any]) -> list[list[bytes]]:
    """The words, in UTF-8, that `batch_to_ids` [B, timesteps, 50] was made of, as far as ids tell (48 bytes of each).

    ValueError for numbers that are not character ids.
    """
    texts: list[list[bytes]] = []
    for sentence in ids:
        real = (sentence != 0).any(axis=1)
        length = int(real.sum())
        if not real[:length].all():
            raise ValueError(
                "character ids have a word of zeros between others: padding comes after a sentence only"
            )
        texts.append([_word(word) for word in sentence[:length]])
    return texts


def _word(ids: npt.NDArray[Any]) -> bytes:
    if ids[0] == BEGIN_WORD:
        if ids[1] in _BOUNDARY_WORDS:
            return _BOUNDARY_WORDS[int(ids[1])]
        stop = int(np.argmax(ids == END_WORD))
        if stop and ids[1:stop].min(initial=1) >= 1 and ids[1:stop].max(initial=1) <= 256:
            return bytes((ids[1:stop] - 1).astype(np.uint8))
    raise ValueError(
        f"{ids[:12].tolist()} … are not the character ids of a word: batch_to_ids begins each with {BEGIN_WORD}"
    )
