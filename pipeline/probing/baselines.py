"""What a probe's scores are to be held against: guesses that need no vectors, and labels that no vector can know of."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.probing.labels import LabelledSentence


def most_frequent(
    train: Sequence[LabelledSentence],
    test: Sequence[LabelledSentence],
    train_given: Sequence[Sequence[str]],
    test_given: Sequence[Sequence[str]],
) -> list[list[str]]:
    """The label of every test token that its word, or whatever is given beside it, most often has in training.

    What training never saw gets the most frequent label of all; equal counts are told apart by the label's name. With parts of
    speech given this is CoNLL-2000's own baseline for chunks (Tjong Kim Sang and Buchholz 2000).

    Args:
        train_given, test_given: a string for each token of each sentence.
    """
    seen: dict[str, Counter[str]] = {}
    every: Counter[str] = Counter()
    for sentence, given in zip(train, train_given, strict=True):
        for label, key in zip(sentence.labels, given, strict=True):
            seen.setdefault(key, Counter())[label] += 1
            every[label] += 1
    best = {key: _commonest(found) for key, found in seen.items()}
    otherwise = _commonest(every)
    return [[best.get(key, otherwise) for key in given] for given in test_given]


def _commonest(found: Counter[str]) -> str:
    return min(found, key=lambda label: (-found[label], label))


def control_labels(
    train: Sequence[LabelledSentence], test: Sequence[LabelledSentence], seed: int
) -> tuple[list[LabelledSentence], list[LabelledSentence]]:
    """The control task of Hewitt and Liang 2019 (arXiv:1909.03368): each word type has one label, drawn at random.

    Labels are drawn as often as training has them. A word's label follows from its bytes and the seed, so that a test word
    that training lacks has one too. What a probe scores here, it memorised.
    """
    every = Counter(label for sentence in train for label in sentence.labels)
    names = sorted(every)
    stops = np.cumsum([every[name] for name in names]) / every.total()  # [labels]

    def drawn(word: str) -> str:
        digest = hashlib.blake2b(word.encode(), digest_size=8, key=seed.to_bytes(8, "little")).digest()
        share = int.from_bytes(digest, "little") / 2**64
        return names[min(int(np.searchsorted(stops, share, side="right")), len(names) - 1)]

    def relabelled(sentences: Sequence[LabelledSentence]) -> list[LabelledSentence]:
        return [replace(sentence, labels=tuple(drawn(word) for word in sentence.words)) for sentence in sentences]

    return relabelled(train), relabelled(test)
