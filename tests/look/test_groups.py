"""Kept fields in the explorer: groups of sentences and tokens by their values."""

from pathlib import Path

import pytest

import elmo_store
from elmo_store.figures.groups import values_at
from pipeline.cli.label_files import LabelError
from pipeline.explore.labels import grouped, read_labels
from pipeline.explore.service import BadRequestError, ExplorerService
from pipeline.main import main
from tests.pipeline.conftest import store_of_records

RECORDS = [
    {"text": ["the", "bank", "lends"], "topic": "money", "tags": ["D", "N", "V"], "score": 0.5},
    {"text": ["a", "bank", "of", "sand"], "topic": "<b>river</b>", "tags": ["D", "N", "P", "N"], "score": 0.25},
    {"text": ["no", "bank"], "topic": "money"},
    {"text": [], "topic": None, "tags": []},
]  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "boundaries"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> elmo_store.Store:
    return store_of_records(tmp_path_factory.mktemp("groups"), RECORDS, tiny_model, *["--boundaries"] * request.param)


def test_a_word_s_occurrences_are_grouped_by_a_field(store: elmo_store.Store) -> None:
    service = ExplorerService(store)
    service.wait()
    assert service.about()["fields"] == ["topic", "tags"]
    assert service.sentence(0)["fields"] == {"topic": "money", "tags": "['D', 'N', 'V']", "score": "0.5"}
    assert service.word("bank", [1, 1, 1])["maps"][0]["groups"] == ["cluster 1"]
    for field, labels in (("topic", ["money", "<b>river</b>", "money"]), ("tags", ["N", "N", None])):
        answer = service.word("bank", [1, 1, 1], field)
        assert answer["labels"] == labels
        assert [point["id"] for point in answer["points"]] == [store.sentence(i).id for i in range(3)]
        for one in answer["maps"]:
            assert [one["groups"][group] for group in one["group"]] == [label or "unlabelled" for label in labels]
            assert one["unlabelled"] == (1 if None in labels else None)
    found = service.neighbours("1", [1, 1, 1], "tags")["mix"]
    tags = [sentence.fields["tags"] or [] for sentence in store.sentences()]
    assert [one["label"] for one in found] == [(tags[one["sentence"]] + [None] * 4)[one["token"]] for one in found]
    moved, still = (
        service.word("bank", s, "topic", layers=layers)["maps"] for s, layers in (([0, 0, 1], False), ([1] * 3, True))
    )
    assert moved[0]["silhouette"] == still[3]["silhouette"]
    assert still[1]["silhouette"] is still[1]["accuracy"] is still[1]["explained"] is None  # layer 0: one point
    with pytest.raises(BadRequestError, match="no groups can be made by 'score'"):
        service.word("bank", [1, 1, 1], "score")


def labels(folder: Path, text: str) -> str:
    (folder / "labels.tsv").write_text(text, encoding="utf-8")
    return str(folder / "labels.tsv")


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        (
            "\ufeffid\tsense\tby hand\r\n{2}\tsteep\tyes\r\n{0}\tmoney\t\r\n",
            ["sense", "by hand"],
            ["money", "unlabelled", "steep"],
        ),
        (
            "sentence\ttoken\tsense\n1\t1\triver\n1\t0\tother\n\n0\t2\tverb\n0\t1\tmoney\n",
            ["sense"],
            ["money", "river", "unlabelled"],
        ),
    ],
    ids=["sentences", "tokens"],
)
def test_a_word_s_occurrences_are_grouped_by_labels_from_a_file(
    store: elmo_store.Store, tmp_path: Path, text: str, names: list[str], expected: list[str]
) -> None:
    file = labels(tmp_path, text.format(*(sentence.id for sentence in store.sentences())))
    service = ExplorerService(store, labels=read_labels(file, store))
    service.wait()
    assert service.about()["fields"] == ["topic", "tags", *names]
    for one in service.word("bank", [1, 1, 1], "sense")["maps"]:
        assert [one["groups"][group] for group in one["group"]] == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: it must name the columns"),
        ("word\tsense\n", "line 1: it must name the columns"),
        ("id\ttoken\n", "line 1: it must name the columns"),
        ("id\t \n", "line 1: column 2 has no name"),
        ("id\ta\ta\n", "line 1: 'a' is the name of another column"),
        ("id\ttopic\n", "line 1: 'topic' is the name of a field"),
        ("id\tsense\n\n", "no labels after the first line"),
        ("sentence\tsense\n0\tx\ty\n", "line 2: 3 columns between tabs, the first line names 2"),
        ("sentence\tsense\n0\tx\n\n4\tx\n", "line 4: '4' is not a sentence's number: a whole number from 0 to 3"),
        ("sentence\tsense\n²\tx\n", "line 2: '²' is not a sentence's number"),
        ("id\tsense\nnobody\tx\n", "line 2: no sentence of .* has the id 'nobody'"),
        ("sentence\ttoken\tsense\n0\t2\tx\n0\t3\tx\n", "line 3: '3' is not a token's number in this sentence: .* 0 to 2"),
        ("sentence\ttoken\tsense\n0\t2\tx\n1\t0\tx\n0\t2\ty\n", "line 4: labelled before, by line 2"),
    ],
)
def test_labels_that_do_not_fit_are_told_by_file_and_line(store: elmo_store.Store, tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(LabelError, match=f"labels.tsv(, |: ).*{said}"):
        read_labels(labels(tmp_path, text), store)


def test_labels_of_an_id_that_several_sentences_have_or_in_another_encoding(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "same", "text": ["a", "bank"]}\n' * 2)
    command = ["embed", str(tmp_path / "a.jsonl"), "--output", str(tmp_path / "store"), "--model", str(tiny_model), "--quiet"]
    assert main([*command, "--id-field", "id"]) == 0
    store = elmo_store.open(tmp_path / "store")
    with pytest.raises(LabelError, match=r"line 2: 2 sentences have the id 'same.*': name them by number"):
        read_labels(labels(tmp_path, f"id\tsense\n{store.sentence(0).id}\tx\n"), store)
    (tmp_path / "latin.tsv").write_bytes(b"sentence\tsense\n0\tcaf\xe9\n")
    with pytest.raises(LabelError, match=r"latin\.tsv, after line 0: not UTF-8"):
        read_labels(str(tmp_path / "latin.tsv"), store)


def test_a_bad_file_of_labels_ends_the_command(
    store: elmo_store.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, said in (
        (labels(tmp_path, "sentence\tsense\n9\tx\n"), "line 2: '9'"),
        (str(tmp_path / "none.tsv"), "no such file"),
    ):
        assert main(["explore", store.url, "--labels", file]) == 3
        assert said in capsys.readouterr().err


def test_values_of_tokens_stand_at_their_rows(store: elmo_store.Store) -> None:
    edge = int(store.boundaries)
    assert values_at(store, "tags", [1, 0, 2], [3 + edge, 0 + edge, 1 + edge]) == ["N", "D", None]
    if edge:
        assert values_at(store, "tags", [0, 0], [0, 4]) == [None, None]


def test_more_values_than_colours_are_one_group_and_unlabelled_ones_another() -> None:
    found = grouped([*"aaabbc", "d", None], 3)
    assert found.names == ["a", "b", "2 others", "unlabelled"]
    assert found.group.tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert (found.others, found.unlabelled) == (2, 3)
    rows, label = found.labelled()  # scores are of all labels
    assert (rows.tolist(), label.tolist()) == ([0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 2, 3])
    assert grouped([*"abc"], 3).names == ["a", "b", "c"]
