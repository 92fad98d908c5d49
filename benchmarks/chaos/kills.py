"""kill -9 at random moments, the same command again, identical bytes.

May import benchmarks.chaos.job, deploy and the exit codes.
"""

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.job import RUNNERS, STAGES, Command, SmallJob, contents, problem_of, stage_of, table
from pipeline.exit_codes import Exit

KILLS_A_JOB = 6  # at most, before it is let run to its end
REFUSALS = 10  # of a command, at most, while the engine still runs the job of a launcher that was killed
FORMS = ("zarr", "parquet", "both")


@dataclass
class Kills:
    """What was killed, and what came of it."""

    by_stage: dict[str, Counter[str]] = field(default_factory=dict)  # runner → stage → kills
    completions: Counter[str] = field(default_factory=Counter)
    refused: int = 0  # commands, because the job of a killed launcher was still at work on the engine
    wrong: list[str] = field(default_factory=list)  # one line a completion that was not as it must be

    @property
    def n_kills(self) -> int:
        """Of all runners."""
        return sum(sum(stages.values()) for stages in self.by_stage.values())

    def table(self) -> str:
        """Kills by stage, a row a runner."""
        rows = [
            [runner, *(stages[stage] for stage in STAGES), sum(stages.values()), self.completions[runner]]
            for runner, stages in self.by_stage.items()
        ]
        head = ["runner", *STAGES, "kills", "jobs completed"]
        refused = f"commands refused while the engine still ran their job: {self.refused}\n\n" if self.refused else ""
        return f"{table(head, rows)}\n\n{refused}completions that were not as they must be: {len(self.wrong)}"


def run(folder: Path, n_kills: int, seed: int = 0, runners: tuple[str, ...] = tuple(RUNNERS)) -> Kills:
    """Kill so many commands in all, spread over runners and forms."""
    draw = random.Random(seed)
    job = SmallJob.make(folder / "input")
    wanted: dict[str, dict[str, str]] = {}
    took: dict[str, float] = {}
    for form in FORMS:
        output = folder / f"whole-{form}"
        for runner in runners if form == "both" else runners[:1]:
            began = time.monotonic()
            code = Command(job.arguments(output, form, *RUNNERS[runner]), folder / "log").wait()
            took[runner] = time.monotonic() - began
            if code or wanted.setdefault(form, contents(output)) != contents(output):
                raise RuntimeError(f"the job fails without any fault ({code})")
            shutil.rmtree(output)
    found = Kills()
    number = 0
    while found.n_kills < n_kills:
        runner, form = runners[number % len(runners)], draw.choice(FORMS)
        output = folder / f"killed-{number}"
        stages = found.by_stage.setdefault(runner, Counter())
        arguments = job.arguments(output, form, *RUNNERS[runner])
        log = folder / f"log-{number}"
        for _ in range(min(draw.randint(1, KILLS_A_JOB), n_kills - found.n_kills)):
            stage = _killed(Command(arguments, log), output, draw, took[runner])
            if stage:
                stages[stage] += 1
        last = Command(arguments, log)
        code = last.wait()
        found.completions[runner] += 1
        problem = problem_of(output, code, wanted[form])
        if problem:
            found.wrong.append(f"{runner}, {form}, job {number}: {problem}\n{last.said()[-2000:]}")
        else:
            shutil.rmtree(output)
        number += 1
    return found


def _killed(command: Command, output: Path, draw: random.Random, seconds: float) -> str:
    """Kill at a random moment of time, or a moment after a random stage began; the stage that was hit, "" if it ended before."""
    if draw.random() < 0.5:
        _until_ended(command, draw.uniform(0, seconds))
    else:
        after = STAGES[draw.randrange(1, 5)]
        _until_stage(command, output, after, 60)
        _until_ended(command, draw.uniform(0, 0.05))
    if command.ended:
        return ""
    group = draw.random() < 0.7
    command.kill(group=group)
    stage = stage_of(output)
    if not group:
        time.sleep(draw.uniform(0, 0.5))  # the workers that the launcher left behind go on for a while
        command.end_group()
    return stage


def _until_ended(command: Command, seconds: float) -> None:
    _until(lambda: command.ended, seconds)


def _until_stage(command: Command, output: Path, stage: str, seconds: float) -> None:
    _until(lambda: command.ended or STAGES.index(stage_of(output)) >= STAGES.index(stage), seconds)


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not condition():
        time.sleep(0.002)


def run_on_flink(folder: Path, n_kills: int, seed: int = 0) -> Kills:
    """Kill TaskManagers, with the workers in them, and launchers, with their job servers, on a cluster of this machine."""
    from deploy.flink.cluster import flink_cluster

    draw = random.Random(seed)
    job = SmallJob.make(folder / "input")
    if code := Command(job.arguments(folder / "whole", "both"), folder / "log").wait():
        raise RuntimeError(f"the job fails without any fault ({code})")
    wanted = contents(folder / "whole")
    found = Kills()
    with flink_cluster(folder / "flink", 2) as cluster:
        for number in range(n_kills):
            output, log = folder / f"killed-{number}", folder / f"log-{number}"
            arguments = job.arguments(output, "both", *cluster.beam_options())
            command = Command(arguments, log)
            after = STAGES[draw.randrange(1, 4)]
            _until_stage(command, output, after, 120)
            _until_ended(command, draw.uniform(0, 2))
            whom = ("Flink: a TaskManager", "Flink: the launcher")[number % 2]
            stages = found.by_stage.setdefault(whom, Counter())
            if not command.ended:
                stages[stage_of(output)] += 1
            if whom == "Flink: the launcher":
                command.kill()
            else:
                alive = [one for one in cluster.task_managers if one.process.poll() is None]
                draw.choice(alive).kill()
                cluster.add_task_manager()
            code = command.wait() if whom != "Flink: the launcher" else -1
            for _ in range(REFUSALS):  # the same command again
                if not code:
                    break
                code = Command(arguments, log).wait()
                found.refused += code == Exit.REFUSED
                if code != Exit.REFUSED:  # by the job that goes on without its launcher
                    break
            found.completions[whom] += 1
            if problem := problem_of(output, code, wanted):
                found.wrong.append(f"{whom}, job {number}: {problem}\n{command.said()[-2000:]}")
    return found
