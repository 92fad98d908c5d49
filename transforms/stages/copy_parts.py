"""Sentences, rejects and id tables of one store into another, marker by marker."""

from dataclasses import replace
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from elmo_store.errors import ShardMissingError
from elmo_store.format import layout
from elmo_store.format.markers import STAMPS, ObjectRecord, joined_stamps, read_ids_marker, read_stretch_marker, write_marker
from elmo_store.storage.root import Root
from transforms.runtime.job_root import RETRIES, again
from transforms.runtime.results import NumberResult
from transforms.runtime.work import PLAN

CopyTask = tuple[str, int]  # the markers' folder, and the marker's number


class CopyParts(beam.PTransform[PCollection[CopyTask], PCollection[NumberResult]]):
    """Numbers of markers → copies of all that they name, spread over the workers."""

    def __init__(self, source: Root, target: Root) -> None:
        super().__init__()
        self._roots = (source, target)

    def expand(self, tasks: PCollection[CopyTask]) -> PCollection[NumberResult]:
        """Wire `copy_marked`."""
        return (
            tasks
            | "Spread parts" >> beam.Reshuffle()
            | "Copy" >> beam.Map(lambda task, roots: copy_marked(task, *roots), self._roots)
        )


def copy_marked(task: CopyTask, source: Root, target: Root) -> NumberResult:
    """Copy every object that a marker names, then the marker. Doing it again overwrites the same with the same.

    ShardMissingError if the source has no such marker; ValueError if an object is not what the marker says.
    """
    folder, number = task
    read: Any = read_stretch_marker if folder == layout.STRETCHES else read_ids_marker
    marker = read(source, number)
    if marker is None:
        raise ShardMissingError(f"{source.url(f'{folder}/{number:05d}.json')} is missing: the source is damaged, verify it")
    stamps = []
    for record in marker.objects:
        data = again(partial(source.get, record.path), local=source.is_local)
        if ObjectRecord.of(record.path, data) != record:
            raise ValueError(f"{source.url(record.path)} is not what its marker says: the source is damaged, verify it")
        stamps.append(target.put_stamped(record.path, data))
    write_marker(target, replace(marker, plan=str(target.get_json(PLAN)["id"]), stats={STAMPS: joined_stamps(stamps)}))
    return NumberResult(number, 0, RETRIES.taken())
