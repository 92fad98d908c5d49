"""A small job that the faults are put into: a model of 16 dimensions, a corpus, the command in processes that start at once.

May import model, elmo_store and the standard library. The processes are forked from a server that has imported everything, so
that a start costs a tenth of a second; each is the leader of a process group, which a kill ends as a whole.
"""

import hashlib
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmo_store.storage import TEMPORARY_PREFIX
from model.files.registry import random_weights
from model.options import BiLMOptions

TINY = BiLMOptions(
    cell_clip=3.0, proj_clip=3.0, use_skip_connections=True, projection_dim=16, dim=32, n_layers=2, activation="relu",
    filters=((1, 8), (2, 8), (3, 16)), n_highway=1, char_embedding_dim=4,
)  # fmt: skip
ROOMS = ("sentences", "states", "states.zarr", "rejects")  # what must be the same bytes whatever happened
RUNNERS: Mapping[str, Sequence[str]] = {
    "one process": (),
    "two processes": ("--direct_running_mode=multi_processing", "--direct_num_workers=2"),
}
SECONDS_AT_MOST = 900
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = (
    "pipeline.cli",
    "pipeline.embed_command",
    "pipeline.embed_job",
    "pipeline.running",
    "pipeline.embed_corpus",
    "torch",
)


@dataclass(frozen=True)
class SmallJob:
    """What is embedded: files of lines, and the model."""

    folder: Path
    shard_rows: int = 64

    @classmethod
    def make(cls, folder: Path, n_files: int = 12, n_lines: int = 60) -> "SmallJob":
        """A corpus of about 600 tokens a file, blank and refused lines among them, and a random model."""
        folder.mkdir(parents=True, exist_ok=True)
        random_weights(TINY).save_safetensors(folder / "model.safetensors")
        (folder / "corpus").mkdir(exist_ok=True)
        words = ["the", "cat", "sat", "on", "a", "mat", ",", "naïve", "dogs", "ran", "東京", "away", "from", "it", "quickly", "."]
        draw = random.Random(7)
        for number in range(n_files):
            lines = [" ".join(draw.choices(words, k=draw.randint(0, 24))).encode() for _ in range(n_lines)]
            lines[number % n_lines] = b"refused: \xff"
            (folder / "corpus" / f"{number:03d}.lines").write_bytes(b"\n".join(lines) + b"\n")
        return cls(folder)

    def arguments(self, output: Path | str, form: str, *more: str) -> list[str]:
        """The command line of the job."""
        return [
            "embed", str(self.folder / "corpus"), "--output", str(output), "--model", str(self.folder / "model.safetensors"),
            "--input-format", "lines", "--shard-rows", str(self.shard_rows), "--store", form, "--threads", "1", "--quiet", *more,
        ]  # fmt: skip


class Command:
    """One ``elmo-store`` command in a process group of its own."""

    def __init__(self, arguments: Sequence[str], log: Path, prepare: Callable[[], Any] | None = None) -> None:
        """``prepare``: called in the process before the command, from an importable module."""
        _CONTEXT.set_forkserver_preload([*_PRELOADED])
        self.log = log
        self._process = _CONTEXT.Process(target=_run, args=(list(arguments), str(log), prepare))
        self._process.start()

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return not self._process.is_alive()

    def wait(self, seconds: float = SECONDS_AT_MOST) -> int:
        """Its exit code. TimeoutError with its log's end if it does not end in time."""
        self._process.join(seconds)
        if self._process.is_alive():
            self.kill()
            raise TimeoutError(f"the command did not end within {seconds} s:\n{self.said()[-3000:]}")
        code = self._process.exitcode
        return code if code is not None else -1

    def kill(self, *, group: bool = True) -> None:
        """kill -9: the whole group, or the launcher alone."""
        pid = self._process.pid
        if pid is None or self.ended:
            return
        with suppress(ProcessLookupError):  # it ended by itself, or is not the leader of a group yet
            (os.killpg if group else os.kill)(pid, signal.SIGKILL)
        self._process.join(1)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def end_group(self) -> None:
        """End what a killed launcher left behind."""
        if self._process.pid:  # killpg of 0 is one's own
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def said(self) -> str:
        """What it wrote to the screen."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def _run(arguments: list[str], log: str, prepare: Callable[[], Any] | None) -> None:
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    ends = prepare() if prepare else None
    from pipeline.cli import main

    try:
        code = main(arguments)
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    if callable(ends):
        ends()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries are not waited for, as after a kill


def contents(store: Path) -> dict[str, str]:
    """SHA-256 of every object that must be the same whoever wrote it."""
    files = [path for room in ROOMS for path in _objects(store / room)]
    return {str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _objects(folder: Path) -> list[Path]:
    """Files below ``folder``. Nobody takes a temporary one for an object; on a file server it stays where its removal failed."""
    return [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(TEMPORARY_PREFIX)]


def stage_of(store: Path) -> str:
    """Where a job is, by what stands in its store."""
    manifest = _json(store / "elmo_store.json")
    if manifest is None:
        return "before the manifest"
    if manifest.get("complete"):
        return "tidying" if (store / "_work").exists() else "complete"
    plan = _json(store / "_work" / "plan.json")
    if plan is None:
        return "reading"
    done = len(list((store / "_shards").glob("[0-9]*.json")))
    return "computing" if done < plan["n_shards"] else "finishing"


STAGES = ("before the manifest", "reading", "computing", "finishing", "tidying", "complete")


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value


def faults_of(url: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """What a deep look finds wrong with a complete store."""
    import elmo_store
    from elmo_store.verify import verify

    store = elmo_store.open(url, storage_options=dict(storage_options or {}))
    return [fault.text for fault in verify(store, deep=True).faults]


def problem_of(output: Path, code: int, wanted: dict[str, str]) -> str:
    """What is wrong with a job that was killed and continued; "" if nothing is."""
    if code:
        return f"exit code {code}"
    found = contents(output)
    if found != wanted:
        return f"other bytes: {sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))[:5]}"
    if left := [name for name in ("_work", "_lease") if _objects(output / name)]:
        return f"{', '.join(left)} stayed"
    faults = faults_of(str(output))
    return f"verify: {faults[:3]}" if faults else ""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under their heads, as Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)])


def seconds_since(began: float) -> str:
    """How long something took."""
    return f"{time.monotonic() - began:,.0f} s"
