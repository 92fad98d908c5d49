"""A store from another one, composed: plan → (copies ‖ shards) → complete store."""

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from elmo_store.storage.root import Root
from transforms.stages.derive import PARTS, SHARDS, SHARDS_PER_TASK, CopyParts, DeriveShards, PlanDerived
from transforms.stages.finish import FindDone, FinishStore


class DeriveStore(beam.PTransform[PBegin, PCollection[bool]]):
    """The store at ``source`` into the one that the manifest at ``target`` asks for: mixed, or in other numbers and forms.

    ``resumed``: some of it may be done.
    """

    def __init__(self, source: Root, target: Root, *, resumed: bool = False) -> None:
        super().__init__()
        self._roots = (source, target)
        self._resumed = resumed

    def expand(self, begin: PBegin) -> PCollection[bool]:
        """Wire the stages."""
        tasks = begin | "Plan" >> PlanDerived(*self._roots, resumed=self._resumed)
        copied = tasks[PARTS] | "Parts" >> CopyParts(*self._roots)
        shards = tasks[SHARDS]
        if self._resumed:
            shards |= "Done" >> FindDone(self._roots[1], SHARDS_PER_TASK)
        derived = shards | "Shards" >> DeriveShards(*self._roots)
        return (copied, derived) | "All results" >> beam.Flatten() | "Finish" >> FinishStore(self._roots[1])
