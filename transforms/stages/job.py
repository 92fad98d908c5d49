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
    """Everything that the stages of one run share; small: weights come from the store itself, or by name on this machine."""

    root: Root  # the store
    run_id: str  # names this run's model among the processes of a machine
    fingerprint: str  # of the model
    start_sha256: str  # of the start state
    engine: Mapping[
        str, Any
    ]  # fields of `EngineSettings`, which only a worker can check: the launcher may have no GPU
    read: ReadSettings = field(default_factory=ReadSettings)
    model: str | None = None  # as asked for: where the weights are if the store does not hold them
    device: str = "cpu"  # of all workers
    hints: Mapping[str, str] = field(
        default_factory=dict
    )  # Beam's resource hints for workers that embed
    workers: int = 1  # processes that embed, as far as is known: each should get a task
    writers: int = 1  # threads of a worker that encode and put
    shards_per_call: int = 1  # at most, of one call of the engine
    known: KnownSource | None = None  # what of the job a collection has already
    input_storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    read_processes: int = 1  # of each worker, to read and tokenise
    max_reject_rate: float = 1.0  # of records that are not blank
    resumed: bool = False  # an earlier run of this job may have done some of it
    built: Shared = field(
        default_factory=Shared
    )  # the Future of an engine that the launcher builds for a worker of its process
