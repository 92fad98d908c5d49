"""What the explorer computes: neighbours against brute force, text search, the index, what it says of a sentence."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store.errors import StoreReplacedError
from elmo_store.figures.gather import VectorSample
from elmo_store.figures.vectors import layers_of, unit
from pipeline.explore import service as explorer
from pipeline.explore.neighbours import RowSample
from pipeline.explore.senses import silhouette, word_map
from pipeline.explore.service import ExplorerService, embed_own
from pipeline.jobs.output import clear
from pipeline.main import main
from tests.store.support import make_store


def made_sample(n: int, n_states: int, width: int, seed: int) -> VectorSample:
    states = np.random.default_rng(seed).standard_normal((n, n_states, width)).astype(np.float16)
    rows = np.arange(n, dtype=np.int64)
    return VectorSample(rows, states, tuple(f"w{i % 7}" for i in range(n)), rows // 5, rows % 5)


def mixed_by_hand(states: npt.NDArray[Any], s: list[float]) -> npt.NDArray[np.float64]:
    wide = states.astype(np.float64)
    layers = np.concatenate([wide[:, :1], wide], axis=1).reshape(len(wide), -1, 2 * wide.shape[2])
    return np.asarray(np.einsum("k,nkd->nd", np.array(s), layers))


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 6), st.integers(0, 99), st.data())
def test_neighbours_by_any_mix_are_those_of_the_mixed_vectors(
    n: int, layers: int, width: int, seed: int, data: st.DataObject
) -> None:
    made = made_sample(n, 2 * layers + 1, width, seed)
    shares = st.sampled_from([0.0, 0.25, 0.5, 1.0])
    s = data.draw(
        st.lists(shares, min_size=layers + 1, max_size=layers + 1).filter(lambda one: sum(one) > 0)
    )
    row = data.draw(st.integers(0, n - 1))
    sample = RowSample(made, "states")
    assert np.allclose(sample.layers[row], layers_of(made.states[row][None], "states")[0])
    mixed = mixed_by_hand(made.states, s)
    sizes = np.linalg.norm(mixed, axis=1)
    cosines = mixed @ mixed[row] / np.maximum(sizes * sizes[row], 1e-12)
    plain = sizes > 1e-2  # where terms all but cancel, float32 has few digits left
    assert np.allclose(sample.cosines(sample.layers[row], s)[plain], cosines[plain], atol=5e-3)
    indices, near = sample.nearest(sample.layers[row], s, 5, row)
    assert len(indices) == len(near) == min(5, n - 1)
    assert row not in indices
    assert near.tolist() == sorted(near.tolist(), reverse=True)
    assert np.allclose(near, sample.cosines(sample.layers[row], s)[indices])
    assert np.allclose(sample.mixed(np.arange(n), s), mixed, atol=5e-2)


def clusters(vectors: npt.NDArray[np.float32]) -> tuple[list[int], float | None]:
    drawn = word_map(vectors, None)
    return drawn["group"], drawn["silhouette"]


@pytest.mark.slow
def test_clusters_are_found_where_there_are_some_and_nowhere_else() -> None:
    random = np.random.default_rng(0)
    scale = np.arange(1, 65, dtype=np.float32) ** -0.5
    for n in (5, 40, 400):
        cloud = (random.standard_normal((n, 64)) * scale + 1).astype(np.float32)
        group, worth = clusters(cloud)
        assert (set(group), worth) == ({0}, None)
    which = np.arange(200) % 4 // 2 + np.arange(200) % 4 // 3  # a half, a quarter, a quarter
    group, worth = clusters(
        (random.standard_normal((200, 64)) * scale + 1 + 5 * np.eye(64)[which]).astype(np.float32)
    )
    assert {tuple(np.unique(np.array(group)[which == sense])) for sense in range(3)} == {
        (0,),
        (1,),
        (2,),
    }
    assert worth is not None
    assert worth > 0.7
    group, worth = clusters(np.ones((20, 4), np.float32))
    assert (set(group), worth) == ({0}, None)
    few = np.repeat(
        np.eye(2, 4, dtype=np.float32), (4, 3), axis=0
    )  # fewer different points than clusters that are tried
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group, worth = clusters(few)
    assert group in ([0] * 4 + [1] * 3, [0] * 7)
    assert clusters(np.ones((1, 4), np.float32)) == ([0], None)


def test_the_silhouette_is_that_of_cosine_distances() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(1)
    vectors, group = (
        unit(random.standard_normal((50, 6)).astype(np.float32)),
        random.integers(0, 3, 50),
    )
    assert silhouette(vectors, group) == pytest.approx(
        metrics.silhouette_score(vectors, group, metric="cosine"), abs=1e-5
    )
    same = np.repeat(
        unit(random.standard_normal((1, 256)).astype(np.float32)), 50, axis=0
    )  # a word's one vector in layer 0
    assert silhouette(same, group) == 0


def test_weights_whose_sum_is_infinite_are_rejected(service: ExplorerService) -> None:
    for s in ([1e308, 1e308, 1.0], [float("inf"), 1.0, 1.0]):
        with pytest.raises(ValueError, match="s needs 3 numbers"):
            service.word("river", s)
        with pytest.raises(ValueError, match="s needs 3 numbers"):
            service.neighbours("0", s)


@pytest.mark.slow
def test_the_maps_of_a_word_follow_s(service: ExplorerService) -> None:
    whole = service.word("river", [0, 1, 0])
    assert [one["name"] for one in whole["maps"]] == [
        "the mix",
        "layer 0 (x)",
        "layer 1",
        "layer 2",
    ]
    mix, x, first, _ = whole["maps"]
    assert (mix["x"], mix["group"]) == (first["x"], first["group"])
    assert (x["groups"], x["silhouette"], x["explained"], set(x["x"])) == (
        ["cluster 1"],
        None,
        None,
        {0},
    )  # one vector there
    moved = service.word("river", [0, 0, 1], layers=False)
    assert [one["name"] for one in moved["maps"]] == ["the mix"]
    assert moved["maps"][0]["x"] == whole["maps"][3]["x"] != mix["x"]
    assert len(whole["points"]) == len(mix["x"]) == whole["found"]
    assert all(point["word"] == "river" for point in whole["points"])


@pytest.mark.slow
def test_the_occurrences_shown_are_drawn_at_random_from_all(
    service: ExplorerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [point["row"] for point in service.word("river", [1, 1, 1])["points"]]
    monkeypatch.setattr(explorer, "OCCURRENCES", 50)
    found = service.word("river", [1, 1, 1])
    rows = [point["row"] for point in found["points"]]
    assert (len(rows), found["found"]) == (50, len(every))
    assert rows == sorted(rows)
    assert set(rows) < set(every)
    assert max(rows) > every[len(every) // 2]
    assert rows == [point["row"] for point in service.word("river", [1, 1, 1])["points"]]


@pytest.mark.slow
def test_layer_0_has_the_nearest_words_not_the_same_word_again(service: ExplorerService) -> None:
    row = service.word("river", [1, 1, 1])["points"][0]["row"]
    words = [one["word"] for one in service.neighbours(str(row), [1, 1, 1])["layers"][0]["found"]]
    assert len(set(words)) == len(words) == 8
    assert "river" not in words


def test_a_store_that_is_replaced_while_it_is_explored_is_said_to_be(tmp_path: Path) -> None:
    made = make_store(str(tmp_path / "store"))
    service = ExplorerService(elmo_store.open(tmp_path / "store"))
    service.wait()
    before = service.sentence(6)
    clear(made.root)
    make_store(str(tmp_path / "store"), values=lambda n, states: np.zeros((n, states, 8)))
    assert service.sentence(6) == before  # what it has at hand stays as it was
    for words in ("the", "id:doc.txt:1"):
        with pytest.raises(StoreReplacedError, match="open it again"):
            service.search(words)


def test_text_search_takes_what_is_asked_as_text(service: ExplorerService) -> None:
    assert [hit["id"] for hit in service.search("<SCRIPT>")["hits"]] == ["bad-0:0"]
    assert service.search("' OR 1=1 --")["hits"] == []
    assert service.search("% _")["hits"] == []
    assert service.search("#0")["hits"][0]["number"] == 0
    assert service.search("id:doc-7:0")["hits"][0]["number"] == 7
    assert service.search("river")["more"]
    assert (
        service.search("river", 30)["hits"][0]["number"]
        > service.search("river")["hits"][-1]["number"]
    )
    first, second = service.search(""), service.search("", 30)
    assert [hit["number"] for hit in first["hits"]] == list(range(30))
    assert (first["more"], second["hits"][0]["number"]) == (True, 30)
    last = service.search("", 270)
    assert (last["hits"][-1]["number"], last["more"]) == (
        272,
        False,
    )  # the refused ones after it are blank
    assert service.search("#MeToo")["hits"] == []  # words
    assert service.search("  river   the ")["hits"][0]["number"] >= 0
    for wrong in ("#9999", "#12345678901234567890123", "#" + "9" * 5000, "id:nobody"):
        with pytest.raises((ValueError, LookupError)):
            service.search(wrong)


def test_a_word_is_found_as_a_word_before_it_is_found_in_others(service: ExplorerService) -> None:
    hits = [hit for offset in range(0, 300, 30) for hit in service.search("The", offset)["hits"]]
    whole = ["the" in hit["tokens"] for hit in hits]
    assert set(whole) == {True, False}  # there are those with "other" only
    assert whole == sorted(whole, reverse=True)
    assert len({hit["number"] for hit in hits}) == len(hits)
    assert all("the" in " ".join(hit["tokens"]) for hit in hits)


def test_a_store_elsewhere_is_searched_and_shown(s3_url: str) -> None:
    written = make_store(f"{s3_url}/explore", lengths=(3, 7, 0, 21), parts=(2, 2))
    made = ExplorerService(elmo_store.open(f"{s3_url}/explore"))
    made.wait()
    assert [hit["number"] for hit in made.search(written.tokens[3][0])["hits"]] == [3]
    assert made.about()["sample"] == 31
    assert len(made.neighbours("5", [1, 1, 1])["mix"]) == 8


def test_a_sentence_has_norms_and_code_that_gives_its_vectors(
    service: ExplorerService, hostile_store: Path
) -> None:
    found = service.sentence(3)
    sentence = elmo_store.open(hostile_store).sentence(3)
    layers = sentence.layers().astype(np.float32)
    assert np.allclose(found["norms"], np.linalg.norm(layers, axis=2), atol=2e-3)
    names: dict[str, Any] = {"S": [0.2, 0.3, 0.5], "GAMMA": 2.0}
    exec(found["code"], names)
    assert np.allclose(
        names["vectors"], elmo_store.ScalarMix(s=[0.2, 0.3, 0.5], gamma=2.0)(states=sentence.read())
    )


@pytest.mark.slow
def test_the_code_of_a_sentence_of_ones_own_is_that_of_the_store_s_settings(tmp_path: Path) -> None:
    (tmp_path / "in.lines").write_text("the bank\n" * 600, encoding="utf-8")
    settings = [
        "--model",
        "random-small",
        "--start-state",
        "zero",
        "--dtype",
        "float32",
        "--precision",
        "bfloat16",
    ]
    assert (
        main(
            [
                "embed",
                str(tmp_path / "in.lines"),
                "--output",
                str(tmp_path / "store"),
                *settings,
                "--quiet",
            ]
        )
        == 0
    )
    store = elmo_store.open(tmp_path / "store")
    service, names = ExplorerService(store), dict[str, Any]()
    service.wait()
    exec(service.embed("the bank")["code"], names)
    assert np.array_equal(names["states"], store.sentence(0).read())


def test_a_sentence_of_ones_own_needs_the_store_s_model(
    service: ExplorerService, hostile_store: Path
) -> None:
    manifest = elmo_store.open(hostile_store).manifest
    with pytest.raises(
        ValueError, match="can't be loaded here"
    ):  # a file that was given by its path has only a name now
        embed_own("the bank", manifest)
    with pytest.raises(ValueError, match="too many"):
        service.embed("x " * 2000)


def test_what_makes_no_sense_is_told(service: ExplorerService) -> None:
    with pytest.raises(LookupError):
        service.sentence(10**22)
    wrong = [
        ("x", [1.0, 0, 0]),
        ("1" * 23, [1.0, 0, 0]),
        ("99999999", [1.0, 0, 0]),
        ("own:1", [1.0, 0, 0]),
        ("1", [0.0, 0, 0]),
        ("1", [1.0]),
    ]
    for token, s in (*wrong, ("1", [float("nan")] * 3)):
        with pytest.raises(ValueError):
            service.neighbours(token, s)
    with pytest.raises(ValueError, match="does not occur"):
        service.word("zebra", [1, 1, 1])


@pytest.mark.slow
def test_a_mixed_store_has_its_sets_for_layers(mixed_store: Path) -> None:
    made = ExplorerService(elmo_store.open(mixed_store))
    made.wait()
    assert made.about()["layers"] == ["ner", "pos"]
    answer = made.neighbours("5", [1, 1])
    assert [layer["name"] for layer in answer["layers"]] == ["ner", "pos"]
    assert answer["mix"] is None
    assert made.word("river", [])["points"]
