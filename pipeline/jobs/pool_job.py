"""`mix --pool` on a runner of Beam: its files are made by workers, and published by this command, which has the lease."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from elmo_store.exports.job import FileTask, make_file
from elmo_store.storage.failures import retry
from elmo_store.store import Store
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.run import explain
from pipeline.progress.repeated import repeated
from pipeline.progress.troubles import told
from pipeline.runners.submission import submit
from transforms.runtime.ended import introduce
from transforms.runtime.wiring import spread

LOOK_SECONDS = 2.0  # between looks at what workers made


def make_on_worker(task: FileTask, source: Store) -> None:
    introduce(task.scratch)
    retry(
        partial(make_file, task, source._view),
        local=source._view.is_local and task.scratch.is_local,
    )


def on_runner(
    options: PipelineOptions, source: Store, tasks: Sequence[FileTask], count: Callable[[], None]
) -> None:
    """`elmo_store.exports.job.Workers` on the runner that ``options`` name. CommandError if it fails."""
    output = tasks[0].scratch

    def look() -> None:
        with suppress(Exception):  # the next look may succeed
            count()

    job = None
    try:
        with repeated(look, LOOK_SECONDS, "progress"):
            make = "Files" >> beam.Create(tasks) | "Make" >> spread(make_on_worker, source)
            job = submit(make, options)
            with told(output, job.members) if job.id else nullcontext():
                job.wait()
    except KeyboardInterrupt:
        if job is not None and job.id:
            job.cancel()
        raise
    except CommandError:
        raise
    except Exception as error:
        text = f"{explain(output, error)}\nRerun the same command to start again."
        raise CommandError(Exit.INCOMPLETE, text) from error
