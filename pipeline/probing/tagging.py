"""A tagging probe from stores and label files to its result: what the command and the benchmark both run.

Beside the taggers stand what their scores are to be held against: guesses that need no vectors; labels that no vector can know
of; and a logistic regression that has converged, since a tagger's score after so many epochs holds its learning rate, its
dropout and where it stopped.
"""

import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from elmo_store.mixing.scalar_mix import ScalarMix
from pipeline.cli.label_files import LabelError
from pipeline.probing.data import Array, LabelFormat, Labelled, LabelledSentence, load_labelled
from pipeline.probing.results import Counts, Metric, Result, TaggingRun, counts, is_iob2, tagging_result
from pipeline.probing.tagger import Feature, TaggerSettings, chosen_features, probe_tagging

MOST_FREQUENT_OF_WORD = "most frequent of the word"
ITERATIONS = 1000  # of L-BFGS, at most
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaggingTask:
    """What to tag, and what to measure.

    Attributes:
        name: in tables.
        train, test: stores' URLs; train_labels, test_labels: label files' URLs, None where the stores keep the labels.
        column: that holds the label: a number counted from 1, or, of CoNLL-U and of a store, a name; None = upos, or 2.
        file_format: of the label files; None = by their names.
        metric: None = span-f1 where all labels are IOB2, else accuracy.
        given: another column, from which alone a baseline guesses the label too.
        features: see `chosen_features`.
        control: also the control task: labels drawn at random, one a word type (one seed).
        logistic: also a converged logistic regression on each mix (it needs scikit-learn).
    """

    name: str
    train: str
    train_labels: str | None
    test: str
    test_labels: str | None
    column: str | None = None
    file_format: LabelFormat | None = None
    metric: Metric | None = None
    given: str | None = None
    features: str | None = None
    control: bool = False
    logistic: bool = False


def run_tagging(
    task: TaggingTask,
    *,
    seeds: int = 5,
    settings: TaggerSettings,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[str, TaggingRun], None] = lambda *_: None,
) -> Result:
    """Train and score a tagger for each feature and for the seeds 0 … ``seeds`` - 1; baselines beside it.

    ``on_progress`` is called after each training with the metric's name. LabelError: label files that can't be used or don't
    fit their store; FeatureError: a feature that the model does not have; StoreError: no such store.
    """
    train, test = (
        load_labelled(store, labels, task.column, task.file_format, task.given, storage_options)
        for store, labels in ((task.train, task.train_labels), (task.test, task.test_labels))
    )
    if train.vectors.states.shape[1:] != test.vectors.states.shape[1:]:
        raise LabelError(
            f"{task.train} holds states {train.vectors.states.shape[1:]} a token, {task.test} "
            f"{test.vectors.states.shape[1:]}: embed both with the same model"
        )
    metric: Metric = task.metric or ("span-f1" if is_iob2(label for s in train.sentences for label in s.labels) else "accuracy")
    wanted = chosen_features(task.features, (train.vectors.states.shape[1] + 1) // 2)
    on_run = partial(on_progress, metric)

    def trained(train: Labelled, test: Labelled, score: Metric, seeds: Sequence[int]) -> list[TaggingRun]:
        return probe_tagging(train, test, metric=score, seeds=seeds, settings=settings, features=wanted, on_progress=on_run)

    runs = trained(train, test, metric, range(seeds))
    control = trained(*control_labels(train, test, seed=0), "accuracy", [0]) if task.control else []
    logistic = _logistic(train, test, wanted, runs, metric) if task.logistic else {}
    return tagging_result(
        task.name, metric, runs, baselines=_guesses(task, train, test, metric), control=control, logistic=logistic
    )


def _guesses(task: TaggingTask, train: Labelled, test: Labelled, metric: Metric) -> dict[str, Counts]:
    gold = [sentence.labels for sentence in test.sentences]
    words = [[sentence.words for sentence in side.sentences] for side in (train, test)]
    guessed = most_frequent(train.sentences, *words)
    guesses = {MOST_FREQUENT_OF_WORD: counts(metric, gold, guessed)}
    if train.given is not None and test.given is not None:
        guessed = most_frequent(train.sentences, train.given, test.given)
        guesses[f"most frequent of column {task.given}"] = counts(metric, gold, guessed)
    return guesses


def most_frequent(
    train: Sequence[LabelledSentence], train_given: Sequence[Sequence[str]], test_given: Sequence[Sequence[str]]
) -> list[list[str]]:
    """The label of every test token that what is given of it, its word or another column, most often has in training.

    What training never saw gets the most frequent label of all; equal counts are told apart by the label's name. With parts of
    speech given this is CoNLL-2000's own baseline for chunks (Tjong Kim Sang and Buchholz 2000).
    """
    seen: dict[str, Counter[str]] = {}
    every: Counter[str] = Counter()
    for sentence, given in zip(train, train_given, strict=True):
        for label, key in zip(sentence.labels, given, strict=True):
            seen.setdefault(key, Counter())[label] += 1
            every[label] += 1
    best = {key: _commonest(labels) for key, labels in seen.items()}
    otherwise = _commonest(every)
    return [[best.get(key, otherwise) for key in given] for given in test_given]


def _commonest(labels: Counter[str]) -> str:
    return min(labels, key=lambda label: (-labels[label], label))


def control_labels(train: Labelled, test: Labelled, seed: int) -> tuple[Labelled, Labelled]:
    """The control task of Hewitt and Liang 2019 (arXiv:1909.03368): each word type has one label, drawn at random.

    Labels are drawn as often as training has them. A word's label follows from its bytes and the seed, so that a test word
    that training lacks has one too. What a probe scores here, it memorised.
    """
    every = Counter(label for sentence in train.sentences for label in sentence.labels)
    names = sorted(every)
    stops = np.cumsum([every[name] for name in names]) / every.total()  # [labels]

    def drawn(word: str) -> str:
        digest = hashlib.blake2b(word.encode(), digest_size=8, key=seed.to_bytes(8, "little")).digest()
        share = int.from_bytes(digest, "little") / 2**64
        return names[min(int(np.searchsorted(stops, share, side="right")), len(names) - 1)]

    def relabelled(side: Labelled) -> Labelled:
        sentences = [replace(sentence, labels=tuple(drawn(word) for word in sentence.words)) for sentence in side.sentences]
        return replace(side, sentences=sentences)

    return relabelled(train), relabelled(test)


def _logistic(
    train: Labelled, test: Labelled, wanted: Sequence[Feature], runs: Sequence[TaggingRun], metric: Metric
) -> dict[str, Counts]:
    """By feature; a learned mix with the s that its first seed learned."""
    by_feature = {}
    for feature in wanted:
        if feature.form == "mix":
            mix = ScalarMix(feature.logits, s=next((run.s for run in runs if run.feature == feature.name), None))
            fitted, scored = ((mix(states=side.vectors.states), side.sentences) for side in (train, test))
            by_feature[feature.name] = logistic_counts(fitted, scored, metric)
    return by_feature


def logistic_counts(
    train: tuple[Array, Sequence[LabelledSentence]], test: tuple[Array, Sequence[LabelledSentence]], metric: Metric
) -> Counts:
    """Fit on training vectors [tokens, channels] and their labels; the counts on the test set. ImportError: no scikit-learn.

    There is one answer for each feature: channels are scaled to mean 0 and variance 1, the penalty is L2 with C = 1, and L-BFGS
    runs to its end.
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
