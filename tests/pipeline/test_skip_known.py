"""`embed --into --skip-known`: a member has only the sentences that its collection did not have when the job began."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import elmo_store
from elmo_store import collecting
from elmo_store.format import layout
from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.pipeline.test_collections import embed_into, lines_of, write
from tests.store.deep import all_faults
from tests.store.support import version_of
from tests.store.test_collection import opened


def member_texts(name: Path) -> list[tuple[str, ...]]:
    """Tokens of the newest member's sentences."""
    members = version_of(opened(name)).members
    store = elmo_store.open(name / layout.member(members[-1].name))
    return [store.sentence(number).tokens for number in range(len(store))]


@pytest.mark.slow
def test_sentences_are_left_out_by_their_tokens(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, first = tmp_path / "all", write(tmp_path / "1.txt", lines_of(0, 40))
    overlapping = tmp_path / "2.txt"
    lines = [
        "never seen w1",
        *lines_of(0, 40),
        "nor this",
        "\udcff",
        "nor this",
        "",
    ]  # one of them is no UTF-8
    overlapping.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    assert (
        embed_into(name, tiny_model, first, "--skip-known") == Exit.COMPLETE
    )  # there is no collection yet
    assert member_texts(name) == [tuple(line.split()) for line in lines_of(0, 40)]
    capsys.readouterr()
    assert embed_into(name, tiny_model, str(overlapping), "--skip-known") == Exit.COMPLETE
    blank = [()] * lines_of(0, 40).count("")
    assert member_texts(name) == [
        ("never", "seen", "w1"),
        *blank,
        ("nor", "this"),
        (),
        ("nor", "this"),
    ]
    said = capsys.readouterr().out
    assert f"{40 - len(blank)} sentences left out: the collection has them already" in said
    assert "in it twice now" not in said
    assert "1 record refused" in said
    assert all_faults(opened(name)) == []


def records(path: Path, texts: dict[str, str]) -> str:
    return write(
        path, [json.dumps({"key": key, "text": text.split()}) for key, text in texts.items()]
    )


@pytest.mark.slow
def test_sentences_are_left_out_by_their_ids_where_there_are_any(
    tmp_path: Path, tiny_model: Path
) -> None:
    name = tmp_path / "all"

    def embed(path: str) -> int:
        command = [
            "embed",
            path,
            "--into",
            str(name),
            "--model",
            str(tiny_model),
            "--id-field",
            "key",
            "--skip-known",
        ]
        return main([*command, "--quiet"])

    assert embed(records(tmp_path / "1.jsonl", {"a": "w1 w2", "b": "w3"})) == Exit.COMPLETE
    assert (
        embed(records(tmp_path / "2.jsonl", {"b": "w3 corrected", "c": "w1 w2"})) == Exit.COMPLETE
    )
    assert member_texts(name) == [("w1", "w2")]  # another sentence of the same words
    assert opened(name)._view.find_ids(["a", "b", "c"]) == [[0], [1], [2]]
    (tmp_path / "ids").write_text("b\n")
    assert main(["remove", str(name), "--ids", str(tmp_path / "ids")]) == 0
    assert (
        embed(records(tmp_path / "3.jsonl", {"b": "w3 corrected", "c": "w1 w2"})) == Exit.COMPLETE
    )
    assert member_texts(name) == [("w3", "corrected")]  # what was removed is not known


@pytest.mark.slow
def test_a_job_that_is_resumed_leaves_out_what_it_left_out_before(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, first = tmp_path / "all", write(tmp_path / "1.txt", lines_of(0, 20))
    both, other = (
        write(tmp_path / "2.txt", lines_of(0, 40)),
        write(tmp_path / "3.txt", lines_of(20, 5)),
    )
    assert embed_into(name, tiny_model, first) == Exit.COMPLETE

    def stop(*_: Any) -> None:
        raise RuntimeError("stopped by the test")

    with monkeypatch.context() as patch:
        patch.setattr("transforms.stages.finish.finish_job", stop)
        assert embed_into(name, tiny_model, both, "--skip-known") == Exit.INCOMPLETE
    before = {folder.name for folder in (name / layout.MEMBERS).iterdir()}
    assert embed_into(name, tiny_model, other) == Exit.COMPLETE  # meanwhile
    (unfinished,) = before - {member.name for member in version_of(opened(name)).members}
    root = Root(str(name / layout.member(unfinished)))
    marker = read_marker(root, ShardMarker, 0)
    assert marker is not None
    assert embed_into(name, tiny_model, both, "--skip-known") == Exit.COMPLETE
    resumed = read_marker(root, ShardMarker, 0)
    assert resumed is not None
    assert resumed.stats["finished"] == marker.stats["finished"]  # the shard was kept
    assert {folder.name for folder in (name / layout.MEMBERS).iterdir()} > before
    assert [member.name for member in version_of(opened(name)).members][-1] == unfinished
    blank = [()] * lines_of(0, 20).count("")
    assert member_texts(name) == blank + [tuple(line.split()) for line in lines_of(20, 20)]


def overtaken_by(
    other: Callable[[], int], work: Callable[[], int], patch: pytest.MonkeyPatch
) -> int:
    """Exit code of ``work``, while which ``other`` runs, after the job of ``work`` and before its member is added."""
    real = collecting.add

    def add_after_the_other(*arguments: Any, **options: Any) -> Any:
        patch.setattr(collecting, "add", real)
        assert other() == Exit.COMPLETE
        return real(*arguments, **options)

    patch.setattr(collecting, "add", add_after_the_other)
    return work()


@pytest.mark.slow
def test_two_commands_at_once_add_a_shared_sentence_once(
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, first = tmp_path / "all", write(tmp_path / "0.txt", ["w0"])
    assert embed_into(name, tiny_model, first) == Exit.COMPLETE
    texts = [
        write(tmp_path / "1.txt", ["shared w1", "of one", "", "shared w2"]),
        write(tmp_path / "2.txt", ["of two", "shared w2", "shared w1"]),
    ]
    works = [partial(embed_into, name, tiny_model, text, "--skip-known") for text in texts]
    capsys.readouterr()
    assert overtaken_by(works[1], works[0], monkeypatch) == Exit.COMPLETE
    assert "2 sentences left out: another command added them" in capsys.readouterr().out
    store = opened(name)
    tokens = [" ".join(sentence.tokens) for sentence in store]
    assert tokens == ["w0", "of two", "shared w2", "shared w1", "of one", ""]
    assert all_faults(store) == []
    assert main(["compact", str(name)]) == Exit.COMPLETE
    assert [" ".join(sentence.tokens) for sentence in opened(name)] == tokens


@pytest.mark.slow
def test_two_commands_at_once_add_a_shared_id_once(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tmp_path / "all"

    def embed(path: str) -> int:
        command = ["embed", path, "--into", str(name), "--model", str(tiny_model)]
        return main([*command, "--id-field", "key", "--skip-known", "--quiet"])

    one = records(tmp_path / "1.jsonl", {"a": "w1 w2", "b": "w3", "1.jsonl:7x": "w4"})
    two = records(tmp_path / "2.jsonl", {"b": "w3 corrected", "c": "w1 w2"})
    assert embed(records(tmp_path / "0.jsonl", {"first": "w0"})) == Exit.COMPLETE
    assert overtaken_by(partial(embed, two), partial(embed, one), monkeypatch) == Exit.COMPLETE
    ids = ["a", "b", "c", "1.jsonl:7x"]
    assert opened(name)._view.find_ids(ids) == [[3], [1], [2], [4]]


@pytest.mark.slow
def test_a_member_whose_sentences_were_all_added_meanwhile_is_removed(
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, first = tmp_path / "all", write(tmp_path / "0.txt", ["w0"])
    assert embed_into(name, tiny_model, first) == Exit.COMPLETE
    texts = [write(tmp_path / "1.txt", ["w1", "w2"]), write(tmp_path / "2.txt", ["w2", "w1", "w3"])]
    works = [partial(embed_into, name, tiny_model, text, "--skip-known") for text in texts]
    assert overtaken_by(works[1], works[0], monkeypatch) == Exit.COMPLETE
    assert "nothing new, so no version was added" in capsys.readouterr().out
    assert len(list((name / layout.MEMBERS).iterdir())) == 2


@pytest.mark.slow
def test_nothing_new_adds_no_member(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, first = tmp_path / "all", write(tmp_path / "1.txt", lines_of(0, 20))
    assert embed_into(name, tiny_model, first) == Exit.COMPLETE
    names = sorted(name.rglob("*"))
    known = write(tmp_path / "2.txt", lines_of(5, 10))
    for _ in range(2):
        capsys.readouterr()
        assert embed_into(name, tiny_model, known, "--skip-known") == Exit.COMPLETE
        assert f"{name}: nothing new, so no version was added" in capsys.readouterr().out
        assert sorted(name.rglob("*")) == names
    assert main(["embed", known, "--output", str(tmp_path / "x"), "--skip-known"]) == Exit.BAD_USAGE
    assert "--skip-known compares with a collection: give --into NAME" in capsys.readouterr().err


@pytest.mark.slow
def test_a_member_that_compact_left_without_tokens_stays(tmp_path: Path, tiny_model: Path) -> None:
    name, text = tmp_path / "all", write(tmp_path / "1.txt", lines_of(0, 5))
    assert embed_into(name, tiny_model, text, "--skip-known") == Exit.COMPLETE
    (tmp_path / "ids").write_text(
        "".join(f"{s.id}\n" for s in opened(name).sentences() if s.tokens)
    )
    assert main(["remove", str(name), "--ids", str(tmp_path / "ids")]) == Exit.COMPLETE
    assert main(["compact", str(name)]) == Exit.COMPLETE
    assert embed_into(name, tiny_model, text, "--skip-known") == Exit.COMPLETE
    assert all_faults(opened(name)) == []
