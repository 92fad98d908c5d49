"""Sentences and rejects of one store into another, part by part, with the markers that the last stage looks for.

May import apache_beam, elmo_store and transforms.
"""

import apache_beam as beam
from apache_beam.pvalue import PCollection

from elmo_store.layout import rejects_part, sentences_part
from elmo_store.storage import Root
from transforms.results import NumberResult
from transforms.work import numbered_marker


class CopyParts(beam.PTransform[PCollection[int], PCollection[NumberResult]]):
    """Numbers of parts → copies, spread over the workers."""

    def __init__(self, source: Root, target: Root) -> None:
        super().__init__()
        self._roots = (source, target)

    def expand(self, parts: PCollection[int]) -> PCollection[NumberResult]:
        """Wire `copy_part`."""
        return (
            parts
            | "Spread parts" >> beam.Reshuffle()
            | "Copy" >> beam.Map(lambda part, roots: copy_part(part, *roots), self._roots)
        )


def copy_part(part: int, source: Root, target: Root) -> NumberResult:
    """Copy the sentences of a part, and its rejects if it has any. Doing it again overwrites the same with the same."""
    names = [sentences_part(part)]
    if source.size(rejects_part(part)) is not None:
        names.append(rejects_part(part))
    copied = []
    for name in names:
        data = source.get(name)
        target.put(name, data)
        copied.append({"path": name, "bytes": len(data)})
    target.put_json(numbered_marker(part), {"objects": copied})
    return NumberResult(part, 0)
