"""A short form of each kind of `python -m benchmarks.chaos`: the same functions, fewer faults."""

import re
from pathlib import Path

import pytest

from benchmarks.chaos import commands
from benchmarks.chaos.damage import damage
from benchmarks.chaos.fuzz import fuzz
from benchmarks.chaos.hostile import hostile
from benchmarks.chaos.kills import kills, pairs
from benchmarks.chaos.storage import network, storage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_commands_that_are_killed_end_as_undisturbed(tmp_path: Path) -> None:
    names = ("embed, both", "embed, rows", "mix", "export, elmoformanylangs", "export, safetensors", "index, vectors", "report")
    outcomes = kills(tmp_path, 21, seed=1, names=names)
    assert outcomes.wrong == []
    assert [row["kills"] for row in outcomes.rows.values()] == [3] * 7


def test_two_at_once_leave_the_bytes_of_one(tmp_path: Path) -> None:
    names = ("embed, Parquet", "convert, int8", "export, npz", "index, text")
    outcomes = pairs(tmp_path, 4, seed=1, names=names)
    assert outcomes.wrong == []
    assert [row["pairs"] for row in outcomes.rows.values()] == [4] * 4


def test_what_was_killed_is_found(tmp_path: Path) -> None:
    """The comparison itself: a file left behind, one that is gone, other bytes."""
    bench = commands.Bench(tmp_path)
    case = bench.cases["index, text"]
    run, whole = bench.begin(case, "compared"), bench.undisturbed(case)
    assert run.start().wait() == 0
    assert bench.difference(run, whole) == ""
    part, facts = run.folder / "out/sentences/part-00000.parquet", run.folder / "out/indexes/text/facts.json"
    (run.folder / "out/.writing-0-facts.json").write_text("{}")
    assert bench.difference(run, whole) == "left behind: 1, as ['out/.writing-0-facts.json?']"
    (run.folder / "out/.writing-0-facts.json").unlink()
    part.write_bytes(part.read_bytes()[:-1])
    facts.unlink()
    assert re.match(r"missing: \d+, as .*facts.*; other bytes: 1, as .*part-00000", bench.difference(run, whole))


def test_damaged_files_are_named_and_flips_never_read(tmp_path: Path) -> None:
    outcomes = damage(tmp_path, 12, seed=1, stores=("zarr, crc32c", "parquet, crc32c"))
    assert outcomes.wrong == []
    assert [row["files"] for row in outcomes.rows.values()] == [12] * 6


def test_hostile_stores_and_records_write_nothing_outside(tmp_path: Path) -> None:
    names = ("names of states with ..", "a link as the report", "an export's record with .. and paths")
    outcomes = hostile(tmp_path, names)
    assert outcomes.wrong == []
    assert [*outcomes.rows] == [*names]


def test_jobs_on_bad_storage_continue_to_the_same_bytes(tmp_path: Path) -> None:
    outcomes = storage(tmp_path, 0.05, 2, seed=1)
    assert outcomes.wrong == []
    assert sum(row["failed"] for row in outcomes.rows.values())


def test_a_job_on_a_bad_network_continues_to_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("moto", reason="moto[server] is not installed: pip install '.[test]'")
    outcomes = network(tmp_path, 0.02, 1, seed=1)
    assert outcomes.wrong == []
    assert sum(outcomes.rows["S3"][kind] for kind in ("refused", "cut in the request", "cut in the answer", "slow"))


def test_random_and_mutated_records_are_accounted_for_at_their_place(tmp_path: Path) -> None:
    outcomes = fuzz(tmp_path, 2000, seed=1)
    assert outcomes.wrong == []
    assert [row["records"] for row in outcomes.rows.values()] == [1000, 1000]
