"""A mix job, composed: plan → (copies ‖ mixed shards) → complete store. May import apache_beam, elmo_store and transforms."""

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from elmo_store.storage import Root
from transforms.copy_parts import CopyParts
from transforms.done import FindDone
from transforms.finish import FinishStore
from transforms.mix import MixShards
from transforms.plan_mix import PARTS, SHARDS, SHARDS_PER_TASK, PlanMix


class MixStore(beam.PTransform[PBegin, PCollection[bool]]):
    """The store at ``source`` into the mixed store that the manifest at ``target`` asks for; ``resumed``: some may be done."""

    def __init__(self, source: Root, target: Root, *, resumed: bool = False) -> None:
        super().__init__()
        self._roots = (source, target)
        self._resumed = resumed

    def expand(self, begin: PBegin) -> PCollection[bool]:
        """Wire the stages."""
        tasks = begin | "Plan" >> PlanMix(*self._roots)
        copied = tasks[PARTS] | "Parts" >> CopyParts(*self._roots)
        shards = tasks[SHARDS]
        if self._resumed:
            shards |= "Done" >> FindDone(self._roots[1], SHARDS_PER_TASK)
        mixed = shards | "Shards" >> MixShards(*self._roots)
        return (copied, mixed) | "All results" >> beam.Flatten() | "Finish" >> FinishStore(self._roots[1])
