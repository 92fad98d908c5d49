"""Stage C: shard tasks → biLM → the store. The only stage that loads the model.

An element is a list of shards that go to the engine in one call, so that a runner can give others what a worker has not started.
A worker reads the next call, computes, and writes the last one at once, with bounded memory; each step is a function of what the
step before it left: `read_call`, `compute`, `write`. A bundle starts the next call while the last one is written, and emits what
became of a shard once it is in the store. A shard that fails is computed once more by itself and then reported: it takes no other
one down with it.
"""

import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.multi_process_shared import MultiProcessShared
from apache_beam.utils.shared import Shared

from elmo_store.format.layout import START_STATE, state_names
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.markers import ShardMarker
from elmo_store.format.numbers import FLOAT16_MAX, Array, Int8Rows, row_not_finite
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root
from elmo_store.writer import RowText, write_shard
from model.engine.embedder import Embedder, EngineSettings, Prepared, RunningCall
from model.engine.states import Dtype
from model.errors import DeviceLostError
from model.files.registry import load_model
from model.files.weights import BiLMWeights
from model.start_state import StartState
from transforms.runtime.results import Outcome, counted, total
from transforms.runtime.wiring import Spread
from transforms.runtime.work import MODEL, PLAN
from transforms.runtime.worker import (
    Health,
    WorkerError,
    claim_device,
    end_where_replaced,
    release_memory,
    run_stats,
)
from transforms.stages.job import Job
from transforms.stages.known import KnownSentences, merged
from transforms.stages.plan import ShardTask, marker_of_plan
from transforms.stages.shards import PartWords, ShardText, call_text, part_reader, read_shard

LOCK_SECONDS = 1e-4  # that a thread keeps the interpreter's lock while others want it; Python's own 5 ms are long for a GPU
CALLS_IN_FLIGHT = 2  # calls whose states exist: one computed, one written
# Shards of a call that failed, and the writes of all others, whose states are computed or asked for.
Computed = tuple[list[Outcome], list[Future[Outcome]]]


def embed_shards(job: Job) -> beam.PTransform:
    """Lists of shard tasks, a call of the engine each → shards in the store, spread over the workers; what became of each."""
    embed = beam.ParDo(EmbedShards(job)).with_resource_hints(**job.hints)
    return "Spread shards" >> Spread() | "Embed" >> embed


class EmbedShards(beam.DoFn):
    """Lists of `ShardTask`, a call of the engine each → `Outcome` of each call."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._in_process = Shared()

    def setup(self) -> None:
        """Load the model, or take the one that is loaded: one per machine for its GPU; on CPUs one per process, for its cores."""
        tag, load = f"elmo-store-{self._job.run_id}", partial(load_worker, self._job)
        if self._job.device == "cuda":
            self._worker: ShardWorker = MultiProcessShared(load, tag, always_proxy=True).acquire()
        else:
            self._worker = self._in_process.acquire(load, tag)

    def start_bundle(self) -> None:
        self._calls: deque[int] = deque()

    def process(self, element: list[ShardTask]) -> Iterator[Outcome]:
        """Start a call; outcomes of the bundle's calls that are written."""
        self._calls.append(self._worker.begin(element))
        while self._calls and self._worker.is_durable(self._calls[0]):
            yield self._outcome()

    def finish_bundle(self) -> Iterator[Any]:
        """Outcomes of all others: a bundle that succeeded is durable."""
        while self._calls:
            yield GlobalWindows.windowed_value_at_end_of_window(self._outcome())

    def _outcome(self) -> Outcome:
        return counted(self._worker.outcome(self._calls.popleft()))


def load_worker(job: Job) -> "ShardWorker":
    engine = load_engine(job)
    # Beside eight writers the thread that feeds a GPU waited up to 50 ms for its turn.
    sys.setswitchinterval(LOCK_SECONDS)
    return ShardWorker(job, engine)


def load_engine(job: Job) -> Embedder:
    """The engine of a worker: the one that this process is building for it, or one of the weights in the store."""

    def load() -> tuple[BiLMWeights, StartState]:
        return load_weights(job.root, job.fingerprint, job.model), load_start_state(
            job.root, job.start_sha256
        )

    return build_engine(job, load).result()


def build_engine(job: Job, load: Callable[[], tuple[BiLMWeights, StartState]]) -> Future[Embedder]:
    """Begin to build the engine of a worker in this process, unless that is begun: a launcher does it while input is read."""

    def build() -> Embedder:
        weights, start = load()
        return Embedder(_apart(weights), start, EngineSettings(**job.engine))

    engine: Future[Embedder] = job.built.acquire(
        lambda: ThreadPoolExecutor(1, thread_name_prefix="engine").submit(build)
    )
    return engine


def load_weights(root: Root, fingerprint: str, model: str | None = None) -> BiLMWeights:
    """The job's weights, from the store, or by name where a job of this machine left them where they are.

    WorkerError if they are not those of ``fingerprint``.
    """
    if root.size(MODEL) is None:
        location, (_, weights) = str(model or "the default model"), load_model(model)
    else:
        location = root.url(MODEL)
        with scratch_folder() as folder:
            path = folder / "model.safetensors"
            path.write_bytes(root.get(MODEL))
            weights = BiLMWeights.load_safetensors(path)
    if weights.fingerprint != fingerprint:
        raise WorkerError(
            f"{location} holds the model {weights.fingerprint}, the job was started with {fingerprint}: start the job again"
        )
    return weights


def _apart(weights: BiLMWeights) -> BiLMWeights:
    """The same weights, each tensor in memory of its own.

    Tensors of a safetensors file share one mapping of it, which lives as long as the smallest of them; the engine packs the
    large ones for itself and keeps a few small ones (374 MB less at its peak for the published 2 × 4096 model).
    """
    return replace(
        weights, tensors={name: tensor.clone() for name, tensor in weights.tensors.items()}
    )


def load_start_state(root: Root, sha256: str) -> StartState:
    """The start state that the launcher put into the store. WorkerError if its hash is another."""
    state = StartState.from_bytes(root.get(START_STATE))
    if state.sha256 != sha256:
        raise WorkerError(
            f"{root.url(START_STATE)} has the hash {state.sha256}, the job was started with {sha256}: "
            "the file was changed; run again with --overwrite"
        )
    return state


@dataclass(frozen=True)
class WorkerContext:
    """What the steps of a worker share."""

    root: Root
    run_id: str
    plan: str  # its id
    manifest: Manifest
    states: list[int]  # the store's among those of the model
    engine: Embedder
    read_part: Callable[[str], PartWords]
    health: Health
    known: KnownSentences | None = None

    def prepare(self, texts: Sequence[ShardText]) -> Prepared:
        """What the host can do for a call beforehand."""
        return self.engine.prepare(call_text(texts), boundaries=self.manifest.boundaries)


@dataclass(frozen=True)
class Call:
    """Shards that go to the engine at once; ``failed`` are those that could not be read."""

    texts: list[ShardText]
    prepared: Prepared | None  # None: it could not be prepared
    seconds_reading: float  # a shard
    failed: list[Outcome]


@dataclass(frozen=True)
class ComputedShard:
    """A shard whose states are computed, or will be: rows ``first …`` of those of its call."""

    text: ShardText
    running: RunningCall | None  # None: all rows of the call are known
    first: int
    stats: dict[str, Any]  # of its call, as far as they are known before the states


def read_call(work: WorkerContext, tasks: Sequence[ShardTask]) -> Call:
    """The texts of ``tasks``, prepared for the engine. One thread reads."""
    began = time.perf_counter()
    texts: list[ShardText] = []
    failed: list[Outcome] = []
    for task in tasks:
        try:
            marker = marker_of_plan(work.root, ShardMarker, task.shard, work.plan)
            if (
                marker is None or marker.stats.get("run") != work.run_id
            ):  # otherwise of an attempt that its runner lost
                text = read_shard(work.read_part, task, work.manifest.boundaries)
                texts.append(text if work.known is None else work.known.of(text))
        except Exception as error:  # whatever it is, it must not take the other shards down
            failed.append(work.health.failed(task.shard, "reading", error))
    seconds = (time.perf_counter() - began) / max(1, len(tasks))
    try:
        prepared = work.prepare(texts) if any(text.n_asked for text in texts) else None
    except Exception:  # which of the shards it is shows when each is computed by itself
        prepared = None
    return Call(texts, prepared, seconds, failed)


def compute(work: WorkerContext, call: Call) -> list[ComputedShard | Outcome]:
    """Ask the engine for the shards of ``call`` at once, one by one if that fails; outcomes are failures."""
    try:
        return [*_ask_engine(work, call)]
    except DeviceLostError:
        raise
    except Exception as error:
        if len(call.texts) == 1:
            return [work.health.failed(call.texts[0].task.shard, "computing", error)]
    alone = (replace(call, texts=[text], prepared=None) for text in call.texts)
    return [shard for call_of_one in alone for shard in compute(work, call_of_one)]


def _ask_engine(work: WorkerContext, call: Call) -> list[ComputedShard]:
    n_asked = sum(text.n_asked for text in call.texts)
    prepared = work.prepare(call.texts) if call.prepared is None and n_asked else call.prepared
    release_memory()
    stats: dict[str, Any] = {"call_began": time.time()}
    dtype = cast(Dtype, work.manifest.dtype)  # in the order of an uncompressed shard
    running = (
        None if prepared is None else work.engine.run(prepared, dtype=dtype, states=work.states)
    )
    device = running.computed_on if running else work.engine.hardware
    stats |= {"seconds_reading": call.seconds_reading, "cell": work.engine.cell, "device": device}
    ends = itertools.accumulate(text.n_asked for text in call.texts)
    return [
        ComputedShard(text, running, end - text.n_asked, stats)
        for text, end in zip(call.texts, ends, strict=True)
    ]


def write(work: WorkerContext, shard: ComputedShard) -> Outcome:
    """Wait for the states of ``shard``, then write them."""
    task, running, known, n_asked = (
        shard.text.task,
        shard.running,
        shard.text.known,
        shard.text.n_asked,
    )
    stats = dict(shard.stats)
    if known is not None:
        stats |= {"known_sentences": known.n_sentences, "known_rows": len(known.rows)}
    try:
        call_states = running.result() if running else None  # [rows of the call, kept, p]
    except Exception as error:
        return work.health.failed(task.shard, "computing", error)
    if running and call_states is not None:
        # Numbers of a call are shared among its shards by rows: sums over shards stay what the engine counted.
        share = n_asked / len(call_states)
        stats |= {
            f"engine_{name}": float(value) * share for name, value in vars(running.stats).items()
        }
        stats["seconds_computing"] = running.seconds * share
        # Of the call's first shard alone: a share of milliseconds would be none, and counters are whole.
        stats["seconds_idle"] = running.seconds_idle if n_asked and shard.first == 0 else 0.0
    try:
        computed = (
            None if call_states is None else call_states[shard.first : shard.first + n_asked]
        )  # [n_asked, kept, p]
        text = shard.text.rows()
        if computed is not None:
            _check_finite(work.manifest, shard.text, text, computed)
        states = merged(known, computed)  # [n_rows, kept, p]
        stats["tokens"] = text.n_tokens(work.manifest.boundaries)
        write_shard(work.root, work.manifest, text, states, work.plan, run_stats(work.root, stats))
    except Exception as error:
        return work.health.failed(task.shard, "writing", error)
    work.health.succeeded()
    return Outcome.written(stats["tokens"])


def _check_finite(
    manifest: Manifest, shard: ShardText, text: RowText, computed: Array | Int8Rows
) -> None:
    """Raise ValueError, with row, sentence and token, if a computed state is a number that the store can't hold."""
    index = row_not_finite(computed)
    if index is None:
        return
    if shard.known is not None:  # rows between those that were computed are copied
        index = int(np.flatnonzero(~shard.known.mask)[index])
    row = shard.task.first_row + index
    where = f"row {row} (sentence {shard.sentence[index]}, token {text.tokens[index]!r})"
    if manifest.dtype == "float16":
        raise ValueError(
            f"{where} holds a number that float16 can't hold (it ends at {FLOAT16_MAX:,}): "
            "embed with --dtype float32 or --dtype int8"
        )
    raise ValueError(
        f"{where} holds a number that is not finite: the model's weights are damaged or far too large"
    )


class ShardWorker:
    """An engine with its reading and writing around it. One a process; thread-safe.

    Where the device is not the CPU, all workers of the job must compute on the same hardware as this one.
    """

    def __init__(self, job: Job, engine: Embedder) -> None:
        self._job, self._engine = job, engine
        self._claims_device = job.engine.get("device") != "cpu"
        self._turn = threading.Lock()  # one caller at a time reads
        self._in_flight: deque[Future[Computed]] = (
            deque()
        )  # the last calls that the engine was asked for
        self._engine_thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._writers = ThreadPoolExecutor(job.writers, thread_name_prefix="write")
        self._numbers = itertools.count()
        self._started: dict[
            int, Future[Computed]
        ] = {}  # by number, until their results are asked for

    @cached_property
    def _work(self) -> WorkerContext:
        job, root = self._job, self._job.root
        manifest = read_manifest(
            root
        )  # not before the plan is made: it holds the sizes of the arrays
        plan = str(root.get_json(PLAN)["id"])
        names = state_names(self._engine.options.n_layers)
        states = [names.index(name) for name in manifest.states]
        known = (
            None
            if job.known is None
            else KnownSentences(job.known, manifest, self._engine.hardware)
        )
        return WorkerContext(
            root,
            job.run_id,
            plan,
            manifest,
            states,
            self._engine,
            part_reader(root),
            Health(),
            known,
        )

    def begin(self, tasks: Sequence[ShardTask]) -> int:
        """Read the shards of ``tasks`` while the last ones are computed, and have the engine begin with them.

        Returns a number for `outcome` when they may still be computed and written.
        """
        with self._turn:
            if self._claims_device:
                claim_device(self._job.root, self._engine.hardware)
                self._claims_device = False
            call = read_call(self._work, tasks)
            wait(self._in_flight)
            if (
                len(self._in_flight) == CALLS_IN_FLIGHT
                and not (oldest := self._in_flight.popleft()).exception()
            ):
                wait(oldest.result()[1])
            self._in_flight.append(self._engine_thread.submit(self._compute, call))
            number = next(self._numbers)
            self._started[number] = self._in_flight[-1]
        return number

    def is_durable(self, number: int) -> bool:
        """Whether every shard of the task is in the store, or failed."""
        call = self._started[number]
        return call.done() and (
            call.exception() is not None or all(write.done() for write in call.result()[1])
        )

    def outcome(self, number: int) -> Outcome:
        """What became of the shards of the task, once all of them are in the store, or failed. Asked once.

        DeviceLostError if the GPU is of no use to this process any more: no shard is to blame, none is marked as failed. A
        process that an engine would go on giving work to ends. WorkerBrokenError after `FAILURES_IN_A_ROW`, LeaseLostError if
        the run ended meanwhile: then the bundle must fail too.
        """
        try:
            failed, writes = self._started.pop(number).result()
            outcome = total(
                [*failed, *(write.result() for write in writes), Outcome.retried(self._job.root)]
            )
            self._work.health.check()
        except DeviceLostError as error:
            end_where_replaced(self._job.root, error)
            raise
        return outcome

    def _compute(self, call: Call) -> Computed:
        work = self._work
        work.health.check()
        shards = compute(work, call)
        failed = call.failed + [shard for shard in shards if isinstance(shard, Outcome)]
        computed = [shard for shard in shards if isinstance(shard, ComputedShard)]
        return failed, [self._writers.submit(write, work, shard) for shard in computed]
