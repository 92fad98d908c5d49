"""``python -m benchmarks.gpu.day --out FOLDER``: all that waits for a GPU, in twenty minutes and in this order.

Each step is a process of its own with its own limit. What it prints stands in FOLDER/NN-NAME.txt as it comes, a line of each in
FOLDER/summary.txt. Ends with 0 if all went well, 1 if a step failed or was out of time, 3 without a GPU. --rehearse runs the same
steps on the CPU with tiny sizes.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.support import options_of

NO_GPU = 3


@dataclass(frozen=True)
class Step:
    """A command, and how many minutes it may take."""

    name: str
    minutes: float
    arguments: tuple[str, ...]  # of `python -m`


def steps(rehearse: bool) -> list[Step]:
    """In their order: what matters most comes first."""
    device, shape, tokens = ("cpu", "tiny", "400") if rehearse else ("cuda", "full", "1000000")
    job = (
        "benchmarks.job",
        "--precision",
        "bfloat16",
        "--device",
        device,
        "--shape",
        shape,
        "--tokens",
        tokens,
        "--runs",
        "1",
    )
    tests = "tests/model/engine/test_engine_cuda.py"
    engine = (
        "benchmarks.engine",
        "--device",
        device,
        "--tokens",
        tokens,
        "--shape",
        "small" if rehearse else shape,
    )
    once = ("--repeats", "1", "--precision", "float32") if rehearse else ()
    few = ("--lanes", "4", "--batches", "1") if rehearse else ()
    return [
        Step(
            "tests",
            5,
            (
                "pytest",
                "-n0",
                "-q",
                "-rs",
                tests,
                *(("-k", "one_copy or on_a_gpu") if rehearse else ()),
            ),
        ),
        Step("engine", 5, (*engine, *once)),
        Step("job", 3, job),
        Step("job-int8", 2, (*job, "--dtype=int8")),
        Step("job-text", 2, (*job, "--input-format=text")),
        Step("train", 3, ("benchmarks.train", "--device", device, *few)),
    ]


def run(step: Step, path: Path) -> str:
    """Run a step into a file and say in a few words how it ended; all its processes are gone after that."""
    command = [sys.executable, "-u", "-m", *step.arguments]
    with path.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(60 * step.minutes)
            return "well" if code == 0 else f"FAILED with {code}"
        except subprocess.TimeoutExpired:
            return f"OUT OF TIME after {step.minutes:g} min"
        finally:
            with suppress(
                ProcessLookupError
            ):  # a step that ended may have left processes that hold the GPU
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_all(todo: list[Step], folder: Path) -> bool:
    """Whether all ended well."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, step in enumerate(todo, 1):
        began, name = time.monotonic(), f"{number:02d}-{step.name}"
        ended = run(step, folder / f"{name}.txt")
        lines.append(f"{name:16s} {time.monotonic() - began:7.1f} s  {ended}")
        print(lines[-1], flush=True)
        (folder / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return all(line.endswith("well") for line in lines)


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny sizes")
    args = parser.parse_args()
    if not args.rehearse:
        import torch

        if not torch.cuda.is_available():
            print(
                "no GPU here: PyTorch finds no CUDA device; --rehearse runs the same steps on the CPU",
                file=sys.stderr,
            )
            return NO_GPU
    return 0 if run_all(steps(args.rehearse), args.out) else 1


if __name__ == "__main__":
    sys.exit(main())
