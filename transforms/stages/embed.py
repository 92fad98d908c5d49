"""Stage C: shard tasks → biLM → the store, through RunInference with a handler of our own. The only stage that loads the model.

A task is a list of shards (pre-batched). Inside a worker reading the next shards, computing and writing the last ones go on at
once with bounded memory; results are returned only when everything is written, so a bundle that succeeded is durable. A shard
that fails is computed once more by itself and then reported, so that it takes no other shard down with it. A worker where shard
after shard fails for reasons that are not the data's gives its bundle back as failed, so that it does not eat the queue.
"""

import itertools
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import apache_beam as beam
import torch
from apache_beam.ml.inference.base import ModelHandler, RunInference
from apache_beam.pvalue import PCollection

from elmo_store.errors import LeaseLostError, ShardCorruptError
from elmo_store.format.layout import START_STATE, state_names
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.markers import read_marker
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root
from model.engine.embedder import Embedder, EngineSettings, Prepared, Running
from model.errors import DeviceLostError
from model.files.registry import load_model
from model.files.weights import BiLMWeights
from model.start_state import StartState
from transforms.runtime.health import Health, WorkerError
from transforms.runtime.job_root import RETRIES, JobRoot, is_of_the_data
from transforms.runtime.memory import give_back
from transforms.runtime.one_device import claim
from transforms.runtime.progress_files import ShardProgress
from transforms.runtime.results import NAMESPACE, ShardResult, count
from transforms.runtime.work import MODEL, PLAN
from transforms.stages.plan import ShardTask
from transforms.stages.shard_text import PartReader, ShardText, call_text, read_shard
from transforms.stages.write import NOT_SUMMED, write_shard

BROKEN_EXIT = 70  # of a worker process that ends itself
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmbedSettings:
    """Everything a worker needs, small and picklable: the weights come from the store itself, or by name on this machine."""

    root: Root
    run_id: str  # names this run's model among the processes of a machine
    fingerprint: str  # of the model
    start_sha256: str  # of the start state
    engine: Mapping[str, Any]  # fields of EngineSettings, which only a worker can check: the launcher may have no GPU
    shards_at_once: int = 1  # shards that go to the engine in one call
    writers: int = 1  # threads that encode and put
    cuda_shards_at_once: int = 1  # the same of a worker that computes on a GPU: with --device auto each finds out
    cuda_writers: int = 1
    model: str | None = None  # as asked for: where the weights are if the store does not hold them


def engine_dtype(store_dtype: str) -> Literal["float16", "float32"]:
    """The dtype of the states that a worker asks its engine for: int8 rows are quantised from float32."""
    return "float16" if store_dtype == "float16" else "float32"


# Engines that the launcher is building for a worker in its own process, by run: on the local runner they are one.
_READY: dict[str, Future[Embedder]] = {}


def build_ahead(settings: EmbedSettings, weights: BiLMWeights, start: StartState) -> None:
    """Begin to build the engine of a worker in this process, while the job reads its input."""
    ready: Future[Embedder] = Future()

    def build() -> None:
        try:
            ready.set_result(Embedder(_apart(weights), start, EngineSettings(**settings.engine)))
        except BaseException as error:  # the worker gets it
            ready.set_exception(error)

    _READY.clear()
    _READY[settings.run_id] = ready
    threading.Thread(target=build, name="engine", daemon=True).start()


def load_weights(root: Root, fingerprint: str, model: str | None = None) -> BiLMWeights:
    """The job's weights, from the store, or by name where a job of this machine left them where they are.

    WorkerError if they are not those of ``fingerprint``.
    """
    if root.size(MODEL) is None:
        place, (_, weights) = str(model or "the default model"), load_model(model)
    else:
        place = root.url(MODEL)
        with scratch_folder() as folder:
            path = folder / "model.safetensors"
            path.write_bytes(root.get(MODEL))
            weights = BiLMWeights.load_safetensors(path)
    if weights.fingerprint != fingerprint:
        raise WorkerError(
            f"{place} holds the model {weights.fingerprint}, the job was started with {fingerprint}: start the job again"
        )
    return weights


def _apart(weights: BiLMWeights) -> BiLMWeights:
    """The same weights, each tensor in memory of its own.

    Tensors of a safetensors file share one mapping of it, which lives as long as the smallest of them; the engine packs the
    large ones for itself and keeps a few small ones (374 MB less at its peak for the published 2 × 4096 model).
    """
    return replace(weights, tensors={name: tensor.clone() for name, tensor in weights.tensors.items()})


def load_start_state(root: Root, sha256: str) -> StartState:
    """The start state that the launcher put into the store. WorkerError if its hash is another."""
    state = StartState.from_bytes(root.get(START_STATE))
    if state.sha256 != sha256:
        raise WorkerError(
            f"{root.url(START_STATE)} has the hash {state.sha256}, the job was started with {sha256}: "
            "the file was changed; run again with --overwrite"
        )
    return state


class EmbedShards(beam.PTransform[PCollection[list[ShardTask]], PCollection[ShardResult]]):
    """Lists of shard tasks → shards in the store, spread over the workers; what became of each."""

    def __init__(self, settings: EmbedSettings, *, device: str, hints: Mapping[str, str]) -> None:
        super().__init__()
        self._settings = settings
        self._handler = BiLMHandler(settings, device, hints)

    def expand(self, tasks: PCollection[list[ShardTask]]) -> PCollection[ShardResult]:
        """Wire the handler."""
        return (
            tasks
            | "Spread shards" >> beam.Reshuffle()
            | "Embed" >> RunInference(self._handler, model_identifier=f"elmo-store-{self._settings.run_id}")
        )


class ShardWorker:
    """The "model" of RunInference: an engine with its reading and writing around it. One a process; thread-safe."""

    def __init__(self, settings: EmbedSettings) -> None:
        ready = _READY.pop(settings.run_id, None)
        if ready is not None:
            self._prepare(settings, ready.result())
            return
        weights = _apart(load_weights(settings.root, settings.fingerprint, settings.model))
        start = load_start_state(settings.root, settings.start_sha256)
        self._prepare(settings, Embedder(weights, start, EngineSettings(**settings.engine)))

    def _prepare(self, settings: EmbedSettings, embedder: Embedder) -> None:
        self._settings = settings
        self._root = settings.root
        self._progress = ShardProgress(settings.root)
        self._embedder = embedder
        self._reader = PartReader(settings.root)
        self._health = Health()
        self._claimed = False  # the hardware, unless the job is for CPUs
        self._turn = threading.Lock()  # one caller at a time reads and computes
        self._in_flight = threading.BoundedSemaphore(2)  # calls whose states exist: one computed, one written
        on_cuda = embedder.device == "cuda"
        self._shards_at_once = settings.cuda_shards_at_once if on_cuda else settings.shards_at_once
        n_writers = settings.cuda_writers if on_cuda else settings.writers
        self._writers = ThreadPoolExecutor(n_writers, thread_name_prefix="write")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="read")

    @cached_property
    def _manifest(self) -> Manifest:
        return read_manifest(self._root)  # not before the plan is made: it holds the sizes of the arrays

    @cached_property
    def _kept(self) -> list[int]:
        """Places of the store's states among those of the model."""
        names = state_names(self._embedder.options.n_layers)
        return [names.index(name) for name in self._manifest.states]

    def _claim_device(self) -> None:
        if not self._claimed:
            claim(self._root, self._embedder.hardware)
            self._claimed = True

    @cached_property
    def _plan(self) -> str:
        return str(self._root.get_json(PLAN)["id"])

    def run(self, tasks: Sequence[ShardTask]) -> list[ShardResult]:
        """Embed and write every shard of ``tasks``; returns when all of them are in the store, or failed.

        DeviceLostError if the GPU is of no use to this process any more: no shard is to blame, none is marked as failed. A
        process that an engine would go on giving work to ends. WorkerBrokenError after `FAILURES_IN_A_ROW`, LeaseLostError if
        the run ended meanwhile: then the bundle must fail too.
        """
        try:
            return self._run(tasks)
        except DeviceLostError as error:
            if isinstance(self._root, JobRoot) and self._root.is_of_an_engine:
                _log.critical("this worker ends, so that another one takes its place: %s", error)
                logging.shutdown()
                os._exit(BROKEN_EXIT)
            raise

    def _run(self, tasks: Sequence[ShardTask]) -> list[ShardResult]:
        futures: list[Future[ShardResult]] = []
        with self._turn:
            if tasks and self._settings.engine.get("device") != "cpu":
                self._claim_device()
            groups = self._groups(tasks)
            ahead = self._ahead.submit(self._read, next(groups)) if tasks else None
            while ahead is not None:
                call = ahead.result()
                group = next(groups, None)
                ahead = None if group is None else self._ahead.submit(self._read, group)
                futures += call.ended
                self._health.check()
                self._in_flight.acquire()
                written = self._compute(call)
                _when_all_done(written, self._in_flight.release)
                futures += written
        # The next caller may compute while this one waits for its last writes.
        results = [future.result() for future in futures]
        self._health.check()
        self._progress.last()
        return results

    def _failure(self, task: ShardTask, doing: str, error: Exception) -> ShardResult:
        self._health.failed(doing, error)
        return _failure(task, doing, error)

    def _groups(self, tasks: Sequence[ShardTask]) -> Iterator[Sequence[ShardTask]]:
        size = self._shards_at_once
        return (tasks[i : i + size] for i in range(0, len(tasks), size))

    def _read(self, tasks: Sequence[ShardTask]) -> "_Call":
        """The texts of ``tasks``, and what the host can do with them beforehand.

        A marker of this very run is from an attempt of this task that its runner lost: the shard is done.
        """
        began = time.perf_counter()
        texts: list[ShardText] = []
        ended: list[Future[ShardResult]] = []
        for task in tasks:
            try:
                if self._is_written(task.shard):
                    ended.append(_done(ShardResult(task.shard, task.n_rows)))
                else:
                    texts.append(read_shard(self._reader, task, self._manifest.boundaries))
            except LeaseLostError:
                raise
            except Exception as error:  # whatever it is, it must not take the other shards down
                ended.append(_done(self._failure(task, "reading", error)))
        seconds = (time.perf_counter() - began) / max(1, len(tasks))
        try:
            prepared = self._prepared(texts) if texts else None
        except Exception:  # which of the shards it is shows when each is computed by itself
            prepared = None
        return _Call(texts, prepared, seconds, ended)

    def _is_written(self, shard: int) -> bool:
        try:
            marker = read_marker(self._root, shard)
        except ShardCorruptError:  # to be written over
            return False
        return marker is not None and (marker.plan, marker.stats.get("run")) == (self._plan, self._settings.run_id)

    def _prepared(self, texts: Sequence[ShardText]) -> Prepared:
        return self._embedder.prepare(call_text(texts), boundaries=self._manifest.boundaries)

    def _compute(self, call: "_Call") -> list[Future[ShardResult]]:
        """Compute the shards of ``call`` at once (one by one if that fails) and hand them to the writers."""
        texts = call.texts
        if call.prepared is not None:
            try:
                return self._embed(texts, call.prepared, call.seconds_reading)
            except DeviceLostError:
                raise
            except Exception as error:
                if len(texts) == 1 and is_of_the_data(error):
                    return [_done(self._failure(texts[0].task, "computing", error))]
        futures = []
        for text in texts:
            try:
                futures += self._embed([text], self._prepared([text]), call.seconds_reading)
            except DeviceLostError:
                raise
            except Exception as error:
                futures.append(_done(self._failure(text.task, "computing", error)))
        return futures

    def _embed(self, texts: Sequence[ShardText], prepared: Prepared, seconds_reading: float) -> list[Future[ShardResult]]:
        """Ask the engine for the states of ``texts``; whoever writes them waits until they are there."""
        give_back()
        call_began = time.time()
        running = self._embedder.run(prepared, dtype=engine_dtype(self._manifest.dtype))
        rows = sum(text.task.n_rows for text in texts)
        # The whole call stands in each of its markers: progress knows what is computed before the last shard is written.
        call = {"call_began": call_began, "call_tokens": sum(text.n_tokens for text in texts)}
        futures = []
        first = 0
        for text in texts:
            # Numbers of a call are shared among its shards by rows; sums over shards stay what the engine counted.
            share = text.task.n_rows / rows
            stats: dict[str, Any] = call | {"tokens": text.n_tokens, "seconds_reading": seconds_reading}
            stats |= {"cell": self._embedder.cell, "device": "; ".join(running.computed_on)}
            futures.append(self._writers.submit(self._write, text, running, first, share, stats))
            first += text.task.n_rows
        return futures

    def _write(self, text: ShardText, running: Running, first: int, share: float, stats: dict[str, Any]) -> ShardResult:
        try:
            states = running.result()[first : first + text.task.n_rows]  # [n_rows, 2L+1, p]
            if len(self._kept) < states.shape[1]:
                states = states[:, self._kept]  # [n_rows, kept, p]
        except DeviceLostError:
            raise
        except Exception as error:
            return self._failure(text.task, "computing", error)
        stats |= {f"engine_{name}": float(value) * share for name, value in vars(running.stats).items()}
        stats |= {"seconds_computing": running.seconds * share}
        try:
            marker = write_shard(self._root, self._manifest, text, states, self._plan, stats)
        except LeaseLostError:
            raise
        except Exception as error:
            return self._failure(text.task, "writing", error)
        self._health.well()
        self._progress.done(text.task.shard, marker.stats)
        kept = {name: value for name, value in marker.stats.items() if name not in NOT_SUMMED}
        numbers = {name: float(value) for name, value in kept.items() if not isinstance(value, str)}
        numbers["storage_retries"] = RETRIES.taken()
        return ShardResult(text.task.shard, text.task.n_rows, None, numbers)


@dataclass(frozen=True)
class _Call:
    """Shards that go to the engine at once; ``ended`` are those that were done already or could not be read."""

    texts: list[ShardText]
    prepared: Prepared | None  # None: it could not be prepared
    seconds_reading: float  # a shard
    ended: list[Future[ShardResult]]


def _failure(task: ShardTask, doing: str, error: Exception) -> ShardResult:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({last[0].filename}:{last[0].lineno})" if last else ""
    said = f"{doing}: {type(error).__name__}: {error}{place}"
    return ShardResult(task.shard, task.n_rows, said, {"storage_retries": RETRIES.taken()})


def _when_all_done(futures: Sequence[Future[ShardResult]], then: Callable[[], None]) -> None:
    """Call ``then`` once, when the last of ``futures`` is done."""
    left = itertools.count(len(futures) - 1, -1)  # next() is atomic, callbacks come from several threads

    def one_less(_: Future[ShardResult]) -> None:
        if next(left) == 0:
            then()

    if not futures:
        then()
    for future in futures:
        future.add_done_callback(one_less)


def _done(result: ShardResult) -> Future[ShardResult]:
    future: Future[ShardResult] = Future()
    future.set_result(result)
    return future


class BiLMHandler(ModelHandler[ShardTask, ShardResult, ShardWorker]):
    """The biLM for RunInference: elements are lists of ShardTasks, predictions are ShardResults."""

    def __init__(self, settings: EmbedSettings, device: str, hints: Mapping[str, str]) -> None:
        super().__init__()
        self._settings = settings
        self._device = device
        self._hints = dict(hints)

    def load_model(self) -> ShardWorker:
        """Weights, start state and engine, verified against the manifest."""
        return ShardWorker(self._settings)

    def run_inference(
        self, batch: Sequence[ShardTask], model: ShardWorker, inference_args: dict[str, Any] | None = None
    ) -> Iterable[ShardResult]:
        """Embed and write the shards of one task; counts what was done (a list, as RunInference wants it)."""
        results = model.run(list(batch))
        for result in results:
            count(result)
        return results

    def get_num_bytes(self, batch: Sequence[ShardTask]) -> int:
        """Size of the pointers, estimated: the default pickles every batch to find out."""
        return 200 * len(batch)

    def get_metrics_namespace(self) -> str:
        """Where RunInference's own counters stand."""
        return NAMESPACE

    def get_resource_hints(self) -> dict[str, Any]:
        """What workers of this stage alone must have: memory, a GPU."""
        return self._hints

    def should_skip_batching(self) -> bool:
        """Elements are batches already: lists of shards."""
        return True

    def share_model_across_processes(self) -> bool:
        """One model a GPU, whichever process asks; on CPU each process has its own cores and its own model."""
        return self._device == "cuda" or (self._device == "auto" and torch.cuda.is_available())
