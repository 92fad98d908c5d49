"""An embed job, composed: tasks of the input → scratch parts → plan → (final parts ‖ shards) → complete store.

Every stage reads what it needs from the store and leaves what the next ones need there; between stages travel numbers, tasks
(pointers) and counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from elmo_store.storage.root import Root
from transforms.inputs.records import ReadSettings, ReadTask
from transforms.stages.embed import EmbedSettings, EmbedShards
from transforms.stages.finish import FindDone, FinishStore
from transforms.stages.number import IndexIds, NumberParts
from transforms.stages.plan import NUMBER, SHARDS, PlanShards
from transforms.stages.tokenise import TokeniseTasks
from transforms.stages.unpack import UnpackStreams, listed_tasks


@dataclass(frozen=True)
class JobSettings:
    """What the stages of one run share; small and picklable."""

    embed: EmbedSettings
    read: ReadSettings
    input_storage_options: dict[str, Any] | None = field(repr=False)
    most_shards_per_task: int
    workers: int  # processes that embed, as far as is known: each should get a task
    device: str
    hints: Mapping[str, str]  # Beam's resource hints for workers that embed
    unpack: bool = False  # the input has large streams that can't be read from their middle
    read_processes: int = 1  # of each worker, to read and tokenise
    max_reject_rate: float = 1.0  # of records that are not blank
    resumed: bool = False  # an earlier run of this job may have done some of it

    @property
    def root(self) -> Root:
        """The store."""
        return self.embed.root


class EmbedCorpus(beam.PTransform[PBegin, PCollection[bool]]):
    """The whole job whose start stands in the store at ``settings.root``."""

    def __init__(self, settings: JobSettings) -> None:
        super().__init__()
        self._settings = settings

    def expand(self, begin: PBegin) -> PCollection[bool]:
        """Wire the stages; every Reshuffle within them is where work spreads over workers."""
        settings = self._settings
        root = settings.root
        arguments = (root, settings.read, settings.input_storage_options)
        tasks = begin | "Job" >> beam.Create([root]) | "List tasks" >> beam.FlatMap(listed_tasks).with_output_types(ReadTask)
        if settings.unpack:  # a stage more, for inputs that have large streams only
            tasks |= "Streams" >> UnpackStreams(*arguments)
        read = (
            tasks
            | "Text" >> TokeniseTasks(*arguments, processes=settings.read_processes)
            | "All text" >> beam.CombineGlobally(sum)
        )
        planned = read | "Plan" >> PlanShards(
            root, settings.read,
            most_shards_per_task=settings.most_shards_per_task, workers=settings.workers, resumed=settings.resumed,
            max_reject_rate=settings.max_reject_rate,
        )  # fmt: skip
        shards = planned[SHARDS]
        if settings.resumed:
            shards |= "Done" >> FindDone(root, settings.most_shards_per_task)
        numbered = planned[NUMBER] | "Parts" >> NumberParts(root)
        embedded = shards | "Shards" >> EmbedShards(settings.embed, device=settings.device, hints=settings.hints)
        indexed = numbered | "Ids" >> IndexIds(root)
        return (numbered, indexed, embedded) | "All results" >> beam.Flatten() | "Finish" >> FinishStore(root)
