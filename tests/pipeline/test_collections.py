"""`embed --into`, `collect`, `remove`, `compact`, `info`: a collection by the commands that change it."""

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numcodecs import Zstd  # type: ignore[import-untyped]

import elmo_store
from elmo_store.collecting import collect
from elmo_store.format import layout
from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.reading.store import StoreReader
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.main import main
from tests.pipeline.support import digests
from tests.store.deep import all_faults
from tests.store.support import make_store, version_of
from tests.store.test_collection import check_same, opened

SETTINGS = (
    pytest.param(
        ("--dtype", "int8", "--boundaries", "--store", "both"),
        id="int8, boundaries, both forms",
        marks=pytest.mark.slow,
    ),
    pytest.param(("--states", "x,fwd2", "--dtype", "float32"), id="some states, float32"),
    pytest.param((), id="plain", marks=pytest.mark.slow),
)


def write(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def lines_of(first: int, n: int) -> list[str]:
    return [
        "" if i % 9 == 4 else " ".join(f"w{(i * 7 + j * j) % 23}" for j in range(1 + i * 5 % 13))
        for i in range(first, first + n)
    ]


def embed_into(name: Path, model: Path, *arguments: str) -> int:
    command = ["embed", *arguments, "--into", str(name), "--model", str(model)]
    return main([*command, "--input-format", "lines", "--shard-rows", "64"])


def sums(store: StoreReader) -> dict[str, int]:
    """Of the markers of a store's shards."""
    markers = [
        read_marker(Root(store.url), ShardMarker, shard)
        for shard in range(store.manifest.sizes.shards)
    ]
    return {
        name: sum(int(marker.stats.get(name, 0)) for marker in markers if marker)
        for name in ("known_sentences", "known_rows", "tokens", "engine_rows")
    }


@pytest.mark.slow
@pytest.mark.parametrize("options", SETTINGS)
def test_what_is_known_is_copied_to_the_same_bytes(
    options: tuple[str, ...], tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write(tmp_path / "first.txt", lines_of(0, 40))
    again = write(
        tmp_path / "again.txt",
        [*lines_of(0, 20), "never seen w1", *lines_of(20, 20), "nor this", "w3"],
    )
    name, plain = tmp_path / "all", tmp_path / "plain"
    assert embed_into(name, tiny_model, first, *options) == Exit.COMPLETE
    capsys.readouterr()
    assert embed_into(name, tiny_model, again, *options) == Exit.COMPLETE
    said = capsys.readouterr().out
    assert f"{name}: version 2, 2 members, 83 sentences" in said
    assert embed_into(plain, tiny_model, again, *options) == Exit.COMPLETE
    copied = opened(name)._view.opened_stores()[1].store
    computed = opened(plain)._view.opened_stores()[0].store
    assert digests(Path(copied.url)) == digests(Path(computed.url))
    stats, n_filled = sums(copied), sum(bool(line) for line in lines_of(0, 40))
    assert (stats["known_sentences"], sums(computed)["known_rows"]) == (n_filled, 0)
    assert stats["known_rows"] == opened(name)._view.stores[0].n_rows
    assert (
        f"{n_filled} sentences ({stats['known_rows']:,} rows) in the collection already: they are in it twice now"
        in said
    )
    assert (
        f"store = elmo_store.open({str(name)!r})" in said
    )  # what comes next is said of the collection
    assert f"elmo-store report {name}\n" in said
    assert f"open({name / 'members'!s}" not in said
    np.testing.assert_array_equal(
        opened(name).read(),
        np.concatenate([elmo_store.open(url).read() for url in opened(name).urls]),
    )
    assert all_faults(opened(name)) == []


@pytest.mark.slow
def test_the_same_command_continues_and_another_job_is_another_member(
    tmp_path: Path,
    tiny_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, name = write(tmp_path / "first.txt", lines_of(0, 20)), tmp_path / "all"

    def stop(*_: Any) -> None:
        raise RuntimeError("stopped by the test")

    with monkeypatch.context() as patch:
        patch.setattr("transforms.stages.finish.finish_job", stop)
        assert embed_into(name, tiny_model, first) == Exit.INCOMPLETE
    with pytest.raises(elmo_store.errors.StoreNotFoundError):
        elmo_store.open(name)
    with monkeypatch.context() as patch:  # complete, and no version has it
        patch.setattr("elmo_store.format.version.publish", stop)
        with pytest.raises(RuntimeError):
            embed_into(name, tiny_model, first)
    assert embed_into(name, tiny_model, first) == Exit.COMPLETE
    assert embed_into(name, tiny_model, first) == Exit.COMPLETE  # nothing to do
    assert "version 1, 1 member, 20 sentences" in capsys.readouterr().out
    assert (
        embed_into(name, tiny_model, write(tmp_path / "three.txt", lines_of(0, 3))) == Exit.COMPLETE
    )
    assert [len(version_of(opened(name, version=n)).members) for n in (1, 2)] == [1, 2]
    assert len(list((name / layout.MEMBERS).iterdir())) == 2
    assert not list(name.rglob("_work")) + list(name.rglob("_lease"))


def test_a_job_that_can_t_be_a_member_is_refused_before_it_begins(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, name = write(tmp_path / "first.txt", lines_of(0, 9)), tmp_path / "all"
    assert embed_into(name, tiny_model, first) == Exit.COMPLETE
    before = sorted(name.rglob("*"))
    capsys.readouterr()
    assert (
        embed_into(name, tiny_model, first, "--dtype", "float32", "--start-state", "zero")
        == Exit.REFUSED
    )
    said = capsys.readouterr().err
    assert "dtype: 'float16' there, 'float32' here" in said
    assert "start state: 'warm' there, 'zero' here" in said
    assert sorted(name.rglob("*")) == before
    assert embed_into(tmp_path, tiny_model, first) == Exit.BAD_USAGE  # the text lies in it
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    assert embed_into(tmp_path / "mine", tiny_model, first) == Exit.REFUSED
    assert "not a collection" in capsys.readouterr().err
    for wrong in (("--overwrite",), ("--output", "x")):
        assert embed_into(name, tiny_model, first, *wrong) == Exit.BAD_USAGE


@pytest.mark.slow
def test_a_job_that_was_given_up_is_told_and_blocks_nothing(
    tmp_path: Path,
    tiny_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, name = write(tmp_path / "first.txt", lines_of(0, 20)), tmp_path / "below" / "all"
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"one\xff\ntwo\n")

    def refuse(*_: Any) -> None:
        raise CommandError(Exit.BAD_LOCATION, "no room")

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    for place in ("--into", "--output"):  # nothing written, nothing left
        with monkeypatch.context() as patch:
            patch.setattr("pipeline.jobs.embed_job._put_start", refuse)
            assert (
                main(["embed", first, place, str(name), "--model", str(tiny_model), "--quiet"])
                == Exit.BAD_LOCATION
            )
        assert not name.parent.exists()
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.jobs.run.submit", stop)
        assert embed_into(name, tiny_model, first) == Exit.INCOMPLETE
    capsys.readouterr()
    assert main(["info", str(name)]) == Exit.INCOMPLETE
    (stopped,) = (name / layout.MEMBERS).iterdir()
    assert f"members/{stopped.name}\n" in capsys.readouterr().out
    assert embed_into(name, tiny_model, str(bad), "--max-reject-rate", "0") == Exit.BAD_LOCATION
    assert (
        embed_into(name, tiny_model, write(tmp_path / "three.txt", lines_of(0, 3))) == Exit.COMPLETE
    )  # another one
    with monkeypatch.context() as patch:  # complete, and no version has it
        patch.setattr("elmo_store.format.version.publish", refuse)
        assert embed_into(name, tiny_model, str(bad)) == Exit.BAD_LOCATION
    capsys.readouterr()
    assert main(["info", str(name), "--json"]) == Exit.COMPLETE
    begun = json.loads(capsys.readouterr().out)["unfinished"]
    assert stopped.name in begun
    assert len(begun) == 2
    assert embed_into(name, tiny_model, first) == Exit.COMPLETE  # the same one
    assert embed_into(name, tiny_model, str(bad)) == Exit.COMPLETE
    capsys.readouterr()
    assert main(["info", str(name)]) == Exit.COMPLETE
    assert "unfinished" not in capsys.readouterr().out
    assert len(version_of(opened(name)).members) == 3


def bytes_below(folder: Path) -> dict[str, bytes]:
    """Everything in files, what Parquet and Zarr compress decompressed as they read it."""
    held = {}
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".parquet":
                data += repr(pq.read_table(path).to_pydict()).encode()
            if "/token/c/" in str(path):
                data += Zstd().decode(data)
            held[str(path.relative_to(folder))] = data
    return held


@pytest.mark.slow
def test_what_is_removed_is_gone_for_readers_and_with_compact_from_the_disk(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, ids = tmp_path / "all", tmp_path / "ids.txt"
    for number in range(2):
        records = [
            {"id": f"{number}-{i}", "text": line.split()}
            for i, line in enumerate(lines_of(40 * number, 30))
        ]
        records[7]["text"] = ["Zsecret", "w1", "w2"] if number == 0 else ["w1", "Zkept"]
        path = tmp_path / f"{number}.jsonl"
        lines = [json.dumps(record) for record in records]
        bad = (
            '{"id": "Zbad", "text": 8, "note": "Ysecret"}'
            if number == 0
            else '{"id": "other", "text": 9}'
        )
        lines[9:9] = ['{"id": "bad-kept", "text": 7, "note": "Ykept"}', bad]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [
            "embed",
            str(path),
            "--into",
            str(name),
            "--model",
            str(tiny_model),
            "--quiet",
            "--store",
            "both",
        ]
        assert main([*command, "--id-field", "id", "--shard-rows", "64"]) == Exit.COMPLETE
    before = opened(name)
    wanted = [
        number for number in range(len(before)) if before[number].id not in ("0-7", "0-8", "Zbad")
    ]
    one = before.select(wanted)
    ids.write_bytes(b"\xef\xbb\xbf0-7\r\n0-8\r\nZbad\n\r\nno-such")  # as editors elsewhere write it
    capsys.readouterr()
    assert main(["remove", str(name), "--ids", str(ids)]) == Exit.COMPLETE
    said = capsys.readouterr()
    assert "3 sentences removed" in said.out
    assert "1 id of no sentence" in said.err
    check_same(opened(name), one)
    check_same(opened(name, version=2), before)
    assert main(["remove", str(name), "--ids", str(ids)]) == Exit.BAD_LOCATION
    assert "no sentence has any of these 4 ids" in capsys.readouterr().err
    assert version_of(opened(name)).number == 3
    counts = opened(name).manifest.sizes
    assert (counts.rejected, counts.tokens) == (3, one.n_tokens)
    assert any(b"Zsecret" in data for data in bytes_below(name).values())
    untouched = {path: data for path, data in bytes_below(name).items() if b"Zsecret" not in data}

    assert main(["compact", str(name)]) == Exit.COMPLETE
    assert "versions removed: 1, 2, 3" in capsys.readouterr().out
    check_same(opened(name), one)
    held = bytes_below(name)
    for secret in (b"Zsecret", b"Ysecret", b"Zbad", b"0-7"):
        assert [path for path, data in held.items() if secret in data] == []
    for kept in (b"Ykept", b"Zkept", b"bad-kept"):
        assert any(kept in data for data in held.values())
    assert opened(name).manifest.sizes == counts
    assert all_faults(opened(name)) == []
    assert {path.name for path in (name / layout.MEMBERS).iterdir()} == {
        one.name for one in version_of(opened(name)).members
    }
    assert (
        len([path for path in untouched if path in held]) > 10
    )  # the member that nothing was removed of
    assert main(["compact", str(name)]) == Exit.COMPLETE
    assert version_of(opened(name)).number == 4
    assert main(["info", str(name)]) == Exit.COMPLETE
    listed = capsys.readouterr().out
    assert "compact" in listed
    assert "4  " in listed
    with pytest.raises(elmo_store.errors.StoreNotFoundError):
        elmo_store.open(name, version=2)


def test_versions_that_are_kept_keep_what_was_removed(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, ids = tmp_path / "all", tmp_path / "ids.txt"
    assert (
        embed_into(name, tiny_model, write(tmp_path / "first.txt", lines_of(0, 20)))
        == Exit.COMPLETE
    )
    before = opened(name)
    ids.write_text("first.txt:3\n", encoding="utf-8")
    assert main(["remove", str(name), "--ids", str(ids)]) == Exit.COMPLETE
    assert main(["compact", str(name), "--keep-versions", "2"]) == Exit.COMPLETE
    capsys.readouterr()
    assert main(["info", str(name), "--json"]) == Exit.COMPLETE
    facts = json.loads(capsys.readouterr().out)
    changes = [
        (one["version"], one["change"], one["sentences"], one["members"])
        for one in facts["versions"]
    ]
    assert changes == [(2, "remove", 19, 1), (3, "compact", 19, 1)]
    check_same(opened(name, version=2), before.select([n for n in range(20) if n != 3]))
    assert version_of(opened(name)).number == 3
    assert main(["compact", str(name)]) == Exit.COMPLETE
    with pytest.raises(elmo_store.errors.StoreNotFoundError):
        elmo_store.open(name, version=2)
    (tmp_path / "empty").mkdir()
    for command in (
        ["remove", str(tmp_path / "empty"), "--ids", str(ids)],
        ["compact", str(tmp_path / "empty")],
    ):
        assert main(command) == Exit.BAD_LOCATION


@pytest.mark.slow
def test_every_command_takes_a_collection(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.explore.service import ExplorerService

    name, ids, weights = tmp_path / "all", tmp_path / "ids.txt", tmp_path / "w.json"
    for number, more in enumerate(((), ("--shard-rows", "128"))):
        text = write(
            tmp_path / f"{number}.txt", [*lines_of(30 * number, 30), f"needle{number} here"]
        )
        assert embed_into(name, tiny_model, text, *more) == Exit.COMPLETE
    ids.write_text("0.txt:30\n1.txt:3\n", encoding="utf-8")
    assert main(["remove", str(name), "--ids", str(ids)]) == Exit.COMPLETE
    whole = opened(name)
    weights.write_text('{"w": [0.1, 0.5, -0.2], "gamma": 1.0}', encoding="utf-8")
    for command in (
        [
            "convert",
            str(name),
            "--output",
            str(tmp_path / "converted"),
            "--store",
            "parquet",
            "--quiet",
        ],
        [
            "mix",
            str(name),
            "--weights",
            str(weights),
            "--output",
            str(tmp_path / "mixed"),
            "--quiet",
        ],
        ["verify", str(name), "--recompute", "5", "--model", str(tiny_model), "--quiet"],
        ["verify", str(tmp_path / "converted"), "--quiet"],
        ["export", str(name), "--format", "tfhub", "--output", str(tmp_path / "x.hub")],
    ):
        assert main(command) == Exit.COMPLETE, command
    check_same(elmo_store.open(tmp_path / "converted"), whole)
    mixed, mix = elmo_store.open(tmp_path / "mixed"), elmo_store.ScalarMix(w=[0.1, 0.5, -0.2])
    np.testing.assert_allclose(mixed.read(), mix(states=whole.read())[:, None], atol=2e-3)
    service = ExplorerService(whole)
    assert [hit["number"] for hit in service.search("needle0")["hits"]] == []
    assert [hit["id"] for hit in service.search("needle1")["hits"]] == ["1.txt:30"]
    assert whole.find_text([whole.sentence(3).tokens]) == [3]
    ids.write_text("0.txt:2\n", encoding="utf-8")
    assert main(["remove", str(name), "--ids", str(ids)]) == Exit.COMPLETE
    assert main(["compact", str(name)]) == Exit.COMPLETE


@pytest.mark.slow
def test_the_same_job_after_compact_brings_nothing_back(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, ids, text = (
        tmp_path / "all",
        tmp_path / "ids.txt",
        write(tmp_path / "first.txt", lines_of(0, 20)),
    )
    ids.write_text("first.txt:3\n", encoding="utf-8")
    for night in range(2):
        assert embed_into(name, tiny_model, text) == Exit.COMPLETE
        assert main(["remove", str(name), "--ids", str(ids)]) == (
            Exit.BAD_LOCATION if night else Exit.COMPLETE
        )
        assert main(["compact", str(name)]) == Exit.COMPLETE
    before = sorted(name.rglob("*"))
    capsys.readouterr()
    assert embed_into(name, tiny_model, text) == Exit.COMPLETE
    said = capsys.readouterr().out
    assert "is complete already" in said
    assert f"{name}: version 3, 1 member, 19 sentences" in said
    assert sorted(name.rglob("*")) == before
    assert (
        embed_into(name, tiny_model, write(tmp_path / "more.txt", lines_of(20, 3))) == Exit.COMPLETE
    )
    assert (version_of(opened(name)).number, len(opened(name))) == (4, 22)


@pytest.mark.slow
def test_verify_lists_a_member_that_is_missing_and_one_that_is_another(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, other = tmp_path / "all", tmp_path / "other"
    for number in range(3):
        assert (
            embed_into(name, tiny_model, write(tmp_path / f"{number}.txt", lines_of(9 * number, 9)))
            == Exit.COMPLETE
        )
    assert (
        embed_into(other, tiny_model, write(tmp_path / "other.txt", lines_of(9, 9)))
        == Exit.COMPLETE
    )
    first, second, _ = (Path(url) for url in opened(name).urls)
    shutil.rmtree(first)
    shutil.rmtree(second)
    shutil.copytree(opened(other).urls[0], second)
    for more in ((), ("--recompute", "2", "--model", str(tiny_model))):
        capsys.readouterr()
        assert main(["verify", str(name), "--quiet", *more]) == Exit.DAMAGED
        said = capsys.readouterr().out
        assert f"{first}, a member of version 3, is missing" in said
        assert f"{second} is not the member that version 3 names" in said
        assert "9 sentences" in said


@pytest.mark.slow
def test_what_is_wrong_is_said_of_what_was_given(
    tmp_path: Path,
    tiny_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text, name = write(tmp_path / "first.txt", lines_of(0, 9)), tmp_path / "all"
    assert embed_into(name, tiny_model, text) == Exit.COMPLETE
    (tmp_path / "ids").write_text("first.txt:3\n", encoding="utf-8")
    monkeypatch.setattr("elmo_store.collecting.WAIT_SECONDS", 0.0)
    store = str(opened(name).urls[0])
    commands: dict[tuple[str, ...], str] = {
        ("embed", text, "--into", ""): "--into is empty: give a value",
        ("collect", str(name), ""): "STORE is empty: name a folder",
        ("collect", "", store): "output is empty: name a folder",
        ("remove", "", "--ids", str(tmp_path / "ids")): "NAME is empty: name a folder",
        ("compact", ""): "NAME is empty: name a folder",
        ("watch", str(name)): f"{name} is a collection: `elmo-store info {name}` names",
        ("watch", str(name), "--once"): f"{name} is a collection: `elmo-store info {name}` names",
    }
    for command, said in commands.items():
        capsys.readouterr()
        assert main(list(command)) == Exit.BAD_USAGE, command
        assert said in capsys.readouterr().err
    copied = shutil.copytree(store, tmp_path / "copied")
    another = write(tmp_path / "another.txt", lines_of(3, 5))
    with LeaseHolder.take(Root(name), "other"):
        for command in (
            ("collect", str(name), str(copied)), ("remove", str(name), "--ids", str(tmp_path / "ids")), ("compact", str(name)),
            ("embed", another, "--into", str(name), "--model", str(tiny_model), "--quiet"),
        ):  # fmt: skip
            capsys.readouterr()
            assert main(list(command)) == Exit.REFUSED, command
            said = capsys.readouterr().err
            assert "belongs to run other" in said
            assert "Wait until it ends, then run the same command again." in said
            assert "--take-over" not in said


def test_ids_in_a_damaged_file_are_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect(
        str(tmp_path / "all"), [elmo_store.open(make_store(str(tmp_path / "store")).root.url())]
    )
    ids = tmp_path / "ids.gz"
    ids.write_bytes(gzip.compress(b"one\n" * 1000)[:-9])
    for data in (ids.read_bytes(), b"\x1f\x8b\x08" + b"\x00" * 7 + b"\xff" * 30):
        ids.write_bytes(data)
        assert main(["remove", str(tmp_path / "all"), "--ids", str(ids)]) == Exit.BAD_LOCATION
        assert f"--ids {ids} can't be read: " in capsys.readouterr().err


@pytest.mark.slow
def test_compact_removes_the_text_that_a_refused_sentence_keeps_of_its_record(
    tmp_path: Path, tiny_model: Path
) -> None:
    """A refused sentence keeps the text of its whole record; another sentence of the record is removed."""
    name = tmp_path / "all"
    records = [
        {"key": "r", "text": [["secret", "words"], ["bad", 5]]},
        {"key": "s", "text": [["public", "words"], ["bad", 6]]},
    ]
    text = write(tmp_path / "in.jsonl", [json.dumps(record) for record in records])
    command = ["embed", text, "--into", str(name), "--model", str(tiny_model), "--quiet"]
    assert main([*command, "--id-field", "key", "--max-reject-rate", "1"]) == Exit.COMPLETE
    (tmp_path / "ids").write_text("r:0\n")
    assert main(["remove", str(name), "--ids", str(tmp_path / "ids")]) == Exit.COMPLETE
    assert main(["compact", str(name)]) == Exit.COMPLETE
    (member,) = (name / layout.MEMBERS).iterdir()
    rejects = [
        json.loads(line)
        for part in (member / layout.REJECTS).iterdir()
        for line in part.read_text(encoding="utf-8").splitlines()
    ]
    assert [(reject["id"], "public" in reject["raw"]) for reject in rejects] == [
        ("r:1", False),
        ("s:1", True),
    ]
    assert not any("secret" in reject["raw"] for reject in rejects)
    assert all_faults(opened(name)) == []


@pytest.mark.slow
def test_a_report_that_was_begun_before_a_change_is_not_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    from pipeline.report import page

    name, store = tmp_path / "all", elmo_store.open(make_store(str(tmp_path / "a")).root.url())
    collect(name, [store])
    real = page.page

    def removed_meanwhile(figures: Any) -> str:
        monkeypatch.undo()
        (tmp_path / "ids").write_text(f"{store.sentence(0).id}\n")
        assert main(["remove", str(name), "--ids", str(tmp_path / "ids")]) == Exit.COMPLETE
        assert main(["compact", str(name)]) == Exit.COMPLETE
        return real(figures)

    monkeypatch.setattr(page, "page", removed_meanwhile)
    assert main(["report", str(name)]) == Exit.BAD_LOCATION
    assert "has changed since version 1 was read" in capsys.readouterr().err
    assert not (name / "report.html").exists()
    assert main(["report", str(name)]) == Exit.COMPLETE
    assert (name / "report.html").exists()
    assert not (name / "_lease").exists()


def test_the_compact_command_names_what_may_still_hold_removed_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, store = tmp_path / "all", elmo_store.open(make_store(str(tmp_path / "a")).root.url())
    collect(name, [store])
    shutil.copytree(store.url, name / layout.member("0" * 32))  # as a job that has yet to add it
    capsys.readouterr()
    assert main(["compact", str(name)]) == Exit.COMPLETE
    said = capsys.readouterr().err
    assert f"warning: this may hold removed sentences: {name / layout.member('0' * 32)}" in said
