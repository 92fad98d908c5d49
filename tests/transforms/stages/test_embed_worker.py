"""The worker of stage C by itself: cutting, overlap, bounded memory, failures that stay with their shard."""

import pickle
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elmo_store.format.manifest import write_manifest
from elmo_store.format.markers import PartRange, ShardMarker, read_marker, write_marker
from elmo_store.storage.lease import Lease, acquire
from elmo_store.storage.root import Root
from elmo_store.writer import RowText
from model.engine.planning.text import Text
from model.errors import DeviceLostError
from tests.store.support import make_manifest
from transforms.runtime.results import Outcome
from transforms.runtime.work import DEVICE, PLAN
from transforms.runtime.worker import WorkerBrokenError, WorkerError
from transforms.stages import embed
from transforms.stages.embed import ShardWorker, build_engine, load_engine, load_worker
from transforms.stages.job import Job
from transforms.stages.plan import ShardTask
from transforms.stages.shards import call_text, part_reader, read_shard

SENTENCES = [["a", "b", "c"], [], ["d"], ["e", "f"]]


class Call:
    """What the engine below gives back."""

    seconds = 1.0
    seconds_idle = 0.004

    def __init__(self, rows: int, dtype: str, error: Exception | None, computed_on: str) -> None:
        self._rows, self._dtype, self._error = rows, dtype, error
        self.computed_on = computed_on
        self.stats = type("Stats", (), {})()
        self.stats.cells = 2 * rows

    def result(self) -> np.ndarray[Any, Any]:
        if self._error is not None:
            raise self._error
        return np.zeros((self._rows, 5, 4), self._dtype)


class Engine:
    """In place of the biLM: zeros; remembers what was asked and can be told to fail, at once or when its result is wanted."""

    cell, device, hardware = "c", "cpu", "cpu"
    options = type("Options", (), {"n_layers": 2})()

    def __init__(self, fail: Sequence[str] = (), later: Exception | None = None) -> None:
        self.calls: list[int] = []
        self.fail = set(fail)
        self.later = later

    def prepare(self, text: Text, *, boundaries: bool) -> Text:
        text.check(boundaries)
        return text

    def run(self, text: Text, *, dtype: str, states: Sequence[int]) -> Call:
        if self.fail & set(text.vocabulary):
            raise ValueError("a word that can't be")
        self.calls.append(int((text.stop - text.first).sum()))
        return Call(
            self.calls[-1],
            dtype,
            self.later,
            self.hardware + (", 64 lanes" if self.device == "cuda" else ""),
        )


def put_part(root: Root, sentences: Sequence[Sequence[str]]) -> None:
    table = pa.table(
        {
            "tokens": pa.array(sentences, pa.list_(pa.string())),
            "n_tokens": pa.array([len(s) for s in sentences], pa.int32()),
        }
    )
    sink = BytesIO()
    pq.write_table(table, sink)
    root.put("_work/parts/p.parquet", sink.getvalue())


def task(shard: int, first: int, n: int, n_rows: int = 6) -> ShardTask:
    return ShardTask(shard, first, n, (("_work/parts/p.parquet", PartRange(0, 10, 4, 0, n_rows)),))


class Worker(ShardWorker):
    """One that is given tasks of ``at_once`` shards one after the other, as in a bundle."""

    def run(self, tasks: Sequence[ShardTask], at_once: int = 1) -> list[str]:
        """The errors of its shards."""
        begun: deque[int] = deque()
        outcomes: list[Outcome] = []
        for first in range(0, len(tasks), at_once):
            begun.append(self.begin(tasks[first : first + at_once]))
            while begun and self.is_durable(begun[0]):
                outcomes.append(self.outcome(begun.popleft()))
        outcomes += [self.outcome(number) for number in begun]
        return [error for outcome in outcomes for error in outcome.errors]


def worker(root: Root, engine: Engine, device: str = "cpu", **settings: Any) -> Worker:
    """A ShardWorker around ``engine``, nothing loaded."""
    return Worker(Job(root, "run", "sha256:", "", {"device": device}, **settings), engine)  # type: ignore[arg-type]


class Marker:
    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.stats = {"tokens": 1.0, "seconds_writing": 0.0, "finished": 1.0}


def put_job(root: Root) -> None:
    """What a worker reads of its job, and one part."""
    put_part(root, SENTENCES)
    write_manifest(root, make_manifest(lengths=(3, 0, 1, 2), parts=(4,)))
    root.put_json(PLAN, {"id": "plan"})


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path)
    put_job(root)
    return root


@pytest.mark.parametrize(
    ("first", "n", "tokens", "sentence", "index"),
    [
        (0, 2, ["a", "b"], [10, 10], [0, 1]),
        (2, 3, ["c", "d", "e"], [10, 12, 13], [2, 0, 0]),
        (0, 6, ["a", "b", "c", "d", "e", "f"], [10, 10, 10, 12, 13, 13], [0, 1, 2, 0, 0, 1]),
    ],
)
def test_a_shard_s_text_is_cut_to_its_rows(
    root: Root, first: int, n: int, tokens: list[str], sentence: list[int], index: list[int]
) -> None:
    text = read_shard(part_reader(root), task(0, first, n), boundaries=False)
    assert text.rows().tokens == tokens
    assert text.sentence.tolist() == sentence
    assert text.index.tolist() == index
    assert text.rows().n_tokens(boundaries=False) == n
    asked = call_text([text])
    assert (asked.stop - asked.first).sum() == n
    assert [asked.vocabulary[word] for word in asked.words] == [
        word for s in SENTENCES[min(sentence) - 10 : max(sentence) - 9] for word in s
    ]


def test_boundary_rows_are_shown_as_such_and_are_no_tokens(root: Root) -> None:
    text = read_shard(part_reader(root), task(0, 3, 6, n_rows=12), boundaries=True)
    assert text.rows().tokens == ["c", "</S>", "<S>", "d", "</S>", "<S>"]
    assert text.rows().n_tokens(boundaries=True) == 2
    assert text.index.tolist() == [3, 4, 0, 1, 2, 0]


def test_a_part_that_is_shorter_than_the_plan_says_is_refused(root: Root) -> None:
    with pytest.raises(ValueError, match="changed after the plan"):
        read_shard(part_reader(root), task(0, 4, 9, n_rows=20), boundaries=False)


def test_few_parts_are_kept_at_hand(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.put("_work/parts/q.parquet", root.get("_work/parts/p.parquet"))
    got: list[str] = []
    real = Root.get

    def get(self: Root, rel: str) -> bytes:
        got.append(rel[-9:])
        return real(self, rel)

    monkeypatch.setattr(Root, "get", get)
    for at_hand, expected in (
        (1, ["p.parquet", "q.parquet", "p.parquet"]),
        (2, ["p.parquet", "q.parquet"]),
    ):
        got.clear()
        read_part = part_reader(root, at_hand)
        for name in ("p", "p", "q", "p"):
            read_part(f"_work/parts/{name}.parquet")
        assert got == expected


def test_a_bad_shard_is_reported_and_the_others_are_written(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def write(
        root: Root, manifest: Any, text: RowText, states: Any, plan: str, stats: Any
    ) -> Marker:
        written.append(text.shard)
        assert plan == "plan"
        return Marker(text.shard)

    monkeypatch.setattr(embed, "write_shard", write)
    engine = Engine(fail=["d"])
    one, other = worker(root, engine).run(
        [task(0, 0, 2), task(1, 3, 1), task(2, 4, 2), task(3, 90, 5)], at_once=3
    )
    assert sorted(written) == [0, 2]
    assert one.startswith("shard 1, ")
    assert "a word that can't be" in one
    assert other.startswith("shard 3, reading: ")


class Overflowing(Engine):
    """Gives an infinite number in the last row of each call."""

    def run(self, text: Text, *, dtype: str, states: Sequence[int]) -> Call:
        call = super().run(text, dtype=dtype, states=states)
        rows = call.result()
        rows[-1, 3, 1] = -np.inf
        call.result = lambda: rows  # type: ignore[method-assign]
        return call


@pytest.mark.parametrize(
    ("dtype", "says"),
    [
        ("float16", r"float16 can't hold \(it ends at 65,504\): embed with --dtype float32"),
        ("float32", "is not finite: the model's weights"),
    ],
)
@pytest.mark.parametrize("form", ["zarr", "parquet"])
def test_a_number_that_overflows_is_refused_with_its_place(
    root: Root, dtype: str, says: str, form: str
) -> None:
    manifest = make_manifest(lengths=(3, 0, 1, 2), parts=(4,), dtype=dtype, store_forms=(form,))
    write_manifest(root, manifest)

    (error,) = worker(root, Overflowing()).run([task(0, 0, 5)])

    assert re.match(
        rf"shard 0, writing: ValueError: row 4 \(sentence 13, token 'e'\) holds a number that {says}",
        error,
    )
    assert read_marker(root, ShardMarker, 0) is None
    assert root.list("states") == root.list("states.zarr/states") == []


def test_what_goes_wrong_on_a_device_later_is_the_shard_s_failure_but_a_lost_device_is_nobody_s(
    root: Root,
) -> None:
    (error,) = worker(root, Engine(later=RuntimeError("too late"))).run([task(0, 0, 2)])
    assert "shard 0, computing: RuntimeError: too late" in error
    with pytest.raises(DeviceLostError, match="gone"):
        worker(root, Engine(later=DeviceLostError("gone"))).run([task(0, 0, 2)])


def test_a_shard_that_a_lost_attempt_wrote_is_not_computed_again(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_marker(root, ShardMarker(0, 0, 2, (), "plan", {"run": "run"}))
    write_marker(root, ShardMarker(1, 2, 2, (), "another", {"run": "run"}))
    write_marker(root, ShardMarker(2, 4, 1, (), "plan", {"run": "an earlier one, found damaged"}))
    root.put("_shards/00003.json", b"{")
    monkeypatch.setattr(embed, "write_shard", lambda root, manifest, text, *_: Marker(text.shard))
    engine = Engine()
    assert (
        worker(root, engine).run([task(0, 0, 2), task(1, 2, 2), task(2, 4, 1), task(3, 5, 1)]) == []
    )
    assert engine.calls == [2, 1, 1]


def test_a_worker_that_fails_at_everything_gives_its_bundle_back(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    broken = True

    def write(
        root: Root, manifest: Any, text: RowText, states: Any, plan: str, stats: Any
    ) -> Marker:
        tries.append(text.shard)
        if broken:
            raise PermissionError("the credentials have expired")
        return Marker(text.shard)

    monkeypatch.setattr(embed, "write_shard", write)
    one = worker(root, Engine())
    tasks = [task(shard, 0, 2) for shard in range(40)]
    with pytest.raises(
        WorkerBrokenError,
        match=r"[3-6] consecutive shards failed on .*; last error: writing: PermissionError: the credentials",
    ):
        one.run(tasks)
    assert 3 <= len(tries) <= 6  # of 40: the queue is not eaten
    broken = False
    assert not one.run(tasks)  # the same process, when its storage is there again


def test_shards_of_one_job_come_from_one_kind_of_device(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each worker finds out what it has, one that has something else than the first gives its work back, uncomputed."""
    said: list[str] = []

    def write(
        root: Root, manifest: Any, text: RowText, states: Any, plan: str, stats: Any
    ) -> Marker:
        said.append(stats["device"])
        return Marker(text.shard)

    monkeypatch.setattr(embed, "write_shard", write)
    on_gpu, on_cpu = Engine(), Engine()
    on_gpu.device, on_gpu.hardware = "cuda", "cuda NVIDIA A100"
    first, second = worker(root, on_gpu, device="cuda"), worker(root, on_cpu, device="cuda")
    assert not first.run([])  # no work, no say
    assert not root.exists(DEVICE)
    for shard in (0, 1):
        assert not first.run([task(shard, 0, 2)])
    with pytest.raises(
        WorkerError,
        match=r"computes on cpu, and shards of .* come from cuda NVIDIA A100: .* --device cpu",
    ):
        second.run([task(2, 0, 2)])
    another_card = Engine()
    another_card.device, another_card.hardware = "cuda", "cuda NVIDIA H100"
    with pytest.raises(
        WorkerError, match=r"computes on cuda NVIDIA H100, and shards of .* A100: .* --device cuda"
    ):
        worker(root, another_card, device="cuda").run([task(2, 0, 2)])
    assert (said, on_cpu.calls, another_card.calls) == (["cuda NVIDIA A100, 64 lanes"] * 2, [], [])
    assert not worker(root, on_cpu).run([task(2, 0, 2)])  # the job's identity says cpu


@pytest.mark.parametrize(("device", "claims"), [("cpu", False), ("cuda", True)])
def test_a_worker_is_as_the_job_s_settings_say(
    root: Root, monkeypatch: pytest.MonkeyPatch, device: str, claims: bool
) -> None:
    monkeypatch.setattr(embed, "load_engine", lambda job: Engine())
    settings = Job(root, "run", "sha256:", "", {"device": device}, writers=3)
    before = sys.getswitchinterval()
    try:
        made = load_worker(settings)
        assert sys.getswitchinterval() <= 1e-3  # no writer keeps the lock from who feeds the engine
    finally:
        sys.setswitchinterval(before)
    assert made._writers._max_workers == 3
    assert made._claims_device == claims


@pytest.mark.parametrize(("at_once", "calls"), [(1, [2, 2]), (2, [4])])
def test_the_shards_of_a_task_are_one_call(
    root: Root, monkeypatch: pytest.MonkeyPatch, at_once: int, calls: list[int]
) -> None:
    monkeypatch.setattr(embed, "write_shard", lambda root, manifest, text, *_: Marker(text.shard))
    engine = Engine()
    worker(root, engine).run([task(0, 0, 2), task(1, 2, 2)], at_once)
    assert engine.calls == calls


def test_an_engine_that_the_launcher_builds_is_taken_by_the_worker_of_its_process_alone(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Any] = []
    loaded: list[str] = []

    def build(*_: Any) -> Engine:
        built.append(Engine())
        return built[-1]

    monkeypatch.setattr(embed, "Embedder", build)
    monkeypatch.setattr(embed, "_apart", lambda weights: weights)
    monkeypatch.setattr(embed, "load_weights", lambda *_: loaded.append("weights"))
    monkeypatch.setattr(embed, "load_start_state", lambda *_: loaded.append("start state"))
    settings = Job(root, "run", "sha256:", "", {})
    build_engine(settings, lambda: (None, None))  # type: ignore[arg-type, return-value]
    assert load_engine(pickle.loads(pickle.dumps(settings))) is built[0]
    assert not loaded
    assert load_engine(Job(root, "another run", "sha256:", "", {})) is built[1]
    assert loaded == ["weights", "start state"]


def test_data_that_fails_is_no_broken_worker_and_a_success_between_forgives(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(
        root: Root, manifest: Any, text: RowText, states: Any, plan: str, stats: Any
    ) -> Marker:
        if text.shard % 3:
            raise OSError("reset")
        return Marker(text.shard)

    monkeypatch.setattr(embed, "write_shard", write)
    errors = worker(root, Engine()).run([task(shard, 0, 2) for shard in range(12)])
    assert [int(re.findall(r"\d+", error)[0]) for error in errors] == [
        shard for shard in range(12) if shard % 3
    ]
    assert len(worker(root, Engine(fail=["a"])).run([task(shard, 0, 2) for shard in range(9)])) == 9


@pytest.mark.slow
@pytest.mark.parametrize("of_an_engine", [True, False])
def test_a_lost_device_ends_the_process_where_an_engine_starts_another(
    tmp_path: Path, of_an_engine: bool
) -> None:
    root = Root(tmp_path)
    put_job(root)
    acquire(root, Lease.of_this_process("run", local=True, patience_seconds=9.0))
    code = f"""
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from model.errors import DeviceLostError
from tests.store.support import make_manifest
from tests.transforms.stages.test_embed_worker import Engine, task, worker
from transforms.runtime.owner import owned
root = owned(Root({str(tmp_path)!r}), "run", None if {of_an_engine} else Process.here())
try:
    worker(root, Engine(later=DeviceLostError("CUDA error: an illegal memory access"))).run([task(0, 0, 2)])
except DeviceLostError:
    print("raised")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip()) == ((70, "") if of_an_engine else (0, "raised")), (
        ran.stderr
    )


def test_computing_goes_on_while_the_last_shard_is_written_with_bounded_memory(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, waiting, most = Engine(), threading.Semaphore(0), []

    def write(
        root: Root, manifest: Any, text: RowText, states: Any, plan: str, stats: Any
    ) -> Marker:
        waiting.acquire()
        return Marker(text.shard)

    monkeypatch.setattr(embed, "write_shard", write)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(worker(root, engine).run, [task(k, 0, 2) for k in range(6)])
        end = time.monotonic() + 10
        while len(engine.calls) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1)
        most.append(len(engine.calls))  # none is written yet: one is being written, one computed
        assert not running.done()
        for _ in range(6):
            waiting.release()
        assert running.result() == []
    assert most == [2]
    assert engine.calls == [2] * 6


def test_several_shards_go_to_the_engine_in_one_call_and_its_numbers_are_shared(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats: dict[int, Any] = {}

    def write(
        root: Root, manifest: Any, text: RowText, states: Any, plan: str, given: Any
    ) -> Marker:
        stats[text.shard] = given
        assert len(states) == len(text.tokens)
        return Marker(text.shard)

    monkeypatch.setattr(embed, "write_shard", write)
    engine = Engine()
    worker(root, engine).run([task(0, 0, 4), task(1, 4, 2)], at_once=2)
    assert engine.calls == [6]
    assert stats[0]["engine_cells"] == pytest.approx(8)
    assert stats[1]["engine_cells"] == pytest.approx(4)
    assert stats[0]["seconds_computing"] + stats[1]["seconds_computing"] == pytest.approx(1.0)
    assert (stats[0]["seconds_idle"], stats[1]["seconds_idle"]) == (0.004, 0.0)
    assert stats[0]["cell"] == "c"
