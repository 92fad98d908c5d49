"""Word sense by nearest neighbour: the sense of the most similar training occurrence, layer by layer, in ten folds.

Nothing is learned but which occurrences are known, so the score is the vectors' own (Peters et al. 2018, section 5.3, does the
same with one averaged vector a sense, which is here too).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from elmo_store.figures.vectors import unit
from elmo_store.mixing.scalar_mix import layers_of_states
from elmo_store.store import open as open_store
from pipeline.cli.label_files import LabelError
from pipeline.probing.data import Array, SenseInstance, TokenStates, check_alignment, load_states, read_senses
from pipeline.probing.results import Result, Spread
from pipeline.probing.tagger import layer_features

MOST_FREQUENT = "most frequent sense"
TIE = 1e-6  # of cosines: the same word without context has the same vector


@dataclass(frozen=True)
class SenseRun:
    """Accuracy 0 … 1 over all instances, each judged once, for one way to cut the folds.

    Attributes:
        feature: a layer's name, "average", or `MOST_FREQUENT`.
        nearest: by the nearest training occurrence.
        averaged: by the nearest of the senses' mean vectors.
    """

    feature: str
    seed: int
    nearest: float
    averaged: float


def run_senses(
    name: str, store: str, labels: str, *, seeds: int, folds: int = 10, storage_options: Mapping[str, Any] | None = None
) -> Result:
    """Score nearest neighbours for each layer and each way to cut the folds. LabelError and StoreError as `run_tagging`."""
    instances = read_senses(labels)
    vectors = load_states(open_store(store, storage_options=storage_options))
    check_alignment(vectors, [len(i.tokens) for i in instances], [i.where for i in instances])
    runs = probe_senses(target_layers(vectors, instances), instances, seeds=range(seeds), n_folds=folds)
    rows: dict[str, tuple[Spread | None, ...]] = {}
    for feature in dict.fromkeys(run.feature for run in runs):
        own = [run for run in runs if run.feature == feature]
        rows[feature] = (Spread(tuple(run.nearest for run in own)), Spread(tuple(run.averaged for run in own)))
    return Result(name, ("nearest occurrence", "nearest sense mean"), rows, None, tuple(asdict(run) for run in runs))


def target_layers(vectors: TokenStates, instances: Sequence[SenseInstance]) -> dict[str, Array]:
    """The vectors of the target tokens by feature: each layer and their uniform average, float32 [instances, 2p]."""
    rows = vectors.offsets[:-1] + np.asarray([instance.head for instance in instances])
    layers = layers_of_states(vectors.states[rows].astype(np.float32))  # [instances, L+1, 2p]
    return {**{name: layers[:, j] for j, name in enumerate(layer_features(layers.shape[1]))}, "average": layers.mean(axis=1)}


def probe_senses(
    features: dict[str, Array], instances: Sequence[SenseInstance], *, seeds: Sequence[int], n_folds: int = 10
) -> list[SenseRun]:
    """Score every feature, and the most frequent sense, with folds cut anew for each seed.

    An answer is right if it is one of the instance's senses. Neighbours of equal cosine vote; senses of equal votes are
    told apart by how frequent they are in training. LabelError if there are fewer instances than folds.
    """
    if len(instances) < n_folds or n_folds < 2:
        raise LabelError(f"{len(instances)} instances in {n_folds} folds: each fold needs one, and there must be two")
    names = sorted({sense for instance in instances for sense in instance.senses})
    is_sense = np.asarray([[name in i.senses for name in names] for i in instances], np.float32)  # [instances, senses]
    units = {feature: unit(vectors.astype(np.float32)) for feature, vectors in features.items()}
    runs = []
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(instances))
        right: dict[str, list[int]] = {name: [0, 0] for name in (MOST_FREQUENT, *units)}
        for fold in range(n_folds):
            test = np.sort(order[fold::n_folds])
            train = np.setdiff1d(order, test)
            known = is_sense[train]  # [train, senses]
            frequency = known.sum(axis=0) / (known.sum() + 1)  # [senses], below 1: decides between equal votes only
            hits = int(is_sense[test, int(frequency.argmax())].sum())
            right[MOST_FREQUENT][0] += hits
            right[MOST_FREQUENT][1] += hits
            for feature, vectors in units.items():
                for way, answers in enumerate(_answers(vectors, train, test, known, frequency)):
                    right[feature][way] += int(is_sense[test, answers].sum())
        n = len(instances)
        runs += [SenseRun(feature, seed, nearest / n, averaged / n) for feature, (nearest, averaged) in right.items()]
    return runs


def _answers(vectors: Array, train: Array, test: Array, known: Array, frequency: Array) -> tuple[Array, Array]:
    """The sense [test] by nearest occurrence, and by nearest mean vector of a sense."""
    cosines = vectors[test] @ vectors[train].T  # [test, train]
    nearest = (cosines >= cosines.max(axis=1, keepdims=True) - TIE).astype(np.float32)
    votes = nearest @ known + frequency  # [test, senses]
    means = unit(known.T @ vectors[train])  # [senses, 2p]; a sense that training lacks has zeros
    similar = vectors[test] @ means.T  # [test, senses]
    similar[:, known.sum(axis=0) == 0] = -np.inf
    close = similar >= similar.max(axis=1, keepdims=True) - TIE
    return votes.argmax(axis=1), np.where(close, 1 + frequency, 0).argmax(axis=1)
