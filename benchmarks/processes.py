"""Run a command and measure it with its children: seconds and peak memory. Linux only (/proc); standard library only."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class Measured:
    """One run: wall-clock seconds, and the sum over its processes of each one's own peak of resident memory, in bytes."""

    seconds: float
    peak_bytes: int
    output: str


def run_measured(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Measured:
    """Run ``arguments`` to the end. RuntimeError with its output if it fails.

    A process's peak is the kernel's own (VmHWM), so that no peak between two samples is missed; pages that processes
    share are counted in each.
    """
    began = time.perf_counter()
    peaks: dict[int, int] = {}
    process = subprocess.Popen(
        arguments, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while process.poll() is None:
        for pid in family(process.pid):
            peaks[pid] = max(peaks.get(pid, 0), peak_resident(pid))
        time.sleep(SAMPLE_SECONDS)
    seconds = time.perf_counter() - began
    output = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}:\n{output}")
    return Measured(seconds, sum(peaks.values()), output)


def family(pid: int) -> list[int]:
    """``pid`` and all its descendants that live."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += family(int(child))
    except OSError:
        pass
    return found


def peak_resident(pid: int) -> int:
    """Peak of resident memory of one process so far in bytes; 0 if it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def elmo_store(*arguments: str) -> list[str]:
    """The command line of ``elmo-store`` in a process of its own, by the Python that runs this."""
    return [sys.executable, "-m", "elmo_store", *arguments]


def machine() -> str:
    """CPU, cores and versions, for the head of a table."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    import torch

    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores{gpu}; Python {platform.python_version()}, PyTorch {torch.__version__}"
