"""Scores of labelled occurrences, and the suggested mix, against scikit-learn and plain NumPy."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import elmo_store
from elmo_store.figures.vectors import unit
from elmo_store.mixing.scalar_mix import layers_of_states
from pipeline.explore.scores import accuracy, scored_mixes, simplex, suggestion
from pipeline.explore.service import ExplorerService
from pipeline.main import main
from tests.look.conftest import one_nearest


def layers_of_noise(
    label: npt.NDArray[np.int64], signals: tuple[float, ...]
) -> list[npt.NDArray[np.float32]]:
    """Layers whose labels are told apart by this much each, by channels that the layers do not share."""
    random = np.random.default_rng(1)
    return [
        (
            random.standard_normal((len(label), 32))
            + signal * random.standard_normal((label.max() + 1, 32))[label]
        ).astype(np.float32)
        for signal in signals
    ]


def test_each_mix_is_scored_as_by_hand() -> None:
    label = np.random.default_rng(0).integers(0, 3, 60)
    layers = layers_of_noise(label, (0.2, 0.5, 0.5))
    scores = scored_mixes(layers, label)
    by_hand = [
        one_nearest(sum(share * layer for share, layer in zip(s, layers, strict=True)), label)
        for s in simplex(3)
    ]
    assert scores.mixes == list(simplex(3))
    assert len(by_hand) == 66
    assert all(sum(s) == pytest.approx(1) for s in scores.mixes)
    assert scores.accuracy.tolist() == by_hand
    assert len(set(simplex(5))) == 210  # coarser, for more layers
    assert accuracy(np.ones((9, 9), np.float32), label[:9]) is None  # one point


def test_held_out_occurrences_are_scored_as_scikit_learn_does() -> None:
    nearest = pytest.importorskip("sklearn.neighbors")
    label = np.random.default_rng(0).integers(0, 3, 60)
    layers = layers_of_noise(label, (0.2, 0.5, 0.5))
    scores = scored_mixes(layers, label)
    mix = scores.mixes.index((0.1, 0.4, 0.5))
    mixed = 0.1 * layers[0] + 0.4 * layers[1] + 0.5 * layers[2]
    held_out = ~scores.training
    assert held_out.sum(axis=0).tolist() == [4] * 60  # each occurrence once in each repeat
    for training, test, correct in zip(scores.training, held_out, scores.correct[mix], strict=True):
        classifier = nearest.KNeighborsClassifier(1, metric="cosine", algorithm="brute")
        predicted = classifier.fit(mixed[training], label[training]).predict(mixed[test])
        assert (predicted == label[test]).tolist() == correct[test].tolist()


def test_no_mix_is_suggested_where_one_layer_is_as_good() -> None:
    label = np.random.default_rng(0).integers(0, 4, 200)
    for signals in ((0.0, 0.0, 0.0), (0.0, 0.0, 0.6)):
        layers = layers_of_noise(label, signals)
        found = suggestion(layers, label)
        in_sample = scored_mixes(layers, label).accuracy
        assert in_sample.max() > found.layer_accuracy  # which is what "best" used to be
        assert not found.is_mix
        assert max(found.s) == 1
    assert found.s == (0.0, 0.0, 1.0)
    assert found.layer == 2


def test_a_mix_is_suggested_where_it_is_better_than_every_layer() -> None:
    label = np.random.default_rng(0).integers(0, 4, 200)
    found = suggestion(layers_of_noise(label, (0.5, 0.5, 0.5)), label)
    assert found.is_mix
    assert min(found.s) > 0
    assert found.gain == pytest.approx(found.mix_accuracy - found.layer_accuracy)
    assert found.gain > 2 * found.error > 0
    assert found.majority == np.bincount(label).max() / 200


def test_nothing_is_suggested_without_enough_different_labels_or_vectors() -> None:
    label = np.random.default_rng(0).integers(0, 3, 60)
    layers = layers_of_noise(label, (0.5, 0.5))
    same = np.ones((60, 32), np.float32)
    with pytest.raises(ValueError, match="same vector"):
        suggestion([same], label)
    with pytest.raises(ValueError, match="fewer than two labels"):
        suggestion(layers, np.zeros(60, np.int64))
    with pytest.raises(ValueError, match="19 labelled occurrences are not enough"):
        suggestion([layer[:19] for layer in layers], label[:19])
    # layer 0 of a word tells nothing apart by itself, but changes mixes with other layers
    assert suggestion([same, *layers], label).layer != 0


@pytest.mark.slow
def test_the_scores_of_a_field_are_those_of_scikit_learn_over_its_real_labels(
    senses_store: Path,
) -> None:
    metrics, choice = (
        pytest.importorskip("sklearn.metrics"),
        pytest.importorskip("sklearn.model_selection"),
    )
    nearest = pytest.importorskip("sklearn.neighbors")
    store = elmo_store.open(senses_store)
    service = ExplorerService(store)
    service.wait()
    answer = service.word("bank", [1, 2, 3], "sense")
    labels = np.array([label or "" for label in answer["labels"]])
    assert len(set(labels)) == 13  # twelve labels and none: more than groups
    assert len(answer["maps"][0]["groups"]) == 10
    assert answer["maps"][0]["groups"][-2:] == ["4 others", "unlabelled"]
    rows = np.array([point["row"] for point in answer["points"]])[labels != ""]
    real = labels[labels != ""]
    layers = layers_of_states(store.read(rows=rows).astype(np.float32))
    views = {name: np.tensordot(layers, np.array(s, np.float32) / sum(s), (1, 0)) for name, s in
             (("the mix", [1, 2, 3]), ("layer 1", [0, 1, 0]), ("layer 2", [0, 0, 1]))}  # fmt: skip
    for one in answer["maps"]:
        if one["name"] not in views:
            assert one["silhouette"] is one["accuracy"] is None
            continue
        vectors = unit(views[one["name"]])
        assert one["silhouette"] == pytest.approx(
            metrics.silhouette_score(vectors, real, metric="cosine"), abs=1e-4
        )
        classifier = nearest.KNeighborsClassifier(1, metric="cosine", algorithm="brute")
        right = choice.cross_val_score(classifier, vectors, real, cv=choice.LeaveOneOut())
        assert one["accuracy"] == pytest.approx(right.mean())


def test_a_word_without_labels_of_two_kinds_gets_no_suggestion(senses_store: Path) -> None:
    service = ExplorerService(elmo_store.open(senses_store))
    service.wait()
    for word, by, said in (
        ("bank", "none", "no groups can be made by 'none'"),
        ("bank", "topic", "fewer than two labels"),
        ("zebra", "sense", "does not occur"),
    ):
        with pytest.raises(ValueError, match=said):
            service.suggest(word, by)


def test_the_command_suggests_weights_that_mix_takes(
    senses_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explore", str(senses_store), "--suggest", "bank", "--by", "sense"]) == 0
    printed = capsys.readouterr()
    service = ExplorerService(elmo_store.open(senses_store))
    service.wait()
    suggested = service.suggest("bank", "sense")
    note = f"bank by sense: {suggested['said']}"
    assert json.loads(printed.out) == {"s": list(suggested["s"]), "gamma": 1.0, "note": note}
    assert printed.err == f"{suggested['said']}\n"
    assert "on held-out occurrences" in printed.err
    assert "on 216 labelled occurrences by 5-fold cross-validation" in printed.err
    (tmp_path / "weights.json").write_text(printed.out)
    mix = [
        "mix",
        str(senses_store),
        "--weights",
        str(tmp_path / "weights.json"),
        "--output",
        str(tmp_path / "mixed"),
        "--quiet",
    ]
    assert main(mix) == 0
    assert main(["explore", str(senses_store), "--suggest", "zebra", "--by", "sense"]) == 3
    assert "does not occur" in capsys.readouterr().err
    assert main(["explore", str(senses_store), "--suggest", "bank"]) == 2
    assert "--by" in capsys.readouterr().err
