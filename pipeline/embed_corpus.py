"""An embed job, composed: pieces → scratch parts → plan → (final parts ‖ shards) → complete store.

May import apache_beam, elmo_store and transforms. Every stage reads what it needs from the store and leaves what the next
ones need there; between stages travel piece numbers, tasks (pointers) and counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from elmo_store.storage import Root
from transforms.embed import EmbedSettings, EmbedShards
from transforms.finish import FinishStore
from transforms.number import NumberParts
from transforms.piece_list import read_pieces
from transforms.plan_shards import NUMBER, SHARDS, PlanShards
from transforms.records import Piece, ReadSettings
from transforms.tokenise import TokenisePieces


@dataclass(frozen=True)
class JobSettings:
    """What the stages of one run share; small and picklable."""

    embed: EmbedSettings
    read: ReadSettings
    input_storage_options: dict[str, Any] | None
    most_shards_per_task: int
    workers: int  # processes that embed, as far as is known: each should get a task
    device: str
    hints: Mapping[str, str]  # Beam's resource hints for workers that embed

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
        pieces = begin | "Job" >> beam.Create([root]) | "List pieces" >> beam.FlatMap(read_pieces).with_output_types(Piece)
        read = (
            pieces
            | "Pieces" >> TokenisePieces(root, settings.read, settings.input_storage_options)
            | "All pieces" >> beam.CombineGlobally(beam.combiners.CountCombineFn())
        )
        tasks = read | "Plan" >> PlanShards(
            root, settings.read, most_shards_per_task=settings.most_shards_per_task, workers=settings.workers
        )
        numbered = tasks[NUMBER] | "Parts" >> NumberParts(root)
        embedded = tasks[SHARDS] | "Shards" >> EmbedShards(settings.embed, device=settings.device, hints=settings.hints)
        return (numbered, embedded) | "All results" >> beam.Flatten() | "Finish" >> FinishStore(root)
