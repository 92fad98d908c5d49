"""An ``embed`` job as its workers get it: resolved once by the launcher from what the user asked, then pickled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apache_beam.utils.shared import Shared

from elmo_store.storage.root import Root
from transforms.inputs.records import ReadSettings
from transforms.stages.known import KnownSource


@dataclass(frozen=True)
class Job:
    """Everything that the stages of one run share; small: weights come from the store itself, or by name on this machine.

    Attributes:
        root: the store.
        run_id: names this run's model among the processes of a machine.
        fingerprint: of the model.
        start_sha256: of the start state.
        engine: fields of `EngineSettings`, which only a worker can check: the launcher may have no GPU.
        read: how records are read.
        model: as asked for: where the weights are if the store does not hold them.
        device: of all workers.
        hints: Beam's resource hints for workers that embed.
        workers: processes that embed, as far as is known: each should get a task.
        writers: threads of a worker that encode and put.
        shards_per_call: at most, of one call of the engine.
        known: what of the job a collection has already.
        input_storage_options: for the input's files.
        read_processes: of each worker, to read and tokenise.
        max_reject_rate: of records that are not blank.
        resumed: an earlier run of this job may have done some of it.
        built: the Future of an engine that the launcher builds for a worker of its process.
    """

    root: Root
    run_id: str
    fingerprint: str
    start_sha256: str
    engine: Mapping[str, Any]
    read: ReadSettings = field(default_factory=ReadSettings)
    model: str | None = None
    device: str = "cpu"
    hints: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1
    writers: int = 1
    shards_per_call: int = 1
    known: KnownSource | None = None
    input_storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    read_processes: int = 1
    max_reject_rate: float = 1.0
    resumed: bool = False
    built: Shared = field(default_factory=Shared)
