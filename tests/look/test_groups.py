"""Kept fields in the explorer and the report: groups of sentences and tokens by their values."""

import json
from pathlib import Path

import pytest

import elmo_store
from elmo_store.figures.gather import gather
from elmo_store.figures.groups import divided, values_at
from pipeline.explore.service import BadRequestError, Service
from pipeline.main import main
from pipeline.report.page import page

RECORDS = [
    {"text": ["the", "bank", "lends"], "topic": "money", "tags": ["D", "N", "V"], "score": 0.5},
    {"text": ["a", "bank", "of", "sand"], "topic": "<b>river</b>", "tags": ["D", "N", "P", "N"], "score": 0.25},
    {"text": ["no", "bank"], "topic": "money"},
    {"text": [], "topic": None, "tags": []},
]  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "boundaries"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> elmo_store.Store:
    folder = tmp_path_factory.mktemp("groups")
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    command = ["embed", str(folder / "a.jsonl"), "--output", str(folder / "store"), "--model", str(tiny_model), "--quiet"]
    assert main([*command, "--keep-fields", "all", *(["--boundaries"] if request.param else [])]) == 0
    return elmo_store.open(folder / "store")


def test_a_report_has_a_table_of_each_field_s_groups(store: elmo_store.Store) -> None:
    figures = gather(store)
    topic, tags = figures.groups  # no groups by a number with a fraction
    assert topic.groups == (("money", 2, 5), ("<b>river</b>", 1, 4), ("–", 1, 0))
    assert tags.groups == (("N", 2, 3), ("D", 2, 2), ("P", 1, 1), ("V", 1, 1))
    assert (topic.n_values, topic.n_sentences) == (3, 4)
    report = page(figures)
    assert "topic (string), of 4 sentences" in report
    assert "tags (string, one a token), of 4 sentences" in report
    assert "&lt;b&gt;river&lt;/b&gt;" in report
    assert "<b>river</b>" not in report


def test_a_word_s_occurrences_are_grouped_by_a_field(store: elmo_store.Store) -> None:
    service = Service(store)
    service.wait()
    assert service.about()["fields"] == ["topic", "tags"]
    assert service.sentence(0)["fields"] == {"topic": "money", "tags": "['D', 'N', 'V']", "score": "0.5"}
    assert service.word("bank", [1, 1, 1])["maps"][0]["groups"] == ["cluster 1"]
    for field, labels in (("topic", ["money", "<b>river</b>", "money"]), ("tags", ["N", "N", "–"])):
        for one in service.word("bank", [1, 1, 1], field)["maps"]:
            assert [one["groups"][group] for group in one["group"]] == labels
            assert -1 <= one["of_labels"] <= 1
    moved = service.word("bank", [0, 0, 1], "tags", layers=False)["maps"]
    assert moved[0]["of_labels"] == service.word("bank", [1, 1, 1], "tags")["maps"][3]["of_labels"]
    with pytest.raises(BadRequestError, match="no groups can be made by 'score'"):
        service.word("bank", [1, 1, 1], "score")


def test_values_of_tokens_stand_at_their_rows(store: elmo_store.Store) -> None:
    edge = int(store.boundaries)
    assert values_at(store, "tags", [1, 0, 2], [3 + edge, 0 + edge, 1 + edge]) == ["N", "D", "–"]
    if edge:
        assert values_at(store, "tags", [0, 0], [0, 4]) == ["–", "–"]


def test_more_values_than_colours_are_one_group() -> None:
    names, groups = divided([*"aaabbc", "d"], 3)
    assert names == ["a", "b", "2 others"]
    assert groups.tolist() == [0, 0, 0, 1, 1, 2, 2]
