"""Two at once: the first is stopped in its middle, a second runs to its end, the first goes on. The bytes are one run's."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.chaos.commands import Bench, Case
from benchmarks.chaos.job import Found
from benchmarks.chaos.trap import Trap

COLUMNS = ("pairs", "second refused", "first failed", "first ended the same")


def run(folder: Path, n_pairs: int, seed: int = 0, names: Sequence[str] = ()) -> Found:
    """So many pairs of each command; ``names``: of some commands only."""
    bench, found = Bench(folder), Found("command", COLUMNS)
    cases = [case for name, case in bench.cases.items() if not names or name in names]
    for case in cases:
        bench.undisturbed(case)
        if case.other:
            bench.undisturbed(case, *case.other)
    asked = [(case, number) for number in range(n_pairs) for case in cases]
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda one: _pair(bench, one[0], one[1], seed), asked)
        for (case, number), (outcome, problem) in zip(asked, done, strict=True):
            found.count(case.name, ("pairs", outcome), problem and f"pair {number}: {problem}")
    return found


def _pair(bench: Bench, case: Case, number: int, seed: int) -> tuple[str, str]:
    """One pair: its outcome, and what is wrong. Pairs 0, 1: the same command; 2, 3: another job; 1, 3 take the output over."""
    draw = random.Random(f"{seed} {case.name} {number}")
    run, whole = bench.begin(case, f"pair {number}"), bench.undisturbed(case)
    second_job = case.other if number % 4 >= 2 else ()
    options = [*second_job, *["--overwrite"] * bool(second_job), *["--take-over"] * (case.takes_over and number % 2)]
    at = draw.randint(1, whole.changes)
    first = run.start(trap=Trap(run.folder, run.log("changes"), at, stops=True))
    if not first.wait_until_stopped():
        raise RuntimeError(f"{case.name} ended before change {at} of {whole.changes}:\n{first.said()}")
    second = run.start(*options, log="second")
    second_code = second.wait()
    first.go_on()
    first_code = first.wait()
    refused, same = second_code != 0, not second_job
    outcome = "second refused" if refused else "first failed" if first_code else "first ended the same"
    problem = bench.difference(run, bench.undisturbed(case, *(() if refused else second_job)))
    if refused and first_code:
        problem = f"both failed; {problem}"
    if not refused and not first_code and not same and at < 0.9 * whole.changes:  # later it may have been complete
        problem = f"both say that they are complete, and are different jobs; {problem}"
    if not problem:
        run.remove()
        return outcome, ""
    at_text = f"stopped before change {at} of {whole.changes}; second {options}: {second_code}, first: {first_code}"
    return outcome, f"{at_text}: {problem}\nsecond: {second.said()[-700:]}\nfirst: {first.said()[-700:]}"
