"""`mix --pool` on a runner of Beam: its files are made by workers, and taken by this command, which has the lease."""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PBegin, PCollection

from elmo_store.exports.apart import FileTask, make_apart
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.run import explain
from pipeline.progress.troubles import told
from pipeline.runners.beam_options import quiet_workers
from pipeline.runners.submission import pipeline_of, submit
from transforms.runtime.ended import introduce
from transforms.runtime.job_root import is_transient, retry
from transforms.runtime.results import spread
from transforms.stages.derive import opened_source

TAKE_SECONDS = 2.0  # between looks at what workers made


class MakeFiles(beam.PTransform[PBegin, PCollection[None]]):
    """Tasks of an export's files, made wherever the runner's workers are."""

    def __init__(self, source: Root, tasks: Sequence[FileTask]) -> None:
        super().__init__()
        self._source, self._tasks = source, tasks

    def expand(self, begin: PBegin) -> PCollection[None]:
        """Wire it."""
        return begin | "Files" >> beam.Create(self._tasks) | "Make" >> spread(make_file, self._source)


def make_file(task: FileTask, source: Root) -> None:
    """Make one file of the store at ``source``."""
    introduce(task.output)
    store = opened_source(source)
    retry(partial(make_apart, task, store), local=source.is_local and task.output.is_local)


def on_runner(options: PipelineOptions, source: Root, tasks: Sequence[FileTask], take: Callable[[], None]) -> None:
    """`elmo_store.exports.job.Workers` on the runner that ``options`` name. CommandError if it fails; what is made stays."""
    output, ended, errors = tasks[0].output, threading.Event(), []

    def take_often() -> None:
        while not ended.wait(TAKE_SECONDS):
            try:
                take()
            except Exception as error:
                if not is_transient(error):  # otherwise the next look may succeed
                    errors.append(error)
                    return

    taking = threading.Thread(target=take_often, name="take")
    taking.start()
    job = None
    try:
        with quiet_workers(options):
            job = submit(pipeline_of(MakeFiles(source, tasks), options), options)
            with told(output, job.stalled) if job.id else nullcontext():
                job.wait()
    except KeyboardInterrupt:
        if job is not None and job.id:
            job.cancel()
        raise
    except CommandError:
        raise
    except Exception as error:
        text = f"{explain(output, error)}\nWhat is written stays; the same command again continues."
        raise CommandError(Exit.INCOMPLETE, text) from error
    finally:
        ended.set()
        taking.join()
        if not errors:
            retry(take, local=all(task.output.is_local for task in tasks))
    if errors:
        raise errors[0]
