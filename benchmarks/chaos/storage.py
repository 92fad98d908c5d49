"""Storage that fails, tears and delays: the job completes with the same bytes, or says which shard and continues to them."""

import json
import random
import re
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

from benchmarks.chaos.filesystem import PROTOCOL, register
from benchmarks.chaos.job import Command, Found, SmallJob, contents, problem_of

RUNS_AT_MOST = 25
COLUMNS = ("jobs", "complete at once", "runs", "operations", "failed", "torn", "done and failed", "slow")


def run(folder: Path, rate: float, n_jobs: int, seed: int = 0) -> Found:
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
    found = Found("storage", COLUMNS)
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
            said = command.said()
            plain = "Traceback (most recent call last)" not in said and code in (3, 4) and _has_place(said)
            problem = "" if plain or code == 0 else f"unexplained, exit {code}:\n{said[-2000:]}"
            found.count(protocol, Counter(json.loads(counts.read_text())) + Counter(["runs"]), problem)
            if code == 0:
                found.count(protocol, ["complete at once"] * (attempt == 0))
                break
        problem = problem_of(output, code, wanted[form])
        found.count(protocol, ["jobs"], problem and f"job {number}, {form}: {problem}\n{said[-2000:]}")
        if not problem:
            shutil.rmtree(output)
    return found


def _has_place(said: str) -> bool:
    """Whether a failure names what it could not read or write."""
    return bool(re.search(r"shard|part|task|output|faults-\d+|elmo_store\.json", said))
