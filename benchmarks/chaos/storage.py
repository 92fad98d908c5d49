"""Storage that fails, tears and delays: the job completes with the same bytes, or says which shard and continues to them.

May import benchmarks.chaos.{filesystem,job}.
"""

import json
import random
import re
import shutil
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.chaos.filesystem import PROTOCOL, register
from benchmarks.chaos.job import Command, SmallJob, contents, problem_of, table

RUNS_AT_MOST = 25


@dataclass
class StorageFaults:
    """What was injected, and what came of it."""

    jobs: int = 0
    runs: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    first_time: int = 0  # jobs that completed at once
    unexplained: list[str] = field(default_factory=list)  # runs that ended with a traceback, or named nothing
    wrong: list[str] = field(default_factory=list)

    def table(self) -> str:
        """One row."""
        kinds = ("operations", "failed", "torn", "done and failed", "slow")
        head = ["jobs", "runs", *kinds, "jobs complete at once", "exit codes of the others"]
        others = ", ".join(f"{code}: {n}" for code, n in sorted(self.exits.items()) if code) or "none"
        row = [self.jobs, self.runs, *(f"{self.operations[kind]:,}" for kind in kinds), self.first_time, others]
        return (
            f"{table(head, [row])}\n\ncompletions that were not as they must be: {len(self.wrong)}; "
            f"failures without place or with a traceback: {len(self.unexplained)}"
        )


def run(folder: Path, rate: float, n_jobs: int, seed: int = 0) -> StorageFaults:
    """So many jobs, each repeated until it completes, on storage of which a share ``rate`` of operations goes wrong."""
    draw = random.Random(seed)
    job = SmallJob.make(folder / "input")
    whole = folder / "whole"
    wanted = {}
    for form in ("zarr", "both"):
        if Command(job.arguments(whole, form), folder / "log").wait():
            raise RuntimeError("the job fails without any fault")
        wanted[form] = contents(whole)
        shutil.rmtree(whole)
    found = StorageFaults()
    for number in range(n_jobs):
        form = draw.choice(sorted(wanted))
        output = folder / f"faults-{number}"
        protocol = draw.choice([PROTOCOL, f"{PROTOCOL}-files"])
        arguments = job.arguments(f"{protocol}://{output}", form, "--storage-options", json.dumps({"rate": rate}))
        for attempt in range(RUNS_AT_MOST):
            log, counts = folder / f"log-{number}-{attempt}", folder / "counts"
            counts.write_text("{}")
            command = Command(arguments, log, partial(register, draw.randrange(1 << 30), str(counts)))
            code = command.wait()
            found.runs += 1
            found.exits[code] += 1
            found.operations.update(json.loads(counts.read_text()))
            said = command.said()
            if code and ("Traceback (most recent call last)" in said or code not in (3, 4) or not _has_place(said)):
                found.unexplained.append(f"job {number}, run {attempt}, exit {code}:\n{said[-2000:]}")
            if code == 0:
                found.first_time += attempt == 0
                break
        found.jobs += 1
        if problem := problem_of(output, code, wanted[form]):
            found.wrong.append(f"job {number}, {form}, {protocol}: {problem}\n{said[-2000:]}")
        else:
            shutil.rmtree(output)
    return found


def _has_place(said: str) -> bool:
    """Whether a failure names what it could not read or write."""
    return bool(re.search(r"shard|part|task|output|faults-\d+|elmo_store\.json", said))
