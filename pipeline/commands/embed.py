"""``elmo-store embed``: options, the job, its progress on the terminal, the summary, the exit code."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.cli import locations
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs import spec

if TYPE_CHECKING:
    from pipeline.jobs.embed_job import BegunJob

EPILOG = """\
Any option of Apache Beam may follow, such as --runner=FlinkRunner --flink_master=HOST:PORT, --runner=DataflowRunner
--project=… , or on this machine --direct_running_mode=multi_processing --direct_num_workers=2. Default runner:
FnApiRunner. Rerun an interrupted command to resume it.
"""


def _touches(args: argparse.Namespace) -> locations.Touched:
    options = (
        args.storage_options if args.input_storage_options is None else args.input_storage_options
    )
    output = [
        locations.store(url, args.storage_options, "output")
        for url in (args.output, args.into)
        if url
    ]
    return locations.Touched(
        [*locations.inputs(args.inputs, options), *locations.model(args.model)], output
    )


def _run(args: argparse.Namespace) -> int:
    """Run the job to its end. 0 complete, 4 if work is left; CommandError for what never began."""
    options = spec.parse(args)
    if options.dry_run:
        from pipeline.jobs import dry_run

        return dry_run.dry_run(options)
    from pipeline.jobs.model_loading import JobModel, loading_model

    loading = loading_model(
        options.model, options.start_state
    )  # while Beam is imported and inputs are listed
    from pipeline.jobs.embed_input import STDIN
    from pipeline.jobs.embed_job import BegunJob, EmbedCorpus, begin_job
    from pipeline.jobs.run import Running, complete_already, run_to_end
    from pipeline.jobs.runner import opened as opened_runner

    beam_args = args.beam_args
    if options.workers is not None:
        beam_args = _with_local_workers(beam_args, options.workers)
    waits = not options.no_wait
    with opened_runner(beam_args, wait=waits) as runner:

        def attempt(loading: Callable[[], JobModel] | None = None) -> tuple[Exit | None, BegunJob]:
            begun = begin_job(options, runner, loading)
            if begun.holder is None:
                return complete_already(
                    begun.root, quiet=options.quiet, is_member=bool(options.into)
                ), begun
            running = Running(
                "embed", begun.holder, begun.manifest, runner, quiet=options.quiet, wait=waits
            )
            running.is_member = bool(options.into)
            return run_to_end(running, EmbedCorpus(begun.job) if begun.job else None), begun

        code, begun = attempt(loading)
        if (
            code is None and STDIN not in options.inputs
        ):  # the job that was followed left work; standard input is read once
            code, begun = attempt()
    if options.into and code == Exit.COMPLETE:
        _add_member(options, options.into, begun)
    return Exit.INCOMPLETE if code is None else code


def _with_local_workers(beam_args: list[str], workers: int) -> list[str]:
    """Beam's arguments for so many worker processes of this machine. CommandError (bad usage) for a runner elsewhere."""
    from pipeline.runners.beam_options import is_local, pipeline_options, runner_name

    options = pipeline_options(beam_args)
    if not is_local(options):
        raise CommandError(
            Exit.BAD_USAGE,
            f"--workers is of this machine; {runner_name(options)} has its own option for it",
        )
    completed = [*beam_args, f"--direct_num_workers={workers}"]
    return [*completed, "--direct_running_mode=multi_processing"] if workers > 1 else completed


def _add_member(options: spec.EmbedOptions, into: str, begun: "BegunJob") -> None:
    """Put the version that has the store which the job wrote; nothing of a job that goes on without this command."""
    from elmo_store.collecting import add
    from elmo_store.format.manifest import read_manifest
    from elmo_store.storage.root import Root
    from pipeline.cli.terminal import quantity
    from pipeline.jobs.preflight import SKIP_VERSION, job_identity
    from pipeline.jobs.run import say_next
    from pipeline.progress.summary import described

    manifest = read_manifest(begun.root)
    if not manifest.complete:
        if not options.quiet:
            print(f"when the job is complete, rerun the same command to add it to {into}")
        return
    name = str(begun.root).rpartition("/")[2]
    root = Root(into, options.storage_options)
    compared_with = int(manifest.job.get(SKIP_VERSION) or 0) if options.skip_known else None
    version = add(root, name, job_identity(begun.manifest), compared_with=compared_with)
    if options.quiet:
        return
    if version is None:
        print(f"{into}: nothing new, so no version was added")
        return
    n_known = sum(
        run.n_sentences
        for member in version.members
        if version.change == "embed" and member.name == name
        for run in member.removed
    )
    if n_known:
        print(
            f"{quantity(n_known, 'sentence')} left out: another command added "
            f"{'it' if n_known == 1 else 'them'} while this one ran"
        )
    print(described(into, version))
    say_next(root, version.store)


COMMANDS = {
    "embed": Command(
        spec.add_arguments, _run, _touches, spec.parse, epilog=EPILOG, takes_beam_options=True
    )
}
