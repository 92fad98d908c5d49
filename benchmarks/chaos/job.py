"""A small job that the faults are put into: a model of 16 dimensions, a corpus, and commands in processes that start at once.

The processes are forked from a server that has imported everything, so that a start costs a few hundredths of a second; each is
the leader of a process group, which a kill ends as a whole.
"""

import hashlib
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elmo_store.storage.root import TEMPORARY_PREFIX
from model.files.registry import random_weights
from model.options import BiLMOptions

TINY = BiLMOptions(
    cell_clip=3.0, proj_clip=3.0, use_skip_connections=True, projection_dim=16, dim=32, n_layers=2, activation="relu",
    filters=((1, 8), (2, 8), (3, 16)), n_highway=1, char_embedding_dim=4,
)  # fmt: skip
OBJECTS = ("sentences", "indexes", "states", "states.zarr", "rejects")  # what must be the same bytes whatever happened
SECONDS_AT_MOST = 900
_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class SmallJob:
    """What is embedded: files of lines, and the model."""

    folder: Path
    shard_rows: int = 64

    @classmethod
    def make(cls, folder: Path, n_files: int = 12, n_lines: int = 60, *, shard_rows: int = 64, text_seed: int = 7) -> "SmallJob":
        """A corpus of about 12 tokens a line, blank and refused lines among them, and a random model."""
        folder.mkdir(parents=True, exist_ok=True)
        random_weights(TINY).save_safetensors(folder / "model.safetensors")
        (folder / "corpus").mkdir(exist_ok=True)
        words = ["the", "cat", "sat", "on", "a", "mat", ",", "naïve", "dogs", "ran", "東京", "away", "from", "it", "quickly", "."]
        draw = random.Random(text_seed)
        for number in range(n_files):
            lines = [" ".join(draw.choices(words, k=draw.randint(0, 24))).encode() for _ in range(n_lines)]
            lines[number % n_lines] = b"refused: \xff"
            (folder / "corpus" / f"{number:03d}.lines").write_bytes(b"\n".join(lines) + b"\n")
        return cls(folder, shard_rows)

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
        _CONTEXT.set_forkserver_preload(["benchmarks.chaos.preload"])
        self.log = log
        self._process = _CONTEXT.Process(target=_run, args=(list(arguments), str(log), prepare))
        self._process.start()

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return not self._process.is_alive()

    def wait(self, seconds: float = SECONDS_AT_MOST) -> int:
        """Its exit code; below 0 if a signal ended it. TimeoutError with its log's end if it does not end in time."""
        self._process.join(seconds)
        if self._process.is_alive():
            self.kill_group()
            raise TimeoutError(f"the command did not end within {seconds} s:\n{self.said()[-3000:]}")
        code = self._process.exitcode
        return code if code is not None else -1

    def kill_group(self) -> None:
        """kill -9: the process, if it still runs, and all that it started."""
        if self._process.pid:  # killpg of 0 is one's own
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()

    def wait_until_stopped(self) -> bool:
        """Wait for SIGSTOP or the end; whether it stands still."""
        while not self.ended:
            with suppress(OSError, IndexError):
                state = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state == "T":
                    return True
            time.sleep(0.005)
        return False

    def go_on(self) -> None:
        """SIGCONT."""
        if self._process.pid:
            os.kill(self._process.pid, signal.SIGCONT)

    def said(self) -> str:
        """What it wrote to the screen."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def _run(arguments: list[str], log: str, prepare: Callable[[], Any] | None) -> None:
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    ends = prepare() if prepare else None
    from pipeline.main import main

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
    files = [path for name in OBJECTS for path in _objects(store / name)]
    return {str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _objects(folder: Path) -> list[Path]:
    """Files below ``folder``. Nobody takes a temporary one for an object; on a file server it stays where its removal failed."""
    return [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(TEMPORARY_PREFIX)]


def faults_of(url: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """What a deep look finds wrong with a complete store."""
    import elmo_store
    from elmo_store.checking.verify import verify

    store = elmo_store.open(url, storage_options=dict(storage_options or {}))
    return [fault.text for fault in verify(store, deep=True).faults]


def problem_of(output: Path, code: int, wanted: dict[str, str]) -> str:
    """What is wrong with a job that was disturbed and continued; "" if nothing is."""
    if code:
        return f"exit code {code}"
    found = contents(output)
    if found != wanted:
        return f"other bytes: {sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))[:5]}"
    if left := [name for name in ("_work", "_lease") if _objects(output / name)]:
        return f"{', '.join(left)} stayed"
    faults = faults_of(str(output))
    return f"verify: {faults[:3]}" if faults else ""


@dataclass
class Found:
    """What came of the faults: a row of counts a kind, and what was not as it must be."""

    head: str  # of the rows' names
    columns: tuple[str, ...]
    total: bool = True  # whether a last row has the sums
    rows: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def count(self, row: str, counts: Iterable[str] | Mapping[str, int], wrong: str = "") -> None:
        """Add to a row; ``wrong``: what was not as it must be, if anything."""
        self.rows.setdefault(row, Counter()).update(counts)
        if wrong:
            self.rows[row]["wrong"] += 1
            self.wrong.append(f"{row}: {wrong}")

    def table(self) -> str:
        """As Markdown."""
        sums = {"all": sum(self.rows.values(), Counter())} if self.total else {}
        lines = [[self.head, *self.columns, "wrong"], ["---"] * (len(self.columns) + 2)]
        lines += [
            [name, *(f"{row[column]:,}" for column in (*self.columns, "wrong"))] for name, row in (self.rows | sums).items()
        ]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
