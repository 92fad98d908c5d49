"""Stage A: the input's tasks → scratch parts in the store, spread over workers, or over processes of this machine.

May import apache_beam, transforms.{results,records,scratch} and elmo_store. What is done of a task: `transforms.scratch`.
"""

import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from elmo_store.storage import Root
from transforms.records import ReadSettings, ReadTask, TaskResult
from transforms.results import add
from transforms.scratch import finished_task

_WAITING = 4  # tasks that wait for a process, a process


class TokeniseTasks(beam.PTransform[PCollection[ReadTask], PCollection[int]]):
    """Tasks of the input → scratch parts in the store; the index of every task that is done.

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

    def process(self, element: ReadTask) -> Iterator[int]:
        """One task, unless it is done."""
        count(*finished_task(element, *self._arguments))
        yield element.index


class _TokeniseInProcesses(beam.DoFn):
    """Tasks go to processes as they come; a bundle ends when all of its tasks have."""

    def __init__(self, root: Root, read: ReadSettings, options: Mapping[str, Any] | None, processes: int) -> None:
        self._arguments = (root, read, options)
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None

    def start_bundle(self) -> None:
        """No task is under way."""
        self._futures: list[tuple[int, Future[tuple[TaskResult, float | None]]]] = []

    def process(self, element: ReadTask) -> None:
        """Hand a task to a process; wait for the first of many."""
        if self._pool is None:
            # Not forked: threads of the runner and of PyTorch would be cut off in the middle of what they hold.
            self._pool = ProcessPoolExecutor(self._processes, mp_context=multiprocessing.get_context("spawn"))
        self._futures.append((element.index, self._pool.submit(finished_task, element, *self._arguments)))
        if len(self._futures) > _WAITING * self._processes:
            self._futures[-_WAITING * self._processes][1].result()

    def finish_bundle(self) -> Iterable[Any]:
        """Wait for all, and say which they were."""
        for index, future in self._futures:
            count(*future.result())
            yield WindowedValue(index, GlobalWindow().max_timestamp(), (GlobalWindow(),))
        self.teardown()

    def teardown(self) -> None:
        """End the processes: the stages after this one need the cores."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def count(result: TaskResult, seconds: float | None) -> None:
    """Add a task's numbers to the counters, unless it was done already."""
    if seconds is None:
        return
    add("sentences_read", result.n_sentences)
    add("tokens_read", result.n_tokens)
    add("records_rejected", result.n_rejected)
    add("words_cut", sum(part.n_words_cut for part in result.parts))
    add("milliseconds_tokenising", 1000 * seconds)
