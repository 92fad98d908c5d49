"""SIGTERM, SIGHUP and kill -9 of a command that is at work."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from elmo_store.format.layout import SHARDS
from elmo_store.storage.lease import LeaseHolder, read_lease
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.cli.signals import as_interrupts, heed, name_of
from pipeline.jobs.run import stopped
from pipeline.runners.submission import SubmittedJob
from tests.pipeline.support import heed_signals, run_command


def started(tiny_model: Path, corpus: Path, out: Path, *options: str) -> "subprocess.Popen[str]":
    """A job of some thousand small shards, at work: a few of them are written."""
    if not out.exists():
        (corpus / "c.txt").write_text("a sentence of some words , and one more\n" * 40_000)
    repo = str(Path(__file__).resolve().parent.parent.parent)
    arguments = [
        "embed",
        str(corpus),
        "--output",
        str(out),
        "--model",
        str(tiny_model),
        "--input-format",
        "lines",
    ]
    command = [sys.executable, "-m", "elmo_store", *arguments, "--shard-rows", "64", *options]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": repo, "PYTHONSAFEPATH": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_signals,
    )
    deadline = time.monotonic() + 120
    while not any((out / SHARDS).glob("*.json")):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.fixture(autouse=True)
def _heeded() -> Iterator[None]:
    """This process heeds signals that it was started to ignore, as by `nohup`."""
    before = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for number, kept in before.items():
        signal.signal(number, kept)


class Swallowing(io.IOBase):
    """As fsspec's files: what is raised while one goes is cleared by C code, without a word."""

    armed = False

    @property
    def closed(self) -> bool:
        if self.armed:
            signal.raise_signal(signal.SIGTERM)
        return True


def waited(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_signal_that_something_swallows_comes_again() -> None:
    file, said = Swallowing(), []
    with pytest.raises(KeyboardInterrupt) as caught, as_interrupts():  # noqa: PT012
        file.armed = True
        del file
        said.append("swallowed")
        waited(30)
    assert said
    assert name_of(caught.value) == "SIGTERM"


@pytest.mark.parametrize("heeds", [True, False])
def test_a_signal_comes_again_unless_it_was_heeded(heeds: bool) -> None:
    came = []
    with as_interrupts():
        try:
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(f"{error} [while running a step]") from None  # as Beam does
        except KeyboardInterrupt as end:
            if heeds:
                heed(end)
        try:
            waited(1 if heeds else 30)
        except KeyboardInterrupt as end:
            heed(end)
            came.append(name_of(end))
    assert came == ([] if heeds else ["SIGTERM"])


class Uncancelled:
    """A result of Beam's whose job can't be cancelled, for another signal comes meanwhile."""

    _job_id = "job-1"

    def cancel(self) -> None:
        signal.raise_signal(signal.SIGHUP)


def test_a_signal_that_ends_the_cancelling_of_a_job_does_not_come_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = SubmittedJob(Uncancelled(), PipelineOptions(["--runner=PortableRunner"]), "job-1")
    with as_interrupts():
        assert not stopped(LeaseHolder(Root(tmp_path), "run"), job, "Ctrl-C")
        waited(1)
    assert "job job-1 could not be cancelled (Interrupt('SIGHUP'))" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_job_with_a_message_and_its_code(
    tiny_model: Path, corpus: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "store"
    process = started(tiny_model, corpus, out)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == Exit.INCOMPLETE
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert re.search(
        rf"^stopped by {name}: [\d,]+ of [\d,]+ shards kept; rerun the same command to resume$",
        said,
        re.MULTILINE,
    )
    watched = run_command("watch", "--once", str(out))
    assert watched.stdout.startswith(f"stopped by {name}: ")
    assert watched.returncode == Exit.INCOMPLETE
    assert "Traceback" not in said
    assert not (out / "_lease").exists()  # given back: the next one need not wait


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_reaches_the_workers_too_and_says_one_line(
    tiny_model: Path, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    process = started(tiny_model, corpus, out, "--workers", "2", "--quiet")
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == Exit.INCOMPLETE
    assert re.fullmatch(r"\s*stopped by Ctrl-C: .*\n", said)


@pytest.mark.slow
def test_a_launcher_killed_alone_takes_its_workers_along_and_the_next_command_its_lease(
    tiny_model: Path, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    process = started(tiny_model, corpus, out, "--workers", "2")
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not [one for one in alive if "sdk_worker" in " ".join(one.cmdline())]
    left = Root(out).sizes()
    time.sleep(2)
    assert Root(out).sizes() == left  # nobody writes any more
    said = run_command("info", str(out)).stdout
    assert "writer:" not in said
    assert "continue it: give the command that began it once more" in said
    killed = read_lease(Root(out))
    successor = started(tiny_model, corpus, out, "--workers", "2")
    deadline = time.monotonic() + 60
    while (lease := read_lease(Root(out))) == killed or lease is None:
        assert time.monotonic() < deadline
        assert successor.poll() is None, successor.communicate()
        time.sleep(0.05)
    successor.terminate()
    successor.communicate(timeout=60)
    assert successor.returncode == Exit.INCOMPLETE
