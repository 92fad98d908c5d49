"""What benchmarks share: a command measured with its children (Linux: /proc), medians of turns, and tables."""

import argparse
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

K = TypeVar("K")
SAMPLE_SECONDS = 0.1
COMMAND = (sys.executable, "-m", "elmo_store")  # by the Python that runs this


@dataclass(frozen=True)
class Measured:
    """One run: wall-clock seconds, and the sum over its processes of each one's own peak of resident memory, in bytes."""

    seconds: float
    peak_bytes: int


def run_measured(*arguments: str) -> Measured:
    """Run ``elmo-store`` with these arguments to its end. RuntimeError with its output if it fails.

    A process's peak is the kernel's own (VmHWM), so that no peak between two samples is missed; pages that processes
    share are counted in each.
    """
    began = time.perf_counter()
    peaks: dict[int, int] = {}
    process = psutil.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            for pid in (process.pid, *(child.pid for child in process.children(recursive=True))):
                peaks[pid] = max(peaks.get(pid, 0), peak_resident(pid))
        time.sleep(SAMPLE_SECONDS)
    seconds = time.perf_counter() - began
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(
            f"elmo-store {' '.join(arguments)} ended with {process.returncode}:\n{output}"
        )
    return Measured(seconds, sum(peaks.values()))


def peak_resident(pid: int) -> int:
    """Peak of resident memory of one process so far in bytes; 0 if it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def machine() -> str:
    """CPU, cores and versions, for the head of a table."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    cores = len(os.sched_getaffinity(0))
    name = names[0] if names else platform.machine()
    return f"{name}, {cores} cores{gpu}; Python {platform.python_version()}, PyTorch {torch.__version__}"


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call, by default of the wall clock."""
    began = clock()
    work()
    return clock() - began


def in_turns(
    works: Mapping[K, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, float]:
    """Median seconds of each, all called once a round, after one round that does not count.

    In turns, because a machine that others use drifts by more within minutes than the works differ by.
    """
    taken: dict[K, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            taken[name].append(seconds(work, clock))
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


@contextmanager
def working_folder(kept: Path | None = None) -> Iterator[Path]:
    """A folder for what a benchmark makes: ``kept``, made if it is not there, or one that is removed at the end."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = kept or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


class Table:
    """A table on the terminal, each row printed as soon as it is measured: a label, then numbers to the right."""

    def __init__(self, title: str, label: str, *columns: str, label_width: int = 24) -> None:
        """Print the heads."""
        print(f"\n{title}")
        self._widths = [max(10, len(column)) + 3 for column in columns]
        self._label_width = label_width
        self.row(label, *columns)

    def row(self, label: str, *cells: str | float) -> None:
        """One line; counts with separators, other numbers with three digits or all before the point."""
        values = (
            f"{_text(cell):>{width}}" for cell, width in zip(cells, self._widths, strict=True)
        )
        print(f"{label:<{self._label_width}}{''.join(values)}", flush=True)


def _text(cell: str | float) -> str:
    if isinstance(cell, float):
        return f"{cell:,.{min(3, max(0, 2 - math.floor(math.log10(abs(cell)))))}f}" if cell else "0"
    return cell if isinstance(cell, str) else f"{cell:,}"


def options_of(
    doc: str | None, tables: Sequence[str] = (), default: str = "all"
) -> argparse.ArgumentParser:
    """A parser whose help is the module's docstring. With ``tables`` it takes names of some of them, by default ``default``."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def known(name: str) -> str:
        if name not in tables:
            raise argparse.ArgumentTypeError(f"no table {name!r}: known are {', '.join(tables)}")
        return name

    if tables:
        chosen = list(tables) if default == "all" else [default]
        parser.add_argument(
            "tables",
            nargs="*",
            type=known,
            default=chosen,
            help=f"of {', '.join(tables)} (default: {default})",
        )
    return parser
