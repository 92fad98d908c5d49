"""``elmo-store embed``: options, the job, its progress on the screen, the summary, the exit code. May import every room."""

import argparse
import logging
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from pipeline import options as embed_options
from pipeline.exit_codes import CommandError, Exit

if TYPE_CHECKING:  # torch and Beam take seconds to import: not before the options are parsed
    from pipeline.embed_job import EmbedJob

TAKES_BEAM_OPTIONS = True

EPILOG = """\
Any option of Apache Beam may follow, such as --runner=FlinkRunner --flink_master=HOST:PORT, --runner=DataflowRunner
--project=… , or on this machine --direct_running_mode=multi_processing --direct_num_workers=2. Default runner:
FnApiRunner. The same command on an unfinished output continues it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``embed``."""
    parser.epilog = f"{EPILOG}\n{parser.epilog or ''}"
    embed_options.add_arguments(parser)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Run the job to its end. 0 complete, 4 if work is left; CommandError for what never began."""
    options = embed_options.parse(args)
    quiet_libraries(options.verbose)
    from elmo_store.errors import JobMismatchError
    from pipeline import beam_options, embed_job

    beam_options.set_worker_environment()
    pipeline_options = beam_options.pipeline_options(beam_args)
    try:
        job = embed_job.open_job(options, pipeline_options)
    except JobMismatchError as error:
        raise CommandError(Exit.REFUSED, str(error)) from error
    if job.settings is None:
        print(f"{job.root} is complete already: the same job wrote it; nothing was done.")
        report(job, since=time.time(), seconds=0.0)
        return Exit.COMPLETE
    return _run(job, pipeline_options)


def _run(job: "EmbedJob", pipeline_options: Any) -> int:
    from elmo_store.manifest import read_manifest
    from pipeline import embed_job
    from pipeline.progress import shown

    since, began = time.time(), time.perf_counter()
    seconds = 0.5 if job.root.is_local else 5.0
    failure: Exception | None = None
    with nullcontext() if job.options.quiet else shown(job.root, seconds=seconds):
        try:
            embed_job.run_job(job, pipeline_options)
        except Exception as error:  # whatever a runner raises; the store tells what is done
            failure = error
    manifest = read_manifest(job.root)
    if not manifest.complete:
        print(f"elmo-store embed: incomplete: {explain(job, failure)}", file=sys.stderr)
        print("What is written stays; the same command again continues with the rest.", file=sys.stderr)
        return Exit.INCOMPLETE
    report(job, since=since, seconds=time.perf_counter() - began)
    return Exit.COMPLETE


def report(job: "EmbedJob", *, since: float, seconds: float) -> None:
    """Print the summary and what to do next."""
    from elmo_store.manifest import read_manifest
    from pipeline.report import all_markers, next_steps, summary

    manifest = read_manifest(job.root)
    markers = all_markers(job.root, manifest.sizes.shards)
    for line in summary(job.root, manifest, markers, since=since, seconds=seconds):
        print(line)
    print("next, in Python:")
    for line in next_steps(job.root, manifest):
        print(f"    {line}")


def explain(job: "EmbedJob", failure: Exception | None) -> str:
    """Why work is left: what the last stage said, otherwise the end of the runner's own message."""
    from pipeline import embed_job

    said = embed_job.problem(job.root)
    if said is not None:
        return said
    if failure is None:
        return "the runner ended without an error, and without the last stage"
    lines = [line for line in str(failure).splitlines() if line.strip()]
    return lines[-1] if lines else repr(failure)


def quiet_libraries(verbose: bool) -> None:
    """Keep Beam's own log off the screen unless it was asked for: errors reach the user as one message at the end."""
    if not verbose:
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
