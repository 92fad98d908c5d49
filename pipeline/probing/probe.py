"""One probe from stores and label files to its result: the home of what the command and the benchmark both run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from elmo_store.store import open as open_store
from pipeline.probing import baselines
from pipeline.probing.features import Feature, FeatureError, features, usual
from pipeline.probing.labels import (
    LabelError,
    LabelFormat,
    LabelledSentence,
    label_format,
    read_senses,
    read_token_labels,
)
from pipeline.probing.results import Result, sense_result, tagging_result
from pipeline.probing.scores import Counts, Metric, counts, is_iob2
from pipeline.probing.senses import probe_senses, target_layers
from pipeline.probing.tagger import TaggerSettings, TaggingRun, probe_tagging
from pipeline.probing.vectors import TokenStates, check_alignment, load_states

MOST_FREQUENT_OF_WORD = "most frequent of the word"


@dataclass(frozen=True)
class TaggingTask:
    """What to tag.

    Attributes:
        name: in tables.
        train, test: stores' URLs; train_labels, test_labels: label files' URLs.
        column: that holds the label: a number counted from 1, or, of CoNLL-U, a name; None = upos, or 2.
        file_format: of the label files; None = by their names.
        metric: None = span-f1 where all labels are IOB2, else accuracy.
        given: another column, from which alone a baseline guesses the label too.
    """

    name: str
    train: str
    train_labels: str
    test: str
    test_labels: str
    column: str | None = None
    file_format: LabelFormat | None = None
    metric: Metric | None = None
    given: str | None = None


@dataclass(frozen=True)
class Checks:
    """What is measured beside the taggers.

    Attributes:
        control: also the control task: labels drawn at random, one a word type (one seed).
        logistic: also a converged logistic regression on each mix (it needs scikit-learn).
    """

    control: bool = False
    logistic: bool = False


@dataclass(frozen=True)
class _Side:
    """Train or test: states and labels."""

    vectors: TokenStates
    sentences: Sequence[LabelledSentence]
    given: Sequence[Sequence[str]] | None = None


def chosen_features(asked: str | None, n_layers: int) -> list[Feature]:
    """The features of a list ``NAME,…`` ("top" is the last layer), all usual ones for None.

    Raises:
        FeatureError: a name that the model does not have.
    """
    known = features(n_layers)
    top = list(known)[n_layers - 1]
    short = {"top": top, top.removesuffix(" (top)"): top}
    names = [short.get(name.strip(), name.strip()) for name in asked.split(",")] if asked else usual(n_layers)
    for name in names:
        if name not in known:
            raise FeatureError(f"no feature {name!r}; this model has {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def run_tagging(
    task: TaggingTask,
    *,
    asked: str | None = None,
    seeds: int = 5,
    settings: TaggerSettings,
    checks: Checks | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[str, TaggingRun], None] = lambda *_: None,
) -> Result:
    """Train and score a tagger for each feature and seed; baselines beside it.

    Args:
        asked: features, see `chosen_features`.
        seeds: how many, from 0.
        on_progress: called after each training with the metric's name.

    Raises:
        LabelError: label files that can't be used or don't fit their store.
        FeatureError: a feature that the model does not have.
        StoreError: no such store.
    """
    checks = checks or Checks()
    train = _side(task, task.train, task.train_labels, storage_options)
    test = _side(task, task.test, task.test_labels, storage_options)
    if train.vectors.states.shape[1:] != test.vectors.states.shape[1:]:
        raise LabelError(
            f"{task.train} holds states {train.vectors.states.shape[1:]} a token, {task.test} "
            f"{test.vectors.states.shape[1:]}: embed both with the same model"
        )
    metric: Metric = task.metric or ("span-f1" if is_iob2(label for s in train.sentences for label in s.labels) else "accuracy")
    wanted = chosen_features(asked, train.vectors.n_layers)

    runs = probe_tagging(
        (train.vectors, train.sentences), (test.vectors, test.sentences), metric=metric, seeds=range(seeds),
        settings=settings, features=wanted, on_progress=partial(on_progress, metric),
    )  # fmt: skip
    control: list[TaggingRun] = []
    if checks.control:
        random_train, random_test = baselines.control_labels(train.sentences, test.sentences, seed=0)
        control = probe_tagging(
            (train.vectors, random_train), (test.vectors, random_test), metric="accuracy", seeds=[0], settings=settings,
            features=wanted, on_progress=partial(on_progress, metric),
        )  # fmt: skip
    logistic = _logistic(train, test, wanted, runs, metric) if checks.logistic else {}
    return tagging_result(
        task.name, metric, runs, baselines=_guesses(task, train, test, metric), control=control, logistic=logistic
    )


def run_senses(
    name: str, store: str, labels: str, *, seeds: int, folds: int = 10, storage_options: Mapping[str, Any] | None = None
) -> Result:
    """Score nearest neighbours for each layer and each way to cut the folds. LabelError and StoreError as `run_tagging`."""
    instances = read_senses(labels)
    vectors = load_states(open_store(store, storage_options=storage_options))
    check_alignment(vectors, [len(i.tokens) for i in instances], [i.where for i in instances])
    runs = probe_senses(target_layers(vectors, instances), instances, seeds=range(seeds), n_folds=folds)
    return sense_result(name, runs)


def _side(task: TaggingTask, store: str, labels: str, storage_options: Mapping[str, Any] | None) -> _Side:
    form = task.file_format or label_format(labels)
    sentences = read_token_labels(labels, task.column or ("upos" if form == "conllu" else "2"), form)
    vectors = load_states(open_store(store, storage_options=storage_options))
    check_alignment(vectors, [len(s.labels) for s in sentences], [s.where for s in sentences])
    given = None if task.given is None else [s.labels for s in read_token_labels(labels, task.given, form)]
    return _Side(vectors, sentences, given)


def _guesses(task: TaggingTask, train: _Side, test: _Side, metric: Metric) -> dict[str, Counts]:
    gold = [sentence.labels for sentence in test.sentences]
    words = [[sentence.words for sentence in side.sentences] for side in (train, test)]
    guessed = baselines.most_frequent(train.sentences, test.sentences, *words)
    guesses = {MOST_FREQUENT_OF_WORD: counts(metric, gold, guessed)}
    if train.given is not None and test.given is not None:
        guessed = baselines.most_frequent(train.sentences, test.sentences, train.given, test.given)
        guesses[f"most frequent of column {task.given}"] = counts(metric, gold, guessed)
    return guesses


def _logistic(
    train: _Side, test: _Side, wanted: Sequence[Feature], runs: Sequence[TaggingRun], metric: Metric
) -> dict[str, Counts]:
    """By feature; a learned mix with the s that its first seed learned."""
    found = {}
    for feature in wanted:
        if feature.form != "mix":
            continue
        s = next((run.s for run in runs if run.feature == feature.name), None)
        sides = [(baselines.fixed_vectors(side.vectors, feature, s), side.sentences) for side in (train, test)]
        found[feature.name] = baselines.logistic_counts(sides[0], sides[1], metric)
    return found
