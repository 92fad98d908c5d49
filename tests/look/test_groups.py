"""Kept fields in the explorer: groups of sentences and tokens by their values."""

from pathlib import Path

import pytest

import elmo_store
from pipeline.explore.labels import grouped, labelled, values_at
from pipeline.explore.service import ExplorerService
from tests.pipeline.conftest import store_of_records

RECORDS = [
    {"text": ["the", "bank", "lends"], "topic": "money", "tags": ["D", "N", "V"], "score": 0.5},
    {"text": ["a", "bank", "of", "sand"], "topic": "<b>river</b>", "tags": ["D", "N", "P", "N"], "score": 0.25},
    {"text": ["no", "bank"], "topic": "money"},
    {"text": [], "topic": None, "tags": []},
]  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "boundaries"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> elmo_store.Store:
    return store_of_records(
        tmp_path_factory.mktemp("groups"), RECORDS, tiny_model, *["--boundaries"] * request.param
    )


def test_a_word_s_occurrences_are_grouped_by_a_field(store: elmo_store.Store) -> None:
    service = ExplorerService(store)
    service.wait()
    assert service.about()["fields"] == ["topic", "tags"]
    assert service.sentence(0)["fields"] == {
        "topic": "money",
        "tags": "['D', 'N', 'V']",
        "score": "0.5",
    }
    assert service.word("bank", [1, 1, 1])["maps"][0]["groups"] == ["cluster 1"]
    for field, labels in (
        ("topic", ["money", "<b>river</b>", "money"]),
        ("tags", ["N", "N", None]),
    ):
        answer = service.word("bank", [1, 1, 1], field)
        assert answer["labels"] == labels
        assert [point["id"] for point in answer["points"]] == [
            store.sentence(i).id for i in range(3)
        ]
        for one in answer["maps"]:
            assert [one["groups"][group] for group in one["group"]] == [
                label or "unlabelled" for label in labels
            ]
            assert one["unlabelled"] == (1 if None in labels else None)
    found = service.neighbours("1", [1, 1, 1], "tags")["mix"]
    tags = [sentence.fields["tags"] or [] for sentence in store.sentences()]
    assert [one["label"] for one in found] == [
        (tags[one["sentence"]] + [None] * 4)[one["token"]] for one in found
    ]
    moved, still = (
        service.word("bank", s, "topic", layers=layers)["maps"]
        for s, layers in (([0, 0, 1], False), ([1] * 3, True))
    )
    assert moved[0]["silhouette"] == still[3]["silhouette"]
    assert (
        still[1]["silhouette"] is still[1]["accuracy"] is still[1]["explained"] is None
    )  # layer 0: one point
    with pytest.raises(ValueError, match="no groups can be made by 'score'"):
        service.word("bank", [1, 1, 1], "score")


def test_values_of_tokens_stand_at_their_rows(store: elmo_store.Store) -> None:
    assert values_at(store, "tags", [1, 0, 2], [3, 0, 1]) == ["N", "D", None]
    assert values_at(store, "tags", [0, 0], [-1, 3]) == [None, None]  # BOS, EOS


def test_more_values_than_colours_are_one_group_and_unlabelled_ones_another() -> None:
    labels = [*"aaabbc", "d", None]
    found = grouped(labels, 3)
    assert found["groups"] == ["a", "b", "2 others", "unlabelled"]
    assert found["group"] == [0, 0, 0, 1, 1, 2, 2, 3]
    assert (found["others"], found["unlabelled"]) == (2, 3)
    rows, label = labelled(labels)  # scores are of all labels
    assert (rows.tolist(), label.tolist()) == ([0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 2, 3])
    assert grouped([*"abc"], 3)["groups"] == ["a", "b", "c"]
