"""What the explorer computes: neighbours against brute force, text search, the index, what it says of a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store.errors import StoreReplacedError
from elmo_store.figures.gather import VectorSample, sample_vectors
from pipeline.explore import neighbours
from pipeline.explore.neighbours import Sample, query_layers, two_groups
from pipeline.explore.service import BadRequestError, OwnSentenceError, Service, embed_own
from pipeline.jobs.output import clear
from tests.store.support import make_store


def made_sample(n: int, n_states: int, width: int, seed: int) -> VectorSample:
    states = np.random.default_rng(seed).standard_normal((n, n_states, width)).astype(np.float16)
    rows = np.arange(n, dtype=np.int64)
    return VectorSample(rows, states, tuple(f"w{i % 7}" for i in range(n)), rows // 5, rows % 5, n)


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
    s = data.draw(st.lists(shares, min_size=layers + 1, max_size=layers + 1).filter(lambda one: sum(one) > 0))
    row = data.draw(st.integers(0, n - 1))
    sample = Sample(made, "states")
    assert np.allclose(sample.layers_at(row), query_layers(made.states[row], "states"))
    mixed = mixed_by_hand(made.states, s)
    sizes = np.linalg.norm(mixed, axis=1)
    cosines = mixed @ mixed[row] / np.maximum(sizes * sizes[row], 1e-12)
    plain = sizes > 1e-2  # where terms all but cancel, float32 has few digits left
    assert np.allclose(sample.cosines(sample.layers_at(row), s)[plain], cosines[plain], atol=5e-3)
    found = sample.nearest(sample.layers_at(row), s, 5, row)
    assert len(found) == min(5, n - 1)
    assert row not in [one.row for one in found]
    assert [one.cosine for one in found] == sorted((one.cosine for one in found), reverse=True)
    assert np.allclose(sample.mixed(np.arange(n), s), mixed, atol=5e-2)


def test_two_groups_are_told_apart() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((30, 8)) * 0.1 + np.eye(8)[0], random.standard_normal((20, 8)) * 0.1 + np.eye(8)[1]
    groups = two_groups(np.concatenate([a, b]).astype(np.float32))
    assert len(set(groups[:30])) == 1
    assert len(set(groups[30:])) == 1
    assert groups[0] != groups[-1]
    assert two_groups(np.ones((1, 4), np.float32)).tolist() == [0]


def test_a_store_that_is_replaced_while_it_is_explored_is_said_to_be(tmp_path: Path) -> None:
    made = make_store(str(tmp_path / "store"))
    service = Service(elmo_store.open(tmp_path / "store"))
    service.wait()
    before = service.sentence(6)
    clear(made.root)
    make_store(str(tmp_path / "store"), values=lambda n, states: np.zeros((n, states, 8)))
    assert service.sentence(6) == before  # what it has at hand stays as it was
    for words in ("the", "id:doc.txt:1"):
        with pytest.raises(StoreReplacedError, match="open it again"):
            service.search(words)


@pytest.mark.parametrize("form", ["zarr", "parquet"])
def test_the_index_finds_what_exact_search_finds(tmp_path: Path, form: str) -> None:
    make_store(str(tmp_path / "store"), lengths=(40,) * 60, parts=(60,), forms=(form,), shard_rows=512, channels=16)
    store = elmo_store.open(tmp_path / "store")
    assert neighbours.open_index(store) is None
    assert neighbours.build(store)["rows"] == 2400
    index = neighbours.open_index(store)
    assert index is not None
    sample = Sample(sample_vectors(store), "states")
    same = total = 0
    for row in range(0, 2400, 240):
        for s in ([1.0, 0, 0], [0, 1.0, 0], [0.2, 0.5, 0.3]):
            exact = sample.nearest(sample.layers_at(row), s, 10, row)
            near = index.nearest(sample.layers_at(row), s, 10, row)
            assert row not in [one.row for one in near]
            cosines = {one.row: one.cosine for one in exact}
            assert all(abs(cosines[one.row] - one.cosine) < 0.03 for one in near if one.row in cosines)
            same += len({one.row for one in exact} & {one.row for one in near})
            total += 10
    assert same / total > 0.5  # random vectors are the hardest case: nothing is near anything


def test_an_index_of_another_store_is_refused(tmp_path: Path) -> None:
    make_store(str(tmp_path / "store"), lengths=(40,) * 6, parts=(6,))
    neighbours.build(elmo_store.open(tmp_path / "store"))
    facts = tmp_path / "store" / "indexes" / "vectors" / "facts.json"
    facts.write_text(facts.read_text().replace('"store": "', '"store": "0'))
    with pytest.raises(elmo_store.errors.StoreError, match="another store"):
        neighbours.open_index(elmo_store.open(tmp_path / "store"))


def test_text_search_takes_what_is_asked_as_text(service: Service) -> None:
    assert [hit["id"] for hit in service.search("<SCRIPT>")["hits"]] == ["bad-0:0"]
    assert service.search("' OR 1=1 --")["hits"] == []
    assert service.search("% _")["hits"] == []
    assert service.search("#0")["hits"][0]["number"] == 0
    assert service.search("id:doc-7:0")["hits"][0]["number"] == 7
    assert service.search("river")["more"]
    assert service.search("river", 30)["hits"][0]["number"] > service.search("river")["hits"][-1]["number"]
    first, second = service.search(""), service.search("", 30)
    assert [hit["number"] for hit in first["hits"]] == list(range(30))
    assert (first["more"], second["hits"][0]["number"]) == (True, 30)
    last = service.search("", 270)
    assert (last["hits"][-1]["number"], last["more"]) == (272, False)  # the refused ones after it are blank
    for wrong in ("#9999", "#x", "id:nobody"):
        with pytest.raises(BadRequestError):
            service.search(wrong)


def test_a_store_elsewhere_is_searched_and_shown(s3_url: str) -> None:
    written = make_store(f"{s3_url}/explore", lengths=(3, 7, 0, 21), parts=(2, 2))
    made = Service(elmo_store.open(f"{s3_url}/explore"))
    made.wait()
    assert [hit["number"] for hit in made.search(written.tokens[3][0])["hits"]] == [3]
    assert made.about()["sample"] == 31
    assert len(made.neighbours("5", [1, 1, 1])["mix"]) == 8


def test_a_sentence_has_norms_and_code_that_gives_its_vectors(service: Service, hostile_store: Path) -> None:
    found = service.sentence(3)
    sentence = elmo_store.open(hostile_store).sentence(3)
    layers = sentence.layers().astype(np.float32)
    assert np.allclose(found["norms"], np.linalg.norm(layers, axis=2), atol=2e-3)
    names: dict[str, Any] = {"S": [0.2, 0.3, 0.5], "GAMMA": 2.0}
    exec(found["code"], names)
    assert np.allclose(names["vectors"], elmo_store.ScalarMix(s=[0.2, 0.3, 0.5], gamma=2.0)(states=sentence.read()))


def test_a_sentence_of_ones_own_needs_the_store_s_model(service: Service, hostile_store: Path) -> None:
    manifest = elmo_store.open(hostile_store).manifest
    with pytest.raises(OwnSentenceError, match="can't be loaded here"):  # a file that was given by its path has only a name now
        embed_own("the bank", manifest)
    with pytest.raises(OwnSentenceError, match="too many"):
        service.embed("x " * 2000)


def test_what_makes_no_sense_is_told(service: Service) -> None:
    wrong = [("x", [1.0, 0, 0]), ("99999999", [1.0, 0, 0]), ("own:1", [1.0, 0, 0]), ("1", [0.0, 0, 0]), ("1", [1.0])]
    for token, s in (*wrong, ("1", [float("nan")] * 3)):
        with pytest.raises(BadRequestError):
            service.neighbours(token, s)
    with pytest.raises(BadRequestError, match="no index"):
        service.neighbours("1", None, approximate=True)
    with pytest.raises(BadRequestError, match="does not occur"):
        service.word("zebra", [1, 1, 1])


def test_a_mixed_store_has_its_sets_for_layers(mixed_store: Path) -> None:
    made = Service(elmo_store.open(mixed_store))
    made.wait()
    assert made.about()["layers"] == ["ner", "pos"]
    answer = made.neighbours("5", [1, 1])
    assert [layer["name"] for layer in answer["layers"]] == ["ner", "pos"]
    assert answer["mix"] is None
    assert made.word("river", [])["points"]
