"""`python -m benchmarks.gpu.day` without a GPU: its steps end, fail and run out of time as it says."""

import socket
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import day
from benchmarks.gpu.day import NO_GPU, Step, run_all, steps


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["day", "--out", str(tmp_path / "out")])
    assert day.main() == NO_GPU
    assert "no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_step_that_fails_or_is_out_of_time_is_told_and_the_others_run(tmp_path: Path) -> None:
    sleep = ("timeit", "-n1", "-r1", "print('begun')", "import time; time.sleep(600)")
    todo = [
        Step("late", 0.05, sleep),
        Step("fails", 1, ("json.tool", "none")),
        Step("well", 1, ("json.tool", "--help")),
    ]
    assert not run_all(todo, tmp_path)
    summary = (tmp_path / "summary.txt").read_text(encoding="utf-8").splitlines()
    assert ["OUT OF TIME" in summary[0], "FAILED" in summary[1], summary[2].endswith("well")] == [
        True
    ] * 3
    assert "usage" in (tmp_path / "03-well.txt").read_text(encoding="utf-8")


def test_a_step_that_ended_leaves_no_process_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = f"import socket, time; s = socket.create_connection({server.getsockname()}); print(flush=True); time.sleep(600)"
        leave = f"import subprocess as p, sys; p.Popen([sys.executable, '-c', {child!r}], stdout=p.PIPE).stdout.readline()"
        assert (
            day.run(Step("leaves", 1, ("timeit", "-n1", "-r1", leave)), tmp_path / "out.txt")
            == "well"
        )
        connection, _ = server.accept()
    with connection:
        connection.settimeout(20)
        assert connection.recv(1) == b""  # its end is closed: the child is gone


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_kind_of_step_can_be_rehearsed(tmp_path: Path) -> None:
    todo = [
        step for step in steps(rehearse=True) if "-" not in step.name
    ]  # job-int8 and job-text are the job once more
    well = run_all(todo, tmp_path)
    assert well, "\n".join(
        path.read_text(encoding="utf-8")[-3000:] for path in sorted(tmp_path.iterdir())
    )
    assert "tokens/s" in (tmp_path / "02-engine.txt").read_text(encoding="utf-8")
