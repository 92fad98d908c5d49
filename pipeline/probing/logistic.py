"""A check on the taggers: logistic regression that has converged, on fixed features.

A tagger's score after so many epochs holds its learning rate, its dropout and where it stopped. Here there is one answer for
each feature: channels are scaled to mean 0 and variance 1, the penalty is L2 with C = 1, and L-BFGS runs to its end.
"""

import logging
import warnings
from collections.abc import Sequence

import numpy as np

from elmo_store.mixing.scalar_mix import layers_of_states
from pipeline.probing.features import Feature
from pipeline.probing.labels import LabelledSentence
from pipeline.probing.scores import Counts, Metric, counts
from pipeline.probing.vectors import Array, TokenStates

ITERATIONS = 1000  # at most
ROWS = 65536  # tokens whose layers are widened at a time
logger = logging.getLogger(__name__)


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
