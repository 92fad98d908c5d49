"""Scratch parts → final parts: global sentence numbers, first rows and positions; and where each sentence's rows begin.

A stretch of consecutive parts is one task. What it writes is a function of the scratch parts and their place in the plan, so
that doing it again gives the same bytes. A marker says that it was done.
"""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.pvalue import PCollection

from elmo_store.errors import StoreError
from elmo_store.format import ids, layout
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.markers import (
    STAMPS,
    ObjectRecord,
    PartRange,
    StretchMarker,
    joined_stamps,
    put_marked,
    read_ids_marker,
    read_stretch_marker,
    write_marker,
)
from elmo_store.forms import zarr_form
from elmo_store.reading.sentences import encode_part
from elmo_store.storage.root import Root
from transforms.runtime.job_root import RETRIES
from transforms.runtime.results import NumberResult
from transforms.runtime.work import PLAN, id_hashes
from transforms.stages.plan import Int64, PartPlan, Stretch, row_starts, sentence_rows

IO_THREADS = 16
ID_RUNS = 256  # most runs of id tables: so many files of hashes a stretch leaves


@dataclass(frozen=True)
class NumberTask:
    """One stretch of parts to number."""

    stretch: Stretch
    boundaries: bool
    n_sentences: int  # of the corpus
    n_rows: int
    resumed: bool = False  # an earlier run may have done it

    @property
    def identity(self) -> str:
        """A hash of all that the final parts, the chunks of ``sentence_start`` and the ids follow from."""
        parts = [[*vars(p.counts).values(), p.first_sentence, p.first_row] for p in (*self.stretch.parts, *self.stretch.after)]
        stretch = [self.stretch.number, self.stretch.first_chunk, self.stretch.stop_chunk]
        text = json.dumps([parts, stretch, self.boundaries, self.n_sentences, self.n_rows])
        return hashlib.sha256(text.encode()).hexdigest()


class NumberParts(beam.PTransform[PCollection[NumberTask], PCollection[NumberResult]]):
    """Every part gets its final numbers, spread over the workers."""

    def __init__(self, root: Root) -> None:
        super().__init__()
        self._root = root

    def expand(self, tasks: PCollection[NumberTask]) -> PCollection[NumberResult]:
        """Wire `number_parts`."""
        return (
            tasks
            | "Spread parts" >> beam.Reshuffle()
            | "Number" >> beam.Map(lambda task, root: number_parts(root, task), self._root)
        )


def is_numbered(root: Root, task: NumberTask) -> bool:
    """Whether the final parts of ``task`` are in the store already, whole and from the same scratch parts.

    A request an object, so this is for many workers.
    """
    try:
        marker = read_stretch_marker(root, task.stretch.number)
    except StoreError:
        return False
    if marker is None or marker.plan != task.identity:
        return False
    plan = root.get_json(PLAN)["id"]

    def has_hashes(run: int) -> bool:
        return root.exists(id_hashes(run, task.stretch.number)) or is_merged(root, run, plan)

    with ThreadPoolExecutor(IO_THREADS) as pool:
        there = pool.map(lambda one: root.size(one.path) == one.bytes, marker.objects)
        return all(there) and all(pool.map(has_hashes, range(id_runs(task.n_sentences))))


def is_merged(root: Root, run: int, plan: str) -> bool:
    """Whether the run of id tables is written, by this very plan; then nobody needs the hashes that it was made of."""
    try:
        marker = read_ids_marker(root, run)
    except StoreError:
        return False
    return marker is not None and marker.plan == plan


def number_parts(root: Root, task: NumberTask) -> NumberResult:
    """Write the final parts (and rejects) of a stretch, its chunks of ``sentence_start``, its ids' hashes; then the marker.

    Nothing is written of what an earlier run has done.
    """
    if task.resumed and is_numbered(root, task):
        n_sentences = sum(part.counts.n_sentences for part in task.stretch.parts)
        return NumberResult(task.stretch.number, n_sentences, RETRIES.taken())
    manifest = read_manifest(root)
    written: tuple[list[ObjectRecord], list[str]] = ([], [])
    ranges: list[PartRange] = []
    starts: list[Int64] = []
    hashes: list[npt.NDArray[np.uint64]] = [np.zeros((0, 3), np.uint64)]
    for part in task.stretch.parts:
        table = number_table(_scratch(root, part), part, task.boundaries)
        files = [(layout.sentences_part(part.part), encode_part(table))]
        if part.counts.rejects:
            files.append((layout.rejects_part(part.part), number_rejects(root.get(part.counts.rejects), part)))
        _extend(written, put_marked(root, files))
        ranges.append(PartRange(part.part, part.first_sentence, table.num_rows, part.first_row, part.n_rows))
        starts.append(table["first_row"].to_numpy())
        numbers = table["sentence"].to_numpy().astype(np.uint64)
        hashes.append(np.column_stack([ids.hashes(table["id"].to_pylist()), numbers]))
    _extend(written, put_marked(root, _starts(root, manifest, task, starts)))
    _put_hashes(root, task, np.concatenate(hashes))
    stats = {STAMPS: joined_stamps(written[1])}
    write_marker(root, StretchMarker(task.stretch.number, tuple(ranges), tuple(written[0]), task.identity, stats))
    return NumberResult(task.stretch.number, sum(one.n_sentences for one in ranges), RETRIES.taken())


def _scratch(root: Root, part: PartPlan) -> pa.Table:
    """A scratch part. ValueError if it is not the one that was planned."""
    scratch = root.get(part.counts.scratch)
    if hashlib.sha256(scratch).hexdigest() != part.counts.sha256:
        raise ValueError(
            f"{root.url(part.counts.scratch)} is not what its marker says (sha256 differs): remove "
            f"{root.url('_work')} and run the same command again"
        )
    return pq.read_table(BytesIO(scratch), use_threads=False)


def _extend(lists: tuple[list[ObjectRecord], list[str]], more: tuple[list[ObjectRecord], list[str]]) -> None:
    lists[0].extend(more[0])
    lists[1].extend(more[1])


def _starts(root: Root, manifest: Manifest, task: NumberTask, starts: list[Int64]) -> Iterator[tuple[str, bytes]]:
    """The chunks of ``sentence_start`` that begin in this stretch; the last may need sentences of the parts behind it."""
    stretch, size = task.stretch, manifest.sentence_chunk
    starts = starts.copy()
    for part in stretch.after:
        lengths = _scratch(root, part)["n_tokens"].to_numpy().astype(np.int64)
        starts.append(row_starts(sentence_rows(lengths, task.boundaries), part.first_row))
    entries = np.concatenate([*starts, np.array([task.n_rows], np.int64)])  # the last one counts at the corpus' end only
    first = stretch.parts[0].first_sentence if stretch.parts else 0
    for chunk in range(stretch.first_chunk, stretch.stop_chunk):
        stop = min((chunk + 1) * size, task.n_sentences + 1)
        yield zarr_form.encode_sentence_chunk(manifest, chunk, entries[chunk * size - first : stop - first])


def id_runs(n_sentences: int) -> int:
    """Runs of id tables that are merged apart: as many as there are tables, at most 256."""
    return min(1 << layout.id_bits(n_sentences), ID_RUNS)


def _put_hashes(root: Root, task: NumberTask, hashes: npt.NDArray[np.uint64]) -> None:
    """Hashes of ids [n, 3] (high, low, sentence), a file for each run of id tables; also where it is empty."""
    runs = id_runs(task.n_sentences)
    run_of = ids.tables_of(hashes[:, 0], runs.bit_length() - 1)
    for run in range(runs):
        root.put(id_hashes(run, task.stretch.number), hashes[run_of == run].astype("<u8").tobytes())


def number_table(scratch: pa.Table, part: PartPlan, boundaries: bool) -> pa.Table:
    """The final columns of one scratch table."""
    n_tokens = scratch["n_tokens"].to_numpy().astype(np.int64)
    position = scratch["position"].to_numpy().astype(np.int64) + part.counts.position_offset
    rows = sentence_rows(n_tokens, boundaries)
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
    ).cast(layout.SENTENCES_SCHEMA)


def _ids(scratch: pa.Table, position: Any, ordinal_offset: int) -> Iterator[str]:
    columns = (scratch[name].to_pylist() for name in ("id", "source", "ordinal", "within"))
    for own, source, ordinal, within, place in zip(*columns, position.tolist(), strict=True):
        yield sentence_id(own, source, place if ordinal < 0 else ordinal + ordinal_offset, within)


def sentence_id(own: str, source: str, place: int, within: int) -> str:
    """The record's own id, otherwise where it stands, ``FILE:PLACE``; then ``:WITHIN``, its sentence, where that is not -1."""
    record = own or f"{source.rpartition('/')[2]}:{place}"
    return record if within < 0 else f"{record}:{within}"


def number_rejects(scratch: bytes, part: PartPlan) -> bytes:
    """Rejects with global sentence numbers and positions; ``scratch`` has one JSON object a line."""
    lines = []
    for line in scratch.decode().split("\n")[:-1]:  # splitlines would also split at U+2028
        reject = json.loads(line)
        local = reject.pop("sentence")
        reject["position"] += part.counts.position_offset
        ordinal, within = reject.pop("ordinal"), reject.pop("within")
        place = reject["position"] if ordinal < 0 else ordinal + part.counts.ordinal_offset
        reject["id"] = sentence_id(reject["id"], reject["source"], place, within)
        reject = {"sentence": part.first_sentence + local, **reject}
        lines.append(json.dumps(reject, ensure_ascii=False) + "\n")
    return "".join(lines).encode()
