"""`embed --into --skip-known`: a member has only the sentences that its collection did not have when the job began."""

import json
from pathlib import Path
from typing import Any

import pytest

import elmo_store
from elmo_store.format import layout
from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.pipeline.test_collections import embed_into, lines_of, write
from tests.store.deep import all_faults
from tests.store.test_collection import opened


def member_texts(name: Path) -> list[tuple[str, ...]]:
    """Tokens of the newest member's sentences."""
    members = opened(name).version.members
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
    assert opened(name).find_ids(["a", "b", "c"]) == [[0], [1], [2]]
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
        write(tmp_path / "3.txt", lines_of(20, 20)),
    )
    assert embed_into(name, tiny_model, first) == Exit.COMPLETE

    def stop(*_: Any) -> None:
        raise RuntimeError("stopped by the test")

    with monkeypatch.context() as patch:
        patch.setattr("transforms.stages.finish.finish_job", stop)
        assert embed_into(name, tiny_model, both, "--skip-known") == Exit.INCOMPLETE
    before = {folder.name for folder in (name / layout.MEMBERS).iterdir()}
    assert embed_into(name, tiny_model, other) == Exit.COMPLETE  # meanwhile
    (unfinished,) = before - {member.name for member in opened(name).version.members}
    root = Root(str(name / layout.member(unfinished)))
    marker = read_marker(root, ShardMarker, 0)
    assert marker is not None
    assert embed_into(name, tiny_model, both, "--skip-known") == Exit.COMPLETE
    resumed = read_marker(root, ShardMarker, 0)
    assert resumed is not None
    assert resumed.stats["finished"] == marker.stats["finished"]  # the shard was kept
    assert {folder.name for folder in (name / layout.MEMBERS).iterdir()} > before
    assert [member.name for member in opened(name).version.members][-1] == unfinished
    blank = [()] * lines_of(0, 20).count("")
    assert member_texts(name) == blank + [tuple(line.split()) for line in lines_of(20, 20)]


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
