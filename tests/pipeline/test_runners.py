"""The same bytes whoever runs the job: processes of the local runner, Beam's portable job service, and after kill -9."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from apache_beam.runners.portability.fn_api_runner import fn_runner

from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.jobs import embed_job
from pipeline.main import main
from tests.deploy.portable import portable_service
from tests.pipeline.support import digests, run_command
from transforms.stages import embed as embed_stage
from transforms.stages.plan import ShardTask

Command = Callable[..., int]


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A working folder whose modules end every process that imports them."""
    folder = tmp_path / "traps"
    folder.mkdir()
    for name in ("model", "pipeline", "transforms", "elmo_store"):
        (folder / f"{name}.py").write_text(
            "raise SystemExit('a stray module of the working folder was imported')\n"
        )
    return folder


def arguments(corpus: Path, model: Path, output: Path, *more: str) -> list[str]:
    fixed = ["--input-format", "lines", "--shard-rows", "64", "--store", "both", "--quiet"]
    return ["embed", str(corpus), "--output", str(output), "--model", str(model), *fixed, *more]


@pytest.mark.slow
def test_two_processes_write_the_same_bytes_in_a_folder_full_of_stray_modules(
    embed: Command, corpus: Path, tiny_model: Path, tmp_path: Path, traps: Path
) -> None:
    assert embed(tmp_path / "one", "--store", "both") == Exit.COMPLETE
    more = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    done = run_command(*arguments(corpus, tiny_model, tmp_path / "two", *more), cwd=traps)
    assert done.returncode == Exit.COMPLETE, done.stderr
    assert "stray" not in done.stderr
    assert done.stderr == ""  # nor what Beam's workers say when they begin
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


@pytest.mark.slow
def test_the_portable_job_service_writes_the_same_bytes_and_leaves_no_process_behind(
    embed: Command, corpus: Path, tiny_model: Path, tmp_path: Path, traps: Path
) -> None:
    assert embed(tmp_path / "one", "--store", "both") == Exit.COMPLETE
    with portable_service(tmp_path) as options:
        done = run_command(*arguments(corpus, tiny_model, tmp_path / "two", *options), cwd=traps)
    assert done.returncode == Exit.COMPLETE, done.stderr
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert "worker_pool_main" not in own_processes(tmp_path)


@pytest.mark.slow
def test_what_a_worker_has_not_begun_may_go_to_another_one_and_no_byte_differs(
    embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Dataflow does where workers idle: asked for while a call is read, of what is behind it half goes to another bundle."""
    assert embed(tmp_path / "whole") == Exit.COMPLETE
    monkeypatch.setattr(embed_job, "CPU_ROWS_AT_ONCE", 64)  # a shard a call
    read, split, bundles, calls = embed_stage.read_call, threading.Event(), list[int](), list[int]()

    def read_call(job: Any, tasks: Sequence[ShardTask]) -> Any:
        assert split.wait(60)
        calls.extend(task.shard for task in tasks)
        return read(job, tasks)

    def ask(n_tasks: int) -> Iterator[float]:
        bundles.append(n_tasks)
        if n_tasks > 1:
            split.clear()
            while (yield 0.5) is None:  # what became of it
                pass
        split.set()

    monkeypatch.setattr(embed_stage, "read_call", read_call)
    with fn_runner.split_manager("EmbedCorpus/Shards/Embed", ask):
        hears_of_splits = "--direct_running_mode=multi_threading"
        assert embed(tmp_path / "split", hears_of_splits) == Exit.COMPLETE
    assert len(bundles) > 2
    assert sorted(calls) == list(range(bundles[0]))  # each shard once
    assert digests(tmp_path / "whole") == digests(tmp_path / "split")


def own_processes(tmp_path: Path) -> str:
    """Command lines of processes that run in folders of this test."""
    lines = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and str(tmp_path) in os.readlink(folder / "cwd"):
                lines.append(
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        except OSError:
            continue
    return "\n".join(lines)


# `elmo-store` that is killed as it begins to write its tenth shard.
KILLED = """
import itertools, os, signal, sys
from elmo_store.__main__ import main
from transforms.stages import embed
write, numbers = embed.write_shard, itertools.count(1)

def killed(*arguments):
    if next(numbers) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(*arguments)

embed.write_shard = killed
sys.exit(main())
"""


@pytest.mark.slow
def test_after_kill_9_half_way_the_same_command_finishes_what_is_missing(
    corpus: Path, tiny_model: Path, tmp_path: Path
) -> None:
    text = (corpus / "a.txt").read_text("utf-8")
    for k in range(4):
        (corpus / f"{k:03d}.txt").write_text(text, "utf-8")
    given, whole = (arguments(corpus, tiny_model, tmp_path / name) for name in ("store", "whole"))
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PYTHONSAFEPATH": "1",
    }
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *given], env=environment, timeout=240, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    # Markers only: beside them may stand one that is being written.
    done = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "store" / "_shards").glob("[0-9]*.json")
    }
    assert 0 < len(done) < 10
    assert main(["info", str(tmp_path / "store")]) == Exit.INCOMPLETE
    assert main(given) == Exit.COMPLETE
    assert done == {path: path.stat().st_mtime_ns for path in done}
    assert main(whole) == Exit.COMPLETE
    assert digests(tmp_path / "store") == digests(tmp_path / "whole")
    assert read_marker(Root(tmp_path / "store"), ShardMarker, 0) is not None
    assert not list(
        (tmp_path / "store").rglob(".writing-*")
    )  # of objects that the dead process had begun
