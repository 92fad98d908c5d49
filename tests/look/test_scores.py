"""Scores of labelled occurrences, and the suggested mix, against scikit-learn and plain NumPy."""

import json
from pathlib import Path

import numpy as np
import pytest

import elmo_store
from elmo_store.figures.vectors import unit
from elmo_store.mixing.scalar_mix import layers_of_states
from pipeline.explore.scores import accuracy, scored_mixes, simplex
from pipeline.explore.service import ExplorerService
from pipeline.main import main
from tests.look.conftest import one_nearest


def test_the_suggested_mix_is_the_best_of_the_grid() -> None:
    random = np.random.default_rng(0)
    label = random.integers(0, 3, 60)
    centres = random.standard_normal((3, 3, 8))
    layers = [
        (random.standard_normal((60, 8)) * noise + centres[k][label]).astype(np.float32)
        for k, noise in enumerate((3, 1, 1))
    ]
    found = scored_mixes(layers, label)
    by_hand = {
        s: one_nearest(sum(share * layer for share, layer in zip(s, layers, strict=True)), label)
        for s in simplex(3)
    }
    assert len(by_hand) == 66
    assert all(sum(s) == pytest.approx(1) for s in by_hand)
    assert found == by_hand
    assert len(set(simplex(5))) == 210  # coarser, for more layers
    assert accuracy(np.ones((9, 9), np.float32), label[:9]) is None  # one point
    same = np.ones((60, 8), np.float32)
    assert (
        len(scored_mixes([same, *layers[1:]], label)) == 65
    )  # layer 0 of a word tells nothing apart by itself
    for wrong, said in (([same], "same vector"), ([layers[0]], "fewer than two labels")):
        with pytest.raises(ValueError, match=said):
            scored_mixes(wrong, label if wrong[0] is same else np.zeros(60, np.int64))


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
    suggestion = service.suggest("bank", "sense")
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
    assert suggestion["accuracy"] == one_nearest(
        np.tensordot(layers, np.array(suggestion["s"], np.float32), (1, 0)), real
    )


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
    best = service.suggest("bank", "sense")
    assert json.loads(printed.out) == {"s": list(best["s"]), "gamma": 1.0}
    assert f"1-NN accuracy {best['accuracy']:.3f}" in printed.err
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
