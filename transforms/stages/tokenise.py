"""Stage A: the input's tasks → scratch parts in the store, spread over workers, or over processes of this machine.

What is done of a task: `transforms.stages.scratch`.
"""

import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.shared import Shared
from apache_beam.utils.windowed_value import WindowedValue

from elmo_store.storage.root import Root
from transforms.inputs.records import InputError, ReadSettings, ReadTask, TaskResult
from transforms.runtime.job_root import retries_of
from transforms.runtime.problems import note_bad_files
from transforms.runtime.progress_files import ReadProgress
from transforms.runtime.results import add
from transforms.stages.scratch import finished_task

_WAITING = 4  # tasks that wait for a process, a process


class TokeniseTasks(beam.PTransform[PCollection[ReadTask], PCollection[int]]):
    """Tasks of the input → scratch parts in the store; for each task how often storage was asked again.

    A task some of whose files can't be read leaves word of them (`transforms.runtime.problems`), so that the plan names them all.

    ``processes``: of each worker. More than 1 is for a runner that runs in one process of this machine: Python tokenises on
    one core a process, and the engine is not at work yet.
    """

    def __init__(
        self, root: Root, read: ReadSettings, input_storage_options: Mapping[str, Any] | None = None, *, processes: int = 1
    ) -> None:
        super().__init__()
        self._arguments = (root, read, input_storage_options)
        self._processes = processes

    def expand(self, tasks: PCollection[ReadTask]) -> PCollection[int]:
        """Wire `tokenise_task`, with its counters."""
        work = _Tokenise(*self._arguments) if self._processes == 1 else _TokeniseInProcesses(*self._arguments, self._processes)
        return tasks | "Spread tasks" >> beam.Reshuffle() | "Tokenise" >> beam.ParDo(work).with_output_types(int)


class _Tokenise(beam.DoFn):
    def __init__(self, root: Root, read: ReadSettings, options: Mapping[str, Any] | None) -> None:
        self._arguments = (root, read, options)

    def setup(self) -> None:
        """Begin the progress of all tasks that this instance will do."""
        self._progress = ReadProgress(self._arguments[0])

    def process(self, element: ReadTask) -> Iterator[int]:
        """One task, unless it is done."""
        yield count(_finished(element, *self._arguments, self._progress))


class _TokeniseInProcesses(beam.DoFn):
    """Tasks go to processes as they come; a bundle ends when all of its tasks have."""

    def __init__(self, root: Root, read: ReadSettings, options: Mapping[str, Any] | None, processes: int) -> None:
        self._arguments = (root, read, options)
        self._processes = processes
        self._progress = Shared()  # of each process
        self._pool: ProcessPoolExecutor | None = None

    def start_bundle(self) -> None:
        """No task is under way."""
        self._futures: list[Future[_Finished]] = []

    def process(self, element: ReadTask) -> None:
        """Hand a task to a process; wait for the first of many."""
        if self._pool is None:
            # Not forked: threads of the runner and of PyTorch would be cut off in the middle of what they hold.
            self._pool = ProcessPoolExecutor(self._processes, mp_context=multiprocessing.get_context("spawn"))
        self._futures.append(self._pool.submit(_finished_in_process, element, *self._arguments, self._progress))
        if len(self._futures) > _WAITING * self._processes:
            self._futures[-_WAITING * self._processes].result()

    def finish_bundle(self) -> Iterable[Any]:
        """Wait for all, and say which they were."""
        for future in self._futures:
            yield WindowedValue(count(future.result()), GlobalWindow().max_timestamp(), (GlobalWindow(),))
        self.teardown()

    def teardown(self) -> None:
        """End the processes: the stages after this one need the cores."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class _Finished(NamedTuple):
    """What became of a task. ``result`` is None if some of its files can't be read, ``seconds`` if it was done already."""

    result: TaskResult | None
    seconds: float | None
    n_retries: int


def _finished_in_process(
    task: ReadTask, root: Root, settings: ReadSettings, options: Mapping[str, Any] | None, progress: Shared
) -> _Finished:
    return _finished(task, root, settings, options, progress.acquire(partial(ReadProgress, root)))


def _finished(
    task: ReadTask, root: Root, settings: ReadSettings, options: Mapping[str, Any] | None, progress: ReadProgress
) -> _Finished:
    try:
        result, seconds = finished_task(task, root, settings, options, progress)
    except InputError as error:
        note_bad_files(root, task.name, error)
        return _Finished(None, None, retries_of(root).take())
    return _Finished(result, seconds, retries_of(root).take())


def count(finished: _Finished) -> int:
    """Add a task's numbers to the counters, unless it was done already; returns its retries."""
    result, seconds, n_retries = finished
    add("storage_retries", n_retries)
    if result is None or seconds is None:
        return n_retries
    add("sentences_read", result.n_sentences)
    add("tokens_read", result.n_tokens)
    add("records_rejected", result.n_rejected)
    add("words_cut", sum(part.n_words_cut for part in result.parts))
    add("milliseconds_tokenising", 1000 * seconds)
    return n_retries
