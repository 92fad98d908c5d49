"""Stage C: shard tasks → biLM → the store, through RunInference with a handler of our own. The only stage that loads the model.

A task is a list of shards (pre-batched); what a worker does with it: `transforms.stages.shard_worker`.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import apache_beam as beam
import torch
from apache_beam.ml.inference.base import ModelHandler, RunInference
from apache_beam.pvalue import PCollection
from apache_beam.utils.shared import Shared

from elmo_store.format.layout import START_STATE
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root
from model.engine.embedder import Embedder, EngineSettings
from model.files.registry import load_model
from model.files.weights import BiLMWeights
from model.start_state import StartState
from transforms.runtime.results import NAMESPACE, Outcome, counted
from transforms.runtime.work import MODEL
from transforms.runtime.worker import WorkerError
from transforms.stages.plan import ShardTask
from transforms.stages.shard_worker import ShardWorker


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
    built: Shared = field(default_factory=Shared)  # the Future of an engine that the launcher builds for a worker of its process


def build_ahead(settings: EmbedSettings, weights: BiLMWeights, start: StartState) -> None:
    """Begin to build the engine of a worker in this process, while the job reads its input."""

    def begin() -> Future[Embedder]:
        engine: Future[Embedder] = Future()

        def build() -> None:
            try:
                engine.set_result(Embedder(_apart(weights), start, EngineSettings(**settings.engine)))
            except BaseException as error:  # the worker gets it
                engine.set_exception(error)

        threading.Thread(target=build, name="engine", daemon=True).start()
        return engine

    settings.built.acquire(begin)


def load_engine(settings: EmbedSettings) -> Embedder:
    """The engine of a worker: the one that this process is building for it, or one of the weights in the store."""

    def load() -> Future[Embedder]:
        engine: Future[Embedder] = Future()
        weights = _apart(load_weights(settings.root, settings.fingerprint, settings.model))
        start = load_start_state(settings.root, settings.start_sha256)
        engine.set_result(Embedder(weights, start, EngineSettings(**settings.engine)))
        return engine

    engine: Future[Embedder] = settings.built.acquire(load)
    return engine.result()


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


class EmbedShards(beam.PTransform[PCollection[list[ShardTask]], PCollection[Outcome]]):
    """Lists of shard tasks → shards in the store, spread over the workers; what became of each."""

    def __init__(self, settings: EmbedSettings, *, device: str, hints: Mapping[str, str]) -> None:
        super().__init__()
        self._settings = settings
        self._handler = BiLMHandler(settings, device, hints)

    def expand(self, tasks: PCollection[list[ShardTask]]) -> PCollection[Outcome]:
        """Wire the handler."""
        return (
            tasks
            | "Spread shards" >> beam.Reshuffle()
            | "Embed" >> RunInference(self._handler, model_identifier=f"elmo-store-{self._settings.run_id}")
        )


class BiLMHandler(ModelHandler[ShardTask, Outcome, ShardWorker]):
    """The biLM for RunInference: elements are lists of ShardTasks, predictions are Outcomes."""

    def __init__(self, settings: EmbedSettings, device: str, hints: Mapping[str, str]) -> None:
        super().__init__()
        self._settings = settings
        self._device = device
        self._hints = dict(hints)

    def load_model(self) -> ShardWorker:
        """Weights, start state and engine, verified against the manifest; sizes of calls as what it computes on wants them."""
        settings, engine = self._settings, load_engine(self._settings)
        on_cuda = engine.device == "cuda"
        return ShardWorker(
            settings.root,
            settings.run_id,
            engine,
            shards_at_once=settings.cuda_shards_at_once if on_cuda else settings.shards_at_once,
            n_writers=settings.cuda_writers if on_cuda else settings.writers,
            claims_device=settings.engine.get("device") != "cpu",
        )

    def run_inference(
        self, batch: Sequence[ShardTask], model: ShardWorker, inference_args: dict[str, Any] | None = None
    ) -> Iterable[Outcome]:
        """Embed and write the shards of one task; counts what was done (a list, as RunInference wants it)."""
        return [counted(result) for result in model.run(list(batch))]

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
