"""Scratch part → final part: global sentence numbers, first rows and positions.

May import apache_beam, elmo_store, NumPy, pyarrow. The final part is a function of the scratch part and its place in the
plan, so that doing it again gives the same bytes. A marker says that it was done, of which scratch part and for which place.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.pvalue import PCollection

from elmo_store.errors import StoreError
from elmo_store.layout import SENTENCES_SCHEMA, rejects_part, sentences_part
from elmo_store.storage import Root
from transforms.plan import PartPlan, row_starts, sentence_rows
from transforms.results import NumberResult
from transforms.work import numbered_marker


@dataclass(frozen=True)
class NumberTask:
    """One part to number."""

    part: PartPlan
    boundaries: bool

    @property
    def identity(self) -> dict[str, Any]:
        """What the final part follows from."""
        return {
            "scratch": self.part.counts.sha256,
            "sentence": self.part.first_sentence,
            "row": self.part.first_row,
            "position": self.part.counts.position_offset,
            "boundaries": self.boundaries,
        }


class NumberParts(beam.PTransform[PCollection[NumberTask], PCollection[NumberResult]]):
    """Every part gets its final numbers, spread over the workers."""

    def __init__(self, root: Root) -> None:
        super().__init__()
        self._root = root

    def expand(self, tasks: PCollection[NumberTask]) -> PCollection[NumberResult]:
        """Wire `number_part`."""
        return (
            tasks
            | "Spread parts" >> beam.Reshuffle()
            | "Number" >> beam.Map(lambda task, root: number_part(root, task), self._root)
        )


def is_numbered(root: Root, task: NumberTask) -> bool:
    """Whether the final part of ``task`` is in the store already, whole and from the same scratch part."""
    try:
        marker = root.get_json(numbered_marker(task.part.part))
        return marker["identity"] == task.identity and all(
            root.size(entry["path"]) == entry["bytes"] for entry in marker["objects"]
        )
    except (StoreError, OSError, ValueError, KeyError, TypeError):
        return False


def number_part(root: Root, task: NumberTask) -> NumberResult:
    """Write the final part (and its rejects) of one scratch part, then its marker."""
    part = task.part
    scratch = root.get(part.counts.scratch)
    if hashlib.sha256(scratch).hexdigest() != part.counts.sha256:
        raise ValueError(
            f"{root.url(part.counts.scratch)} is not what its marker says (sha256 differs): remove "
            f"{root.url('_work')} and run the same command again"
        )
    table = number_table(pq.read_table(BytesIO(scratch), use_threads=False), task)
    data = encode_part(table)
    objects = [(sentences_part(part.part), data)]
    if part.counts.rejects:
        rejects = number_rejects(root.get(part.counts.rejects), task)
        objects.append((rejects_part(part.part), rejects))
    for path, content in objects:
        root.put(path, content)
    records = [{"path": path, "bytes": len(content)} for path, content in objects]
    root.put_json(numbered_marker(part.part), {"identity": task.identity, "objects": records})
    return NumberResult(part.part, table.num_rows)


def number_table(scratch: pa.Table, task: NumberTask) -> pa.Table:
    """The final columns of one scratch table."""
    part = task.part
    n_tokens = scratch["n_tokens"].to_numpy().astype(np.int64)
    position = scratch["position"].to_numpy().astype(np.int64) + part.counts.position_offset
    rows = sentence_rows(n_tokens, task.boundaries)
    return pa.table(
        {
            "sentence": np.arange(part.first_sentence, part.first_sentence + len(n_tokens), dtype=np.int64),
            "id": pa.array(list(_ids(scratch, position, part.counts.ordinal_offset)), pa.string()),
            "source": scratch["source"],
            "position": position,
            "first_row": row_starts(rows, part.first_row),
            "n_tokens": n_tokens.astype(np.int32),
            "tokens": scratch["tokens"],
        }
    ).cast(SENTENCES_SCHEMA)


def _ids(scratch: pa.Table, position: Any, ordinal_offset: int) -> Iterator[str]:
    columns = (scratch[name].to_pylist() for name in ("id", "source", "ordinal", "within"))
    for own, source, ordinal, within, place in zip(*columns, position.tolist(), strict=True):
        yield sentence_id(own, source, place if ordinal < 0 else ordinal + ordinal_offset, within)


def sentence_id(own: str, source: str, place: int, within: int) -> str:
    """The record's own id, otherwise where it stands, ``FILE:PLACE``; then ``:WITHIN``, its sentence, where that is not -1."""
    record = own or f"{source.rpartition('/')[2]}:{place}"
    return record if within < 0 else f"{record}:{within}"


def encode_part(table: pa.Table) -> bytes:
    """A final part as the bytes of one Parquet file, the same for the same table."""
    sink = BytesIO()
    pq.write_table(table, sink, compression="zstd", row_group_size=65_536)
    return sink.getvalue()


def number_rejects(scratch: bytes, task: NumberTask) -> bytes:
    """Rejects with global sentence numbers and positions; ``scratch`` has one JSON object a line."""
    lines = []
    for line in scratch.decode().split("\n")[:-1]:  # splitlines would also split at U+2028
        reject = json.loads(line)
        local = reject.pop("sentence")
        reject["position"] += task.part.counts.position_offset
        ordinal, within = reject.pop("ordinal"), reject.pop("within")
        place = reject["position"] if ordinal < 0 else ordinal + task.part.counts.ordinal_offset
        reject["id"] = sentence_id(reject["id"], reject["source"], place, within)
        reject = {"sentence": task.part.first_sentence + local, **reject}
        lines.append(json.dumps(reject, ensure_ascii=False) + "\n")
    return "".join(lines).encode()
