"""kill -9 of every command, at changes of files and at random times; the same command again; identical bytes, nothing left."""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.chaos.commands import Bench, Case
from benchmarks.chaos.job import Found
from benchmarks.chaos.trap import Trap

COLUMNS = ("changes of files", "kills", "at a change", "at a random time", "in the last tenth")
LAST_TENTH = 0.25  # share of the kills that aim at it; those at random times hit it too
LATE_SECONDS = 0.01  # after a change, at most, for what a library writes by itself


def run(folder: Path, n_kills: int, seed: int = 0, names: Sequence[str] = ()) -> Found:
    """So many kills in all (at least), the same number of each command; ``names``: of some commands only."""
    bench, found = Bench(folder), Found("command", COLUMNS)
    cases = [case for name, case in bench.cases.items() if not names or name in names]
    for case in cases:
        found.count(case.name, {"changes of files": bench.undisturbed(case).changes})
    asked = [(case, number) for number in range(-(-n_kills // len(cases))) for case in cases if number < case.kills_at_most]
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda one: _killed(bench, one[0], one[1], seed), asked)
        for (case, number), (columns, problem) in zip(asked, done, strict=True):
            found.count(case.name, columns, problem and f"kill {number}: {problem}")
    return found


def _killed(bench: Bench, case: Case, number: int, seed: int) -> tuple[list[str], str]:
    """One kill that hit, and the same command again: the columns that it counts for, and what is wrong."""
    whole = bench.undisturbed(case)
    draw = random.Random(f"{seed} {case.name} {number}")
    while True:
        run = bench.begin(case, f"kill {number}")
        trap = _trap(run.folder, run.log("changes"), whole.changes, whole.seconds, draw, number)
        command = run.start(trap=trap)
        code = command.wait()
        if code < 0:
            break
        run.remove()  # it ended before
    time.sleep(draw.choice((0, 0.5)))  # workers that it left behind may go on for a while
    command.kill_group()
    changes = trap.changes()
    columns = ["kills", "at a change" if trap.at else "at a random time"]
    columns += ["in the last tenth"] * (len(changes) >= 0.9 * whole.changes)
    again = run.start()
    code = again.wait()
    problem = bench.difference(run, whole) if code == 0 else f"the same command again: exit code {code}\n{again.said()[-1500:]}"
    if not problem:
        run.remove()
    return columns, problem and f"{trap}, change {len(changes)} of {whole.changes}, {changes[-1:]}: {problem}"


def _trap(folder: Path, log: Path, changes: int, seconds: float, draw: random.Random, number: int) -> Trap:
    if number % 3 == 2:
        return Trap(folder, log, 0, draw.uniform(0.01, seconds))
    first = int(0.9 * changes) + 1 if draw.random() < LAST_TENTH * 1.5 else 1
    at = draw.randint(min(first, changes), changes)
    return Trap(folder, log, at, draw.choice((0.0, draw.uniform(0, LATE_SECONDS))))
