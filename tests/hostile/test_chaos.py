"""A short form of each kind of `python -m benchmarks.chaos`: the same functions, fewer faults."""

from pathlib import Path

import pytest

from benchmarks.chaos import bits, fuzz, kills, network, storage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_jobs_that_are_killed_continue_to_the_same_bytes(tmp_path: Path) -> None:
    found = kills.run(tmp_path, 3, seed=1, runners=("one process",))
    assert found.wrong == []
    assert found.n_kills == 3


def test_jobs_on_bad_storage_continue_to_the_same_bytes(tmp_path: Path) -> None:
    found = storage.run(tmp_path, 0.05, 2, seed=1)
    assert found.wrong == []
    assert found.operations["failed"]


def test_a_job_on_a_bad_network_continues_to_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("moto", reason="moto[server] is not installed: pip install 'elmo-store[test]'")
    found = network.run(tmp_path, 0.02, 1, seed=1)
    assert found.wrong == []
    assert sum(found.counts[kind] for kind in ("refused", "cut in the request", "cut in the answer", "slow"))


def test_random_and_mutated_records_are_accounted_for_at_their_place(tmp_path: Path) -> None:
    found = fuzz.run(tmp_path, 2000, seed=1)
    assert found.wrong == []
    assert [row[1] for row in found.rows] == ["1,000", "1,000"]


def test_a_flipped_bit_is_named_and_never_read(tmp_path: Path) -> None:
    found = bits.run(tmp_path, 40, seed=1, stores=("zarr, crc32c", "parquet, crc32c"))
    assert found.wrong == []
    assert sum(sum(counts.values()) for counts in found.by_store.values()) == 80  # a look and a reading of each
