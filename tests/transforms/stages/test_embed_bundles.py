"""Calls of the next task begin while the last one's shards are written; a bundle returns what is durable alone."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from elmo_store.errors import LeaseLostError
from elmo_store.storage.root import Root
from elmo_store.writer import RowText
from model.engine.planning.text import Text
from model.errors import DeviceLostError
from tests.transforms.stages.test_embed_worker import Call, Engine, Marker, put_job, task, worker
from transforms.runtime.results import Outcome
from transforms.stages import embed
from transforms.stages.embed import CALLS_IN_FLIGHT, ShardWorker, embed_shards
from transforms.stages.job import Job
from transforms.stages.plan import ShardTask
from transforms.stages.shards import ShardText, read_shard

N_TASKS = 5  # of one shard each
SECONDS_AT_MOST = 20  # that a step waits for another one, which comes at once or never


class Events:
    """What happened, in order: a call of the engine (of the first, the second, … task), a shard written, its result emitted."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int]] = []
        self._more = threading.Condition()

    def add(self, what: str, number: int) -> None:
        with self._more:
            self.all.append((what, number))
            self._more.notify_all()

    def come(self, what: str, n: int) -> bool:
        """Whether there are ``n`` of these now, or soon."""
        with self._more:
            return self._more.wait_for(lambda: len(self.of(what)) >= n, SECONDS_AT_MOST)

    def of(self, what: str) -> list[int]:
        return [number for happened, number in self.all if happened == what]


class Stage:
    """The stage that embeds, its engine and its storage; tests say what these wait for."""

    def __init__(self, folder: Path) -> None:
        self.events = Events()
        self.before_call: Callable[[int], object] = lambda call: None
        self.before_written: Callable[[int], object] = lambda n_written: None
        self._root = Root(folder)
        put_job(self._root)

    def run(self) -> None:
        """All tasks in one bundle."""
        job = Job(self._root, str(self._root), "sha256:", "", {"device": "cpu"})
        with beam.Pipeline(FnApiRunner()) as pipeline:
            tasks = pipeline | beam.Create([[task(shard, 0, 2)] for shard in range(N_TASKS)])
            _ = tasks | embed_shards(job)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path)
    events, begin, outcome = made.events, ShardWorker.begin, ShardWorker.outcome
    shards: dict[int, int] = {}

    class Recorded(Engine):
        def run(self, text: Text, **wanted: Any) -> Call:
            made.before_call(len(self.calls))
            events.add("call", len(self.calls))
            return super().run(text, **wanted)

    def write(
        root: Root, manifest: Any, text: RowText, states: Any, plan: str, stats: Any
    ) -> Marker:
        made.before_written(len(events.of("written")))
        events.add("written", text.shard)
        return Marker(text.shard)

    def begun(self: ShardWorker, tasks: Sequence[ShardTask]) -> int:
        number = begin(self, tasks)
        shards[number] = tasks[0].shard
        return number

    def emitted(self: ShardWorker, number: int) -> Outcome:
        came = outcome(self, number)
        events.add("emitted", shards[number])
        return came

    monkeypatch.setattr(embed, "load_engine", lambda job: Recorded())

    def read(read_part: Any, task: ShardTask, boundaries: bool) -> ShardText:
        events.add("read", task.shard)
        return read_shard(read_part, task, boundaries=boundaries)

    monkeypatch.setattr(embed, "read_shard", read)
    monkeypatch.setattr(embed, "write_shard", write)
    monkeypatch.setattr(ShardWorker, "begin", begun)
    monkeypatch.setattr(ShardWorker, "outcome", emitted)
    return made


def test_the_next_task_is_computed_before_the_last_one_is_written_and_nothing_is_emitted_before_it_is(
    job: Stage,
) -> None:
    """No shard but the last is written before the next task's call: a worker that waited for its writes would wait for ever."""
    in_time = []
    job.before_written = lambda n_written: in_time.append(
        job.events.come("call", min(n_written + 2, N_TASKS))
    )
    job.run()
    assert in_time == [True] * N_TASKS
    assert sorted(job.events.of("emitted")) == list(range(N_TASKS))
    for shard in range(N_TASKS):
        assert job.events.all.index(("written", shard)) < job.events.all.index(("emitted", shard))


def test_the_next_task_is_read_while_the_last_one_is_computed_and_no_other(job: Stage) -> None:
    in_time = []
    job.before_call = lambda call: in_time.append(job.events.come("read", min(call + 2, N_TASKS)))
    job.run()
    assert in_time == [True] * N_TASKS
    ahead = 0  # tasks that a worker has taken and not asked the engine for: no other worker can have them
    for what, _ in job.events.all:
        ahead += {"read": 1, "call": -1}.get(what, 0)
        assert ahead <= 2


def test_what_is_durable_is_emitted_while_others_are_computed_and_memory_is_bounded(
    job: Stage,
) -> None:
    emitted = []
    job.before_call = lambda call: emitted.append(
        job.events.come("emitted", call - CALLS_IN_FLIGHT)
    )
    job.run()
    assert emitted == [True] * N_TASKS
    in_flight = 0
    for what, _ in job.events.all:
        in_flight += {"call": 1, "written": -1}.get(what, 0)
        assert in_flight <= CALLS_IN_FLIGHT


def test_a_write_that_finds_the_lease_lost_fails_the_bundle_and_is_not_emitted(job: Stage) -> None:
    def lost(n_written: int) -> None:
        if n_written == 2:
            job.events.add("lost", n_written)
            raise LeaseLostError("the store", "run", "another run")

    job.before_written = lost
    with pytest.raises(LeaseLostError):
        job.run()
    assert not set(job.events.of("emitted")) - set(job.events.of("written"))


def test_a_failed_write_is_its_shard_s_result_alone_and_comes_when_its_task_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_job(Root(tmp_path))
    written = threading.Event()

    def write(
        root: Root, manifest: Any, text: RowText, states: Any, plan: str, stats: Any
    ) -> Marker:
        assert written.wait(SECONDS_AT_MOST)
        if text.shard == 1:
            raise OSError("no space left")
        return Marker(text.shard)

    monkeypatch.setattr(embed, "write_shard", write)
    made = worker(Root(tmp_path), Engine(), writers=2)
    first, second = (made.begin([task(shard, 0, 2)]) for shard in (0, 1))
    assert not made.is_durable(first)
    written.set()
    assert made.outcome(first).errors == ()
    assert "shard 1, writing: OSError: no space left" in made.outcome(second).errors[0]


def test_calls_that_raise_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner may give the bundle of a lost device to the same process again: it must fail again, not wait for ever."""
    put_job(Root(tmp_path))

    class Lost(Engine):
        def run(self, text: Text, **wanted: Any) -> Call:
            raise DeviceLostError("gone")

    made, raised = worker(Root(tmp_path), Lost()), threading.Semaphore(0)

    def give_again() -> None:
        for _ in range(CALLS_IN_FLIGHT + 1):
            begun = made.begin([task(0, 0, 2)])
            with pytest.raises(DeviceLostError):
                made.outcome(begun)
            raised.release()

    threading.Thread(target=give_again, daemon=True).start()
    assert all(raised.acquire(timeout=SECONDS_AT_MOST) for _ in range(CALLS_IN_FLIGHT + 1))
