"""kill -9 of every command, and two of it at once: identical bytes, nothing left.

A kill comes at a change of a file or at a random time; then the same command is given again. Of two at once the first is stopped
in its middle, the second runs to its end, the first goes on; the bytes are one run's.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.chaos.commands import Bench, Case
from benchmarks.chaos.job import Outcomes, Trap

LAST_TENTH = 0.25  # share of the kills that aim at it; those at random times hit it too
LATE_SECONDS = 0.01  # after a change, at most, for what a library writes by itself
Disturb = Callable[[Bench, Case, int, random.Random], tuple[list[str], str]]  # columns that it counts for, and what is wrong


def kills(folder: Path, n_kills: int, seed: int = 0, names: Sequence[str] = ()) -> Outcomes:
    """So many kills in all (at least), the same number of each command; ``names``: of some commands only."""
    outcomes = Outcomes("command", ("changes of files", "kills", "at a change", "at a random time", "in the last tenth"))
    bench, cases = _bench(folder, names)
    for case in cases:
        outcomes.count(case.name, {"changes of files": bench.undisturbed(case).changes})
    numbers = range(-(-n_kills // len(cases)))
    asked = [(case, number) for number in numbers for case in cases if number < case.kills_at_most]
    return _disturb(bench, asked, _kill, seed, outcomes)


def pairs(folder: Path, n_pairs: int, seed: int = 0, names: Sequence[str] = ()) -> Outcomes:
    """So many pairs of each command; ``names``: of some commands only."""
    outcomes = Outcomes("command", ("pairs", "second refused", "first failed", "first ended the same"))
    bench, cases = _bench(folder, names)
    for case in cases:
        bench.undisturbed(case, *case.other)
    return _disturb(bench, [(case, number) for number in range(n_pairs) for case in cases], _pair, seed, outcomes)


def _bench(folder: Path, names: Sequence[str]) -> tuple[Bench, list[Case]]:
    """The cases of these names, or all; each was run undisturbed."""
    bench = Bench(folder)
    cases = [case for name, case in bench.cases.items() if not names or name in names]
    for case in cases:
        bench.undisturbed(case)
    return bench, cases


def _disturb(bench: Bench, asked: Iterable[tuple[Case, int]], disturb: Disturb, seed: int, outcomes: Outcomes) -> Outcomes:
    def one(item: tuple[Case, int]) -> tuple[str, list[str], str]:
        case, number = item
        columns, problem = disturb(bench, case, number, random.Random(f"{seed} {case.name} {number}"))
        return case.name, columns, problem and f"number {number}: {problem}"

    with ThreadPoolExecutor(2) as pool:
        for outcome in pool.map(one, asked):
            outcomes.count(*outcome)
    return outcomes


def _kill(bench: Bench, case: Case, number: int, draw: random.Random) -> tuple[list[str], str]:
    """One kill that hit, and the same command again."""
    whole = bench.undisturbed(case)
    while True:
        run = bench.begin(case, f"kill {number}")
        at, delay_seconds = _moment(whole.changes, whole.seconds, draw, number)
        trap = Trap(run.folder, run.log("changes"), at, delay_seconds)
        command = run.start(trap=trap)
        if command.wait() < 0:
            break
        run.remove()  # it ended before
    time.sleep(draw.choice((0, 0.5)))  # workers that it left behind may go on for a while
    command.kill_group()
    changes = trap.changes()
    columns = ["kills", "at a change" if at else "at a random time"]
    columns += ["in the last tenth"] * (len(changes) >= 0.9 * whole.changes)
    repeated = run.start()
    code = repeated.wait()
    problem = (
        bench.difference(run, whole) if code == 0 else f"the same command again: exit code {code}\n{repeated.output()[-1500:]}"
    )
    if not problem:
        run.remove()
    return columns, problem and f"{trap}, change {len(changes)} of {whole.changes}, {changes[-1:]}: {problem}"


def _moment(changes: int, seconds: float, draw: random.Random, number: int) -> tuple[int, float]:
    """`Trap.at` and its delay."""
    if number % 3 == 2:
        return 0, draw.uniform(0.01, seconds)
    first = int(0.9 * changes) + 1 if draw.random() < LAST_TENTH * 1.5 else 1
    return draw.randint(min(first, changes), changes), draw.choice((0.0, draw.uniform(0, LATE_SECONDS)))


def _pair(bench: Bench, case: Case, number: int, draw: random.Random) -> tuple[list[str], str]:
    """One pair. Pairs 0, 1: the same command; 2, 3: another job; 1, 3 take the output over."""
    run, whole = bench.begin(case, f"pair {number}"), bench.undisturbed(case)
    second_job = case.other if number % 4 >= 2 else ()
    options = [*second_job, *["--overwrite"] * bool(second_job), *["--take-over"] * (case.takes_over and number % 2)]
    at = draw.randint(1, whole.changes)
    first = run.start(trap=Trap(run.folder, run.log("changes"), at, stops=True))
    if not first.wait_until_stopped():
        raise RuntimeError(f"{case.name} ended before change {at} of {whole.changes}:\n{first.output()}")
    second = run.start(*options, log="second")
    second_code = second.wait()
    first.resume()
    first_code = first.wait()
    refused = second_code != 0
    outcome = "second refused" if refused else "first failed" if first_code else "first ended the same"
    problem = bench.difference(run, bench.undisturbed(case, *(() if refused else second_job)))
    if refused and first_code:
        problem = f"both failed; {problem}"
    if not refused and not first_code and second_job and at < 0.9 * whole.changes:  # later it may have been complete
        problem = f"both say that they are complete, and are different jobs; {problem}"
    if not problem:
        run.remove()
        return ["pairs", outcome], ""
    codes = f"stopped before change {at} of {whole.changes}; second {options}: {second_code}, first: {first_code}"
    return ["pairs", outcome], f"{codes}: {problem}\nsecond: {second.output()[-700:]}\nfirst: {first.output()[-700:]}"
