"""``elmo-store embed``: options, the job, its progress on the screen, the summary, the exit code."""

import argparse

from elmo_store.storage.location import Location
from pipeline.cli import locations, touched
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.importing import nothing_to_collect
from pipeline.cli.touched import Touched
from pipeline.commands import report as report_command
from pipeline.jobs import options as embed_options

TAKES_BEAM_OPTIONS = True
LOADS = "PyTorch and Apache Beam"

EPILOG = """\
Any option of Apache Beam may follow, such as --runner=FlinkRunner --flink_master=HOST:PORT, --runner=DataflowRunner
--project=… , or on this machine --direct_running_mode=multi_processing --direct_num_workers=2. Default runner:
FnApiRunner. The same command on an unfinished output continues it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``embed``."""
    parser.epilog = f"{EPILOG}\n{parser.epilog or ''}"
    embed_options.add_arguments(parser)
    embed_options.add_sizing_arguments(parser)


def check(args: argparse.Namespace) -> None:
    """CommandError for options that make no sense and paths of this machine that can't be meant."""
    embed_options.parse(args)
    locations.check_inputs(args.inputs)
    locations.check_model(args.model)
    if args.output:
        locations.check_output(args.output)
    report_command.check_possible(args)


def touches(args: argparse.Namespace) -> Touched:
    """Inputs and model, and the store."""
    options = args.storage_options if args.input_storage_options is None else args.input_storage_options
    output = [Location("output", args.output, args.storage_options)] if args.output else []
    return Touched([*touched.inputs(args.inputs, options), *touched.model(args.model)], output)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Run the job to its end, then its report. 0 complete, 4 if work is left; CommandError for what never began."""
    code = _run_job(args, beam_args)
    return code if args.dry_run or args.preview is not None else report_command.after(code, args)


def _run_job(args: argparse.Namespace, beam_args: list[str]) -> Exit:
    options = embed_options.parse(args)
    if options.preview is not None or options.dry_run:
        from pipeline.jobs import dry_run as before

        return before.preview(options) if options.preview is not None else before.dry_run(options)
    from pipeline.jobs.model_loading import LoadingModel

    with nothing_to_collect():
        loading = LoadingModel(options.model, options.start_state)  # while Beam is imported and inputs are listed
        from elmo_store.errors import JobMismatchError
        from pipeline.jobs import embed_job
        from pipeline.jobs import run as running
        from pipeline.jobs.embed_corpus import EmbedCorpus
        from pipeline.runners import beam_options
        from pipeline.runners import preflight as door

    if options.workers is not None:
        beam_args = beam_options.with_local_workers(beam_args, options.workers)
    with door.opened(beam_args, wait=not options.no_wait) as pipeline_options:
        try:
            job = embed_job.open_job(options, pipeline_options, loading)
        except JobMismatchError as error:
            raise CommandError(Exit.REFUSED, str(error)) from error
        if job.settings is None or job.holder is None:
            return running.complete_already(job.root)
        transform = EmbedCorpus(job.settings)
        return running.run_to_end("embed", job.holder, transform, pipeline_options, quiet=options.quiet, wait=not options.no_wait)
