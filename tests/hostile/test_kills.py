"""kill -9 of every command, and two of it at once: the bytes of an undisturbed run, and nothing left."""

import random
import re
import time

import pytest

from pipeline.cli.exit_codes import Exit
from tests.hostile.commands import Bench, Case, Run
from tests.hostile.jobs import Trap

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ANYWHERE = (
    "embed",
    "convert",
    "mix",
    "export, npz",
    "report",
    "collect",
    "embed, into",
    "remove",
    "compact",
)
LATE = ("embed", "collect")  # killed in the last tenth of their changes too
LATE_SECONDS = 0.01  # after a change, at most, for what a library writes by itself


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("kills"))


def test_every_case_is_here(bench: Bench) -> None:
    assert set(bench.cases) == set(ANYWHERE)


@pytest.mark.parametrize(
    ("name", "late"), [*((name, False) for name in ANYWHERE), *((name, True) for name in LATE)]
)
def test_a_command_that_is_killed_ends_as_undisturbed(bench: Bench, name: str, late: bool) -> None:
    case = bench.cases[name]
    whole = bench.undisturbed(case)
    run, trap = _killed(bench, case, name, late)
    repeated = run.start()
    code = repeated.wait()
    if code == Exit.REFUSED and name.startswith(
        "export"
    ):  # it was killed after it had published all
        assert "a finished export is here" in repeated.output()
    elif code == Exit.BAD_LOCATION and name == "remove":  # it was killed after its version was put
        assert "no sentence has any of these" in repeated.output()
    else:
        assert code == Exit.COMPLETE, f"{trap}: {repeated.output()}"
    assert bench.difference(run, whole) == "", f"{trap}, {trap.changes()[-1:]}"
    run.remove()


def _killed(bench: Bench, case: Case, name: str, late: bool) -> tuple[Run, Trap]:
    """A run that was killed before it ended, at a change of a file or shortly after."""
    changes, draw = bench.undisturbed(case).changes, random.Random(f"{name} {late}")
    first = int(0.9 * changes) + 1 if late else 1
    while True:
        run = bench.begin(case, f"kill {late}")
        at = draw.randint(min(first, changes), changes)
        trap = Trap(
            run.folder, run.log("changes"), at, draw.choice((0.0, draw.uniform(0, LATE_SECONDS)))
        )
        command = run.start(trap=trap)
        if command.wait() < 0:
            break
        run.remove()  # it ended before
    time.sleep(draw.choice((0, 0.5)))  # workers that it left behind may go on for a while
    command.kill_group()
    return run, trap


@pytest.mark.parametrize("take_over", [False, True])
@pytest.mark.parametrize("other_job", [False, True])
@pytest.mark.parametrize("name", ["embed", "convert", "export, npz"])
def test_two_at_once_leave_the_bytes_of_one(
    bench: Bench, name: str, other_job: bool, take_over: bool
) -> None:
    """The first is stopped before a change, the second runs to its end, the first goes on."""
    case = bench.cases[name]
    whole, draw = bench.undisturbed(case), random.Random(f"{name} {other_job} {take_over}")
    second_job = case.other if other_job else ()
    options = [
        *second_job,
        *["--overwrite"] * bool(second_job),
        *["--take-over"] * (case.takes_over and take_over),
    ]
    run, at = bench.begin(case, f"pair {other_job} {take_over}"), draw.randint(1, whole.changes)
    first = run.start(trap=Trap(run.folder, run.log("changes"), at, stops=True))
    assert first.wait_until_stopped(), first.output()
    second = run.start(*options, log="second")
    refused = second.wait() != 0
    first.resume()
    failed = first.wait() != 0
    said = f"stopped before change {at} of {whole.changes}\nsecond {options}: {second.output()}\nfirst: {first.output()}"
    assert bench.difference(run, bench.undisturbed(case, *(() if refused else second_job))) == "", (
        said
    )
    assert not (refused and failed), said
    if second_job and at < 0.9 * whole.changes:  # later the first may have been complete
        assert refused or failed, said
    run.remove()


def test_what_was_killed_is_found(bench: Bench) -> None:
    """The comparison itself: a file left behind, one that is gone, other bytes."""
    case = bench.cases["report"]
    run, whole = bench.begin(case, "compared"), bench.undisturbed(case)
    assert run.start().wait() == 0
    assert bench.difference(run, whole) == ""
    part, facts = (
        run.folder / "out/sentences/part-00000.parquet",
        run.folder / "out/indexes/text/00000.parquet",
    )
    (run.folder / "out/.writing-0-facts.json").write_text("{}")
    assert bench.difference(run, whole) == "left behind: 1, as ['out/.writing-0-facts.json?']"
    (run.folder / "out/.writing-0-facts.json").unlink()
    part.write_bytes(part.read_bytes()[:-1])
    facts.unlink()
    assert re.match(
        r"missing: \d+, as .*text/00000.*; other bytes: 1, as .*part-00000",
        bench.difference(run, whole),
    )
