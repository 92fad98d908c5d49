"""`embed --into`, `collect`, `remove`, `compact`, `info`: a collection by the commands that change it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store.format import layout
from elmo_store.format.markers import read_marker
from elmo_store.reading.store import StoreReader
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.pipeline.support import digests

SETTINGS = (
    pytest.param(("--dtype", "int8", "--boundaries", "--store", "both"), id="int8, boundaries, both forms"),
    pytest.param(("--states", "x,fwd2", "--dtype", "float32", "--layout", "rows"), id="some states, float32, rows"),
    pytest.param((), id="plain", marks=pytest.mark.slow),
)


def opened(name: Path, **options: Any) -> elmo_store.Collection:
    collection = elmo_store.open(name, **options)
    assert isinstance(collection, elmo_store.Collection)
    return collection


def write(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def lines_of(first: int, n: int) -> list[str]:
    return [
        "" if i % 9 == 4 else " ".join(f"w{(i * 7 + j * j) % 23}" for j in range(1 + i * 5 % 13)) for i in range(first, first + n)
    ]


def embed_into(name: Path, model: Path, *arguments: str) -> int:
    command = ["embed", *arguments, "--into", str(name), "--model", str(model), "--quiet"]
    return main([*command, "--input-format", "lines", "--shard-rows", "64"])


def sums(store: StoreReader) -> dict[str, int]:
    """Of the markers of a store's shards."""
    markers = [read_marker(Root(store.url), shard) for shard in range(store.manifest.sizes.shards)]
    return {
        name: sum(int(marker.stats.get(name, 0)) for marker in markers if marker)
        for name in ("known_sentences", "known_rows", "tokens", "engine_rows")
    }


@pytest.mark.parametrize("options", SETTINGS)
def test_what_is_known_is_copied_to_the_same_bytes(
    options: tuple[str, ...], tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write(tmp_path / "first.txt", lines_of(0, 40))
    again = write(tmp_path / "again.txt", [*lines_of(0, 20), "never seen w1", *lines_of(20, 20), "nor this", "w3"])
    name, plain = tmp_path / "all", tmp_path / "plain"
    assert embed_into(name, tiny_model, first, *options) == Exit.COMPLETE
    capsys.readouterr()
    assert embed_into(name, tiny_model, again, *options) == Exit.COMPLETE
    said = capsys.readouterr().out
    assert f"{name}: version 2, 2 members, 83 sentences" in said
    assert embed_into(plain, tiny_model, again, *options, "--no-reuse") == Exit.COMPLETE
    copied, computed = opened(name).held()[1].store, opened(plain).held()[0].store
    assert digests(Path(copied.url)) == digests(Path(computed.url))
    stats, n_filled = sums(copied), sum(bool(line) for line in lines_of(0, 40))
    assert (stats["known_sentences"], sums(computed)["known_rows"]) == (n_filled, 0)
    assert stats["known_rows"] == opened(name).held()[0].store.n_rows
    assert f"{n_filled} sentences ({stats['known_rows']:,} rows) were in the collection already" in said
    np.testing.assert_array_equal(opened(name).read(), np.concatenate([held.store.read() for held in opened(name).held()]))
    assert opened(name).verify(deep=True).faults == ()


def test_the_same_command_continues_and_another_job_is_another_member(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    assert embed_into(name, tiny_model, first, "--max-sentences", "3") == Exit.COMPLETE
    assert [len(opened(name, version=n).version.members) for n in (1, 2)] == [1, 2]
    assert len(list((name / layout.MEMBERS).iterdir())) == 2
    assert not list(name.rglob("_work")) + list(name.rglob("_lease"))


def test_a_job_that_can_t_be_a_member_is_refused_before_it_begins(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, name = write(tmp_path / "first.txt", lines_of(0, 9)), tmp_path / "all"
    assert embed_into(name, tiny_model, first) == Exit.COMPLETE
    before = sorted(name.rglob("*"))
    capsys.readouterr()
    assert embed_into(name, tiny_model, first, "--dtype", "float32", "--start-state", "zero") == Exit.REFUSED
    said = capsys.readouterr().err
    assert "dtype: 'float16' there, 'float32' here" in said
    assert "start state: 'warm' there, 'zero' here" in said
    assert sorted(name.rglob("*")) == before
    assert embed_into(tmp_path, tiny_model, first) == Exit.BAD_USAGE  # the text lies in it
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    assert embed_into(tmp_path / "mine", tiny_model, first) == Exit.REFUSED
    assert "is no collection" in capsys.readouterr().err
    for wrong in (("--overwrite",), ("--output", "x")):
        assert embed_into(name, tiny_model, first, *wrong) == Exit.BAD_USAGE
    assert main(["embed", first, "--output", str(tmp_path / "x"), "--no-reuse"]) == Exit.BAD_USAGE
