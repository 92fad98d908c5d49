"""What a probe's scores are to be held against.

Guesses that need no vectors; labels that no vector can know of; and a logistic regression that has converged, as a check on the
taggers: a tagger's score after so many epochs holds its learning rate, its dropout and where it stopped.
"""

import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from elmo_store.mixing.scalar_mix import layers_of_states
from pipeline.probing.features import Feature
from pipeline.probing.labels import LabelledSentence
from pipeline.probing.scores import Counts, Metric, counts
from pipeline.probing.vectors import Array, TokenStates

ITERATIONS = 1000  # of L-BFGS, at most
ROWS = 65536  # tokens whose layers are widened at a time
logger = logging.getLogger(__name__)


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


def fixed_vectors(vectors: TokenStates, feature: Feature, s: Sequence[float] | None = None) -> Array:
    """Σ s_j h_j, float32 [tokens, 2p], of a frozen mix, or of a learned one whose s is given."""
    if s is None:
        assert feature.logits is not None
        weights = np.exp(np.asarray(feature.logits) - max(feature.logits))
        s = weights / weights.sum()
    share = np.asarray(s, np.float32)
    found = np.empty((len(vectors.states), 2 * vectors.states.shape[2]), np.float32)
    for first in range(0, len(found), ROWS):
        layers = layers_of_states(vectors.states[first : first + ROWS].astype(np.float32))  # [n, L+1, 2p]
        found[first : first + ROWS] = np.einsum("nlc,l->nc", layers, share)
    return found


def logistic_counts(
    train: tuple[Array, Sequence[LabelledSentence]], test: tuple[Array, Sequence[LabelledSentence]], metric: Metric
) -> Counts:
    """Fit on training vectors [tokens, channels] and their labels; the counts on the test set.

    There is one answer for each feature: channels are scaled to mean 0 and variance 1, the penalty is L2 with C = 1, and L-BFGS
    runs to its end.

    Raises:
        ImportError: scikit-learn is missing.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean, deviation = train[0].mean(axis=0), train[0].std(axis=0)
    scale = np.where(deviation > 0, deviation, 1)
    labels = [label for sentence in train[1] for label in sentence.labels]
    fitted = LogisticRegression(max_iter=ITERATIONS, tol=1e-4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        fitted.fit((train[0] - mean) / scale, labels)
    for warning in caught:
        logger.warning("logistic regression: %s", warning.message)
    flat = fitted.predict((test[0] - mean) / scale).tolist()
    predicted, at = [], 0
    for sentence in test[1]:
        predicted.append(flat[at : at + len(sentence.labels)])
        at += len(sentence.labels)
    return counts(metric, [sentence.labels for sentence in test[1]], predicted)
