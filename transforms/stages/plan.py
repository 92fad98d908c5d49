"""From counts of scratch parts to final numbers and shard tasks: pure functions over small descriptors, no I/O.

Vocabulary: a *part* is a piece of the tokenised corpus in input order; a *row* is one token of the dense token axis (with
``boundaries``: also one for BOS and one for EOS of every sentence that has tokens); a *shard* is a fixed number of consecutive
rows. A sentence never straddles two parts; it may straddle two shards, and is then computed by both and cut.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from transforms.inputs.records import TaskResult

Int64 = npt.NDArray[np.int64]


class PlanError(ValueError):
    """Counts or settings that no plan can be made of; names the value and the remedy."""


@dataclass(frozen=True)
class PartCounts:
    """What stage A says about one scratch part (counts only; its text stays where it is)."""

    scratch: str  # path of the scratch part, relative to the store
    rejects: str  # path of its scratch rejects, "" without any
    n_sentences: int
    n_tokens: int
    n_nonempty: int  # sentences that have at least one token
    n_rejected: int
    n_words_cut: int
    position_offset: int  # what its local positions lack (the lines of earlier ranges of the same file)
    ordinal_offset: int  # what its local ordinals lack (their paragraphs)
    sha256: str

    def n_rows(self, boundaries: bool) -> int:
        """Rows of the token axis: its tokens, with ``boundaries`` also BOS and EOS of each sentence that has tokens."""
        return self.n_tokens + (2 * self.n_nonempty if boundaries else 0)


@dataclass(frozen=True)
class PartPlan:
    """A part with its final numbers: the work of one number task."""

    part: int
    counts: PartCounts
    first_sentence: int
    first_row: int
    n_rows: int


@dataclass(frozen=True)
class PartSlice:
    """A part that a shard needs: where its tokens stand, and the rows that it spans on the token axis."""

    part: int
    scratch: str
    first_sentence: int
    first_row: int
    n_rows: int


@dataclass(frozen=True)
class ShardTask:
    """Rows ``first_row … first_row + n_rows`` of the token axis, and the parts that hold their sentences. Pointers only."""

    shard: int
    first_row: int
    n_rows: int
    slices: tuple[PartSlice, ...]


@dataclass(frozen=True)
class CorpusPlan:
    """All parts in input order, and the sizes of the whole corpus."""

    parts: tuple[PartPlan, ...]
    n_sentences: int
    n_tokens: int
    n_rows: int
    n_rejected: int
    n_words_cut: int
    shard_rows: int

    @property
    def n_shards(self) -> int:
        """Shards of ``shard_rows`` rows; the last one may be shorter. A corpus without tokens has none."""
        return -(-self.n_rows // self.shard_rows)

    def shard_tasks(self, skip: Collection[int] = ()) -> Iterator[ShardTask]:
        """The shards that are still to do, in order. ``skip``: shards that are done."""
        slices = [PartSlice(p.part, p.counts.scratch, p.first_sentence, p.first_row, p.n_rows) for p in self.parts]
        return shard_tasks(slices, self.n_rows, self.shard_rows, skip)


def shard_tasks(parts: Sequence[PartSlice], n_rows: int, shard_rows: int, skip: Collection[int] = ()) -> Iterator[ShardTask]:
    """The shards of ``n_rows`` rows that lie in ``parts`` (all of them, in input order), but for those in ``skip``."""
    starts = [part.first_row for part in parts]
    for shard in range(-(-n_rows // shard_rows)):
        if shard in skip:
            continue
        first = shard * shard_rows
        stop = min(first + shard_rows, n_rows)
        # Parts without rows share their start with the part after them: bisect_right passes over them.
        index = bisect_right(starts, first) - 1
        slices = []
        while index < len(parts) and parts[index].first_row < stop:
            part = parts[index]
            if part.n_rows and part.first_row + part.n_rows > first:
                slices.append(part)
            index += 1
        yield ShardTask(shard, first, stop - first, tuple(slices))


@dataclass(frozen=True)
class Stretch:
    """Consecutive parts that one worker numbers, with the chunks of ``sentence_start`` that begin among their sentences.

    ``after``: the parts behind them whose first sentences fill up the last of these chunks.
    """

    number: int
    parts: tuple[PartPlan, ...]
    after: tuple[PartPlan, ...]
    first_chunk: int
    stop_chunk: int


STRETCH_SENTENCES, STRETCH_TOKENS, STRETCH_PARTS = 1 << 18, 1 << 22, 512  # a stretch is closed where it reaches one of them


def stretches(parts: Sequence[PartPlan], n_sentences: int, chunk_entries: int) -> list[Stretch]:
    """All parts in order, cut into stretches; there is always one, because ``sentence_start`` always has an entry.

    Args:
        parts: of the whole corpus, in input order.
        n_sentences: of the corpus; ``sentence_start`` has one entry more.
        chunk_entries: entries of a chunk of ``sentence_start``.
    """
    runs: list[list[PartPlan]] = [[]]
    held_sentences = held_tokens = 0
    for part in parts:
        if held_sentences >= STRETCH_SENTENCES or held_tokens >= STRETCH_TOKENS or len(runs[-1]) >= STRETCH_PARTS:
            runs.append([])
            held_sentences = held_tokens = 0
        runs[-1].append(part)
        held_sentences, held_tokens = held_sentences + part.counts.n_sentences, held_tokens + part.counts.n_tokens
    n_chunks = -(-(n_sentences + 1) // chunk_entries)
    found = []
    first_chunk = 0
    for number, run in enumerate(runs):
        stop = run[-1].first_sentence + run[-1].counts.n_sentences if run else 0  # the sentence after its last
        stop_chunk = n_chunks if number == len(runs) - 1 else -(-stop // chunk_entries)
        after = []
        place = run[-1].part + 1 if run else 0
        while stop_chunk > first_chunk and place < len(parts) and parts[place].first_sentence < stop_chunk * chunk_entries:
            after.append(parts[place])
            place += 1
        found.append(Stretch(number, tuple(run), tuple(after), first_chunk, stop_chunk))
        first_chunk = stop_chunk
    return found


def part_counts(results: Iterable[TaskResult]) -> list[PartCounts]:
    """Every scratch part of ``results`` in input order; positions go on from split to split of the same file."""
    counts: list[PartCounts] = []
    positions: dict[str, int] = {}
    ordinals: dict[str, int] = {}
    for result in sorted(results, key=lambda result: (result.task.index, result.task.blob)):
        url = result.task.splits[0].url
        counts += [
            PartCounts(
                scratch=part.path,
                rejects=part.rejects,
                n_sentences=part.n_sentences,
                n_tokens=part.n_tokens,
                n_nonempty=part.n_nonempty,
                n_rejected=part.n_rejected,
                n_words_cut=part.n_words_cut,
                position_offset=positions.get(url, 0),
                ordinal_offset=ordinals.get(url, 0),
                sha256=part.sha256,
            )
            for part in result.parts
        ]
        positions[url] = positions.get(url, 0) + result.n_positions
        ordinals[url] = ordinals.get(url, 0) + result.n_ordinals
    return counts


def make_plan(parts: Sequence[PartCounts], *, shard_rows: int, boundaries: bool) -> CorpusPlan:
    """Number ``parts`` (in input order) by prefix sums. PlanError for a shard size below 1 or a part without sentences."""
    if shard_rows < 1:
        raise PlanError(f"a shard of {shard_rows} rows can't hold anything: give --shard-rows of 1 or more")
    planned: list[PartPlan] = []
    sentence = row = 0
    for number, counts in enumerate(parts):
        if not 0 <= counts.n_nonempty <= counts.n_sentences or counts.n_nonempty > counts.n_tokens:
            raise PlanError(
                f"scratch part {counts.scratch} counts {counts.n_sentences} sentences, {counts.n_nonempty} with tokens, "
                f"{counts.n_tokens} tokens, which can't be: remove the output with --overwrite and run again"
            )
        n_rows = counts.n_rows(boundaries)
        planned.append(PartPlan(number, counts, sentence, row, n_rows))
        sentence += counts.n_sentences
        row += n_rows
    return CorpusPlan(
        parts=tuple(planned),
        n_sentences=sentence,
        n_tokens=sum(counts.n_tokens for counts in parts),
        n_rows=row,
        n_rejected=sum(counts.n_rejected for counts in parts),
        n_words_cut=sum(counts.n_words_cut for counts in parts),
        shard_rows=shard_rows,
    )


def sentence_rows(n_tokens: Int64, boundaries: bool) -> Int64:
    """Rows of each sentence [n]: its tokens, with ``boundaries`` two more, and none at all for a sentence of zero tokens."""
    return np.where(n_tokens > 0, n_tokens + 2, 0) if boundaries else n_tokens


def row_starts(rows: Int64, first_row: int) -> Int64:
    """First row of each sentence [n] of a part whose first row is ``first_row``."""
    return first_row + np.concatenate([np.zeros(1, np.int64), np.cumsum(rows, dtype=np.int64)[:-1]])[: len(rows)]


def cut(rows: Int64, part_first_row: int, first: int, stop: int) -> tuple[Int64, Int64, Int64]:
    """Which sentences of a part fall into rows ``first … stop``, and which of their rows.

    ``rows`` [n]: rows of each sentence of the part. Returns sentence indices within the part, and for each the first
    and the stop of its own rows (counted from 0 in the sentence) that are wanted: three arrays [m], in order, without
    empty ranges.
    """
    starts = row_starts(rows, part_first_row)
    lo = np.maximum(first, starts) - starts
    hi = np.minimum(stop, starts + rows) - starts
    index = np.flatnonzero(lo < hi)
    return index, lo[index], hi[index]


def shards_per_task(n_shards: int, *, most: int, workers: int = 32) -> int:
    """How many shards travel together, at most ``most``: equal shares for so many workers, each in as few tasks as that allows.

    Engines that spread tasks evenly (Flink, Spark) then give each worker the same work, and calls of the engine are full.
    """
    share = max(1, -(-n_shards // max(1, workers)))
    return -(-share // -(-share // most))


def shards_per_call(shard_rows: int, row_bytes: int, *, most_rows: int, most_bytes: int, most: int) -> int:
    """How many shards the engine computes in one call: many rows fill its lanes well, their states must fit in memory."""
    rows = min(most_rows, most_bytes // row_bytes)
    return max(1, min(most, rows // shard_rows))


def grouped(tasks: Iterator[ShardTask], size: int) -> Iterator[list[ShardTask]]:
    """Consecutive tasks in lists of ``size``: the batches that RunInference gets as they are."""
    batch: list[ShardTask] = []
    for task in tasks:
        batch.append(task)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
