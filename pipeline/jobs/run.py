"""A job at work: run its pipeline with progress on the screen, then the summary or why work is left. Exit codes as `Exit`."""

import re
import shlex
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from elmo_store.errors import LeaseLostError, StoreError
from elmo_store.format.layout import SHARDS
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.markers import marked
from elmo_store.storage.failures import retry
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.signals import heed, name_of, say
from pipeline.jobs.output import differences, problem_of, tidy
from pipeline.progress.bars import Screen, shown
from pipeline.progress.summary import next_steps, summary
from pipeline.progress.troubles import told
from pipeline.runners.beam_options import is_local, name_job
from pipeline.runners.flink import address_of
from pipeline.runners.submission import SubmittedJob, submit, template_of
from transforms.runtime.ended import WorkerEnd, described, read_ends
from transforms.runtime.work import PLAN, PROBLEM, REFUSED, STOPPED, SUMMARY

MOST_SECONDS_TO_TELL = 3.0  # that what watches a worker takes until it has told of its death


@dataclass
class Running:
    """A job as its command runs it, and what became of it so far."""

    command: str
    holder: LeaseHolder
    manifest: Manifest  # of this job, as it began
    options: PipelineOptions
    quiet: bool
    wait: bool  # for the job's end; otherwise the command ends when the engine has the job, which keeps the lease
    is_member: bool = False  # of a collection, which the command says how to go on with
    job: SubmittedJob | None = None  # what the runner was given
    failure: Exception | None = None  # what the runner raised; the store itself tells what is done
    keeps_lease: bool = False  # somebody else goes on, or may

    @property
    def root(self) -> Root:
        return self.holder.root


def run_to_end(running: Running, transform: beam.PTransform[Any, Any] | None) -> Exit | None:
    """Run ``transform``, which completes the store whose lease is held, and say what came of it.

    Without one the job of the lease, whose own command is gone, is followed; None if that leaves work for another one.

    Ctrl-C cancels a job that an engine runs. The lease is given back at the end, unless a job goes on without this command.
    CommandError if an engine does not take it, another run took the output meanwhile, or the storage can't be asked in the end.
    """
    root, holder, began = running.root, running.holder, time.perf_counter()
    try:
        progress = shown(root, Screen(), seconds=0.5 if root.is_local else 5.0)
        with progress if running.wait and not running.quiet else nullcontext():
            if not _submitted(running, transform):
                return Exit.COMPLETE
    except KeyboardInterrupt as end:
        heed(end)
        running.keeps_lease = not stopped(holder, running.job, name_of(end))
        return Exit.INCOMPLETE
    finally:
        new_owner = holder.lost_to
        (holder.leave if running.keeps_lease else holder.end)()
        if is_local(running.options) and not running.keeps_lease:
            for path in Path(tempfile.gettempdir()).glob(f"elmo-store-{holder.run}*"):
                path.unlink(
                    missing_ok=True
                )  # by which processes of this machine found the model; Beam leaves them
    if new_owner is not None:
        raise CommandError(
            Exit.REFUSED,
            f"another run took {root} over: it belongs to {new_owner}; this one stopped",
        )
    if holder.gave_up:  # what a cancelled job says of itself tells less
        running.failure = ConnectionError(holder.gave_up)
    try:
        return _ended(running, time.perf_counter() - began, orphan=transform is None)
    except (OSError, StoreError) as error:  # what ended the job tells more than what is missing now
        if running.failure is None:
            raise
        text = f"incomplete: {_said(running.failure)}; finished work is kept; rerun the same command to resume"
        raise CommandError(Exit.INCOMPLETE, text) from error


def _ended(running: Running, seconds: float, *, orphan: bool) -> Exit | None:
    """Say what came of a job that has ended; None if it was an orphan and left work. Errors of a storage that can't be asked."""
    root = running.root
    manifest = read_manifest(root)
    if LeaseLostError.__name__ in str(running.failure) or differences(
        manifest, running.manifest
    ):  # and it has ended
        raise CommandError(
            Exit.REFUSED, f"another run took {root} over, and has ended; this one stopped"
        )
    if not manifest.complete:
        if orphan and problem_of(root).get("kind") != REFUSED:
            say(
                f"the job that was followed left work: {explain(root, running.failure)}\nsubmitting the rest"
            )
            return None
        return incomplete(running)
    left = left_summary(root)
    return _completed(root, left, quiet=running.quiet, is_member=running.is_member, seconds=seconds)


def _submitted(running: Running, transform: beam.PTransform[Any, Any] | None) -> bool:
    """Hand the job to its runner, and wait for its end; False if it goes on, or begins, without this command."""
    options = running.options
    if transform:
        name_job(options, running.command, running.holder.run)
    try:
        job = (
            submit(transform, options)
            if transform
            else SubmittedJob(None, options, running.holder.job)
        )
        running.job = job
        if template := template_of(options):
            running.keeps_lease = True  # for whoever runs it
            print(f"the job as a template: {template}. The unfinished store is at {running.root}.")
            return False
        if job.id:
            running.holder.say_job(
                job.id, address_of(options), job.cancel
            )  # at once: its page may take seconds to be there
            running.holder.say_job(job.id, job.console, job.cancel)
            stream = sys.stderr if running.wait else sys.stdout
            print(
                f"job {job.id}" + (f"\n{job.console}" if job.console else ""),
                file=stream,
                flush=True,
            )
            if not running.quiet:
                print(
                    f"elmo-store watch {running.root}   # follows it from any terminal",
                    file=stream,
                    flush=True,
                )
        if not running.wait:
            running.keeps_lease = True
            return False
        with told(running.root, job.members) if job.id else nullcontext():
            job.wait()
    except CommandError:
        raise
    except Exception as error:
        running.failure = error
    return True


def incomplete(running: Running) -> Exit:
    """Say why work is left. CommandError (bad location) if the input was refused: the same command would be again."""
    root, failure, job = running.root, running.failure, running.job
    if problem_of(root).get("kind") == REFUSED:
        raise CommandError(Exit.BAD_LOCATION, explain(root, failure))
    if failure is not None and root.size(PROBLEM) is None:  # the last stage was not reached
        leave_word(running.holder, {"message": explain(root, failure)})
    of = f" (job {job.id})" if job is not None and job.id else ""
    say(f"elmo-store {running.command}: incomplete{of}: {explain(root, failure)}")
    say("Finished work is kept; rerun the same command to resume.")
    return Exit.INCOMPLETE


def leave_word(holder: LeaseHolder, problem: Mapping[str, str]) -> None:
    """Say for whoever watches why the run ended, unless another one has the output now."""
    if holder.lost_to is None:
        holder.root.put_json(PROBLEM, problem)


def stopped(holder: LeaseHolder, job: SubmittedJob | None, by: str) -> bool:
    """After Ctrl-C or a signal, ``by``: cancel the job that an engine runs, say what is kept. False if it may still run."""
    if job is not None and job.id is not None:
        say(f"\n{by}: cancelling job {job.id} …")
        try:
            job.cancel()
        except (Exception, KeyboardInterrupt) as error:
            heed(error)
            where = f" at {job.console}" if job.console else ""
            say(
                f"job {job.id} could not be cancelled ({error!r}) and may still run: end it{where} first"
            )
            return False
    text = f"stopped by {by}{kept(holder.root)}; rerun the same command to resume"
    with suppress(OSError, StoreError):
        leave_word(holder, {"message": text, "kind": STOPPED})
    say(f"\n{text}")
    return True


def kept(root: Root) -> str:
    """How much of the job on ``root`` is there, after a colon; "" as long as nothing is planned."""
    try:
        return f": {len(marked(root, SHARDS)):,} of {int(root.get_json(PLAN)['n_shards']):,} shards kept"
    except (OSError, StoreError, ValueError, KeyError):
        return ""


def complete_already(root: Root, *, quiet: bool = False, is_member: bool = False) -> Exit:
    """Say that there is nothing to do, and what there is."""
    if not quiet:
        print(f"{root} is complete already: the same job wrote it; nothing was done.")
    return _completed(root, None, quiet=quiet, is_member=is_member)


def left_summary(root: Root) -> dict[str, Any] | None:
    """What the last stage left for this command: sums over all shards, and over those of this run. Taken away."""
    left: dict[str, Any] | None = None
    with suppress(OSError, StoreError, ValueError):  # the store is complete without it
        left = retry(partial(root.get_json, SUMMARY), local=root.is_local)
    tidy(root)  # with a lease: another run may write here by now
    return left


def _completed(
    root: Root, left: dict[str, Any] | None, *, quiet: bool, is_member: bool, seconds: float = 0.0
) -> Exit:
    """Print the summary, and what to do next with a store that is not a member of a collection."""
    tidy(root)  # a late heartbeat, and what a command that was killed at its very end left
    if not quiet:
        manifest = read_manifest(root)
        for line in summary(root, manifest, left, seconds=seconds):
            print(line)
        if not is_member and manifest.sizes.tokens:
            say_next(root, manifest)
    return Exit.COMPLETE


def say_next(root: Root, manifest: Manifest) -> None:
    """Print what to do next with a store or a collection."""
    print("next, in Python:")
    for line in next_steps(root, manifest):
        print(f"    {line}")
    print("or look at it:")
    options = " --storage-options …" if root.storage_options else ""
    for line in (
        f"elmo-store {name} {shlex.quote(str(root))}{options}"
        for name in ("info", "report", "explore")
    ):
        print(f"    {line}")


def explain(root: Root, failure: Exception | None) -> str:
    """Why work is left: what the last stage said, otherwise the end of the runner's own message."""
    if said := problem_of(root).get("message"):
        return str(said)
    if failure is None:
        return "the runner ended without an error, and without the last stage"
    why = _said(failure)
    silent = "Traceback" not in str(
        failure
    )  # no worker said anything; one that died may yet be told of
    deaths = _deaths(root, MOST_SECONDS_TO_TELL if silent else 0.0)
    return "\n".join(
        [*([] if silent and deaths else [why]), *([described(deaths)] if deaths else [])]
    )


def _deaths(root: Root, wait_seconds: float) -> Collection[WorkerEnd]:
    """Workers that died in this run; the first is waited for."""
    end = time.monotonic() + wait_seconds
    while True:
        deaths: Collection[WorkerEnd] = ()
        with suppress(OSError, StoreError):
            deaths = read_ends(root).values()
        if deaths or time.monotonic() >= end:
            return deaths
        time.sleep(0.2)


def _said(failure: Exception) -> str:
    """Return the message of a runner's failure, without the name of the step that Beam adds."""
    text = worker_error(str(failure)) or repr(failure)
    return re.sub(r" \[while running '[^']*'\]", "", text)


def worker_error(text: str) -> str:
    """What happened, out of a runner's message: a worker's exception, a missing program, or its first line and its last cause."""
    _, begins, trace = text.rpartition("Traceback (most recent call last):")
    if begins and (own := re.search(r"^[\w.]+(: .*|)$(\n(?!\s+at |$).*)*", trace, re.MULTILINE)):
        return own[0]
    if program := re.search(r'Cannot run program ".*', text):
        return program[0]
    lines = [
        line
        for line in text.splitlines()
        if line.strip() and not re.match(r"\s+(at |\.\.\. )", line)
    ]
    return "\n".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
