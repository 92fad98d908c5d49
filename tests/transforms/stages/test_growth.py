"""What one worker does alone does not grow with the shards: counted in requests, on the stages of `tests.job_stages`."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from elmo_store.format.layout import zarr_states_shard
from elmo_store.format.manifest import write_manifest
from elmo_store.storage.data import TEMPORARY_PREFIX
from elmo_store.storage.root import Root
from pipeline.progress.snapshot import ProgressReader
from tests import job_stages
from transforms.runtime.results import Outcome, total
from transforms.runtime.work import START
from transforms.stages.finish import check, check_tasks, finish_job

REQUESTS = ("get", "put", "size", "sizes", "get_many", "remove", "stamp")


def begun(tmp_path: Path, shards: int, files: int) -> Root:
    """A job of so many shards whose input is read."""
    source, root = Root(tmp_path / f"input-{shards}"), Root(tmp_path / f"store-{shards}")
    job_stages.put_input(
        source, 0, files, shards * job_stages.SHARD_ROWS // job_stages.TOKENS_A_LINE // files
    )
    write_manifest(root, job_stages.manifest_of(root))
    root.put_json(START, {"started": time.time(), "n_pieces": 1})
    assert job_stages.preflight(f"{source}/", {}, root) == 1
    job_stages.read_all(root, root, {})
    return root


def written(root: Root) -> None:
    numbers, tasks = job_stages.plan(root, False)
    job_stages.write_all(root, tasks, numbers)


def counted(monkeypatch: pytest.MonkeyPatch, work: Any) -> Counter[str]:
    """How often ``work`` asks the storage for something."""
    calls: Counter[str] = Counter()
    with monkeypatch.context() as patch:
        for name in REQUESTS:
            method = getattr(Root, name)

            def call(
                self: Root, *args: Any, _name: str = name, _method: Any = method, **options: Any
            ) -> Any:
                calls[_name] += 1
                return _method(self, *args, **options)

            patch.setattr(Root, name, call)
        work()
    return calls


def test_requests_of_plan_finish_and_a_look_do_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, list[Counter[str]]] = {
        "plan": [],
        "resumed plan": [],
        "look": [],
        "finish": [],
    }
    for shards in (16, 64):
        root = begun(tmp_path, shards, 8)
        found["plan"].append(
            counted(monkeypatch, lambda root=root: job_stages.plan_alone(root, False))
        )
        written(root)
        found["resumed plan"].append(
            counted(monkeypatch, lambda root=root: job_stages.plan_alone(root, True))
        )
        found["look"].append(counted(monkeypatch, lambda root=root: ProgressReader(root).look()))
        outcome = total(check(task, root) for task in check_tasks([Outcome()], root))
        assert (outcome.n_missing, outcome.faulty) == (0, ())
        found["finish"].append(
            counted(monkeypatch, lambda root=root, outcome=outcome: finish_job([outcome], root))
        )
    for what, (few, many) in found.items():
        assert few == many, what
        assert 0 < few.total() < 40, what


def test_what_a_killed_writer_left_is_gone_in_the_end(tmp_path: Path) -> None:
    root = begun(tmp_path, 4, 2)
    written(root)
    left = [
        Path(root.path(f"{folder}/{TEMPORARY_PREFIX}1234-x"))
        for folder in (
            Path(zarr_states_shard(2)).parent,
            "_shards",
            "indexes/ids",
            "states.zarr/token/c",
        )
    ]
    for path in left:
        path.write_bytes(b"half")
    assert finish_job((check(task, root) for task in check_tasks([Outcome()], root)), root) == [
        True
    ]
    assert not any(path.exists() for path in left)


@pytest.mark.slow
def test_stages_that_only_count_load_no_pytorch() -> None:
    stages = [
        f"transforms.stages.{name}" for name in ("tokenise", "split", "plan", "number", "finish")
    ]
    code = f"import sys, {', '.join(stages)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
