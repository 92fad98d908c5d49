"""Size before work: what a job will hold and take, from a sample of its input or all of it; whether there is room for it.

Pure but for reading the sample, the clock, and the question for free space.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elmo_store.figures.text import NO_SCRIPT, script_of
from elmo_store.storage.root import Root
from pipeline.cli.quantities import duration, human_bytes
from pipeline.cli.terminal import in_line
from transforms.inputs.records import ReadSettings, Record, Sentence, Split
from transforms.readers import open_split

SAMPLED_SPLITS = 16
SAMPLED_BYTES = 1 << 18  # of the stored bytes of each of them
SAMPLED_RECORDS = 5_000  # of each
OVERHEAD = 1.02  # of a store: metadata, markers, sentences' table
SCRIPTS_OF_LANGUAGE = {
    **dict.fromkeys(("English", "Portuguese", "German", "French", "Spanish", "Italian", "Dutch", "Catalan"), ("Latin",)),
    **dict.fromkeys(("Russian", "Ukrainian", "Bulgarian"), ("Cyrillic",)),
    "Greek": ("Greek",),
    "Arabic": ("Arabic",),
    "Hebrew": ("Hebrew",),
    "Chinese": ("Cjk",),
    "Japanese": ("Cjk", "Hiragana", "Katakana"),
    "Korean": ("Hangul", "Cjk"),
}


@dataclass(frozen=True)
class Sample:
    """What was read of an input: ``bytes`` of it (as stored), and what stood in them."""

    bytes: int
    n_sentences: int
    n_tokens: int
    n_rejected: int
    seconds: float
    scripts: Mapping[str, int]  # of tokens with letters
    exact: bool  # it is the whole input


@dataclass(frozen=True)
class Estimate:
    """A job before it is run. Seconds are None where no rate is known."""

    n_tokens: int
    n_shards: int
    store_bytes: int
    seconds_reading: float | None
    seconds_computing: float | None
    cost: float | None  # in the unit of the price


def spread(splits: Sequence[Split], most: int) -> list[Split]:
    """At most ``most`` of ``splits``, evenly spread, the first and the last among them."""
    if len(splits) <= most:
        return list(splits)
    return [splits[round(i * (len(splits) - 1) / (most - 1))] for i in range(most)]


def take_sample(
    splits: Sequence[Split], settings: ReadSettings, storage_options: Mapping[str, Any] | None, *, exact: bool = False
) -> Sample:
    """Read the beginnings of splits from all over the input, or (``exact``) all of it, in this process.

    InputError for what can't be read.
    """
    began = time.perf_counter()
    totals = Counter[str]()
    scripts = Counter[str]()
    for split in splits if exact else spread(splits, SAMPLED_SPLITS):
        source, records = open_split(split, settings, storage_options)
        for number, record in enumerate(records, 1):
            totals["sentences"] += 1
            if isinstance(record, Sentence):
                totals["tokens"] += len(record.tokens)
                scripts.update(script for script in map(script_of, record.tokens) if script != NO_SCRIPT)
            else:
                totals["rejected"] += 1
            if not exact and (number >= SAMPLED_RECORDS or source.bytes_read >= SAMPLED_BYTES):
                break
        totals["bytes"] += source.bytes_read
    return Sample(
        totals["bytes"], totals["sentences"], totals["tokens"], totals["rejected"], time.perf_counter() - began, scripts, exact
    )


def estimate(
    sample: Sample,
    input_bytes: int,
    *,
    row_bytes: int,
    shard_rows: int,
    boundaries: bool,
    workers: int,
    tokens_per_second: float | None = None,
    price_per_hour: float | None = None,
) -> Estimate:
    """What a job on ``input_bytes`` bytes (as stored) comes to.

    ``row_bytes``: of a token in the store; ``tokens_per_second``: of one worker, computing; ``price_per_hour``: of one worker.
    """
    factor = 1.0 if sample.exact or not sample.bytes else input_bytes / sample.bytes
    n_tokens = round(sample.n_tokens * factor)
    n_rows = n_tokens + (2 * round((sample.n_sentences - sample.n_rejected) * factor) if boundaries else 0)
    reading = sample.seconds * factor / workers
    computing = n_tokens / (tokens_per_second * workers) if tokens_per_second else None
    cost = None if price_per_hour is None or computing is None else price_per_hour * workers * (reading + computing) / 3600
    return Estimate(n_tokens, -(-n_rows // shard_rows), round(n_rows * row_bytes * OVERHEAD), reading, computing, cost)


def lines_of(found: Estimate, sample: Sample, root: Root | None, workers: int) -> Iterator[str]:
    """What a dry run prints."""
    about = "" if sample.exact else "about "
    of = "all of the input" if sample.exact else f"a sample of {human_bytes(sample.bytes)}"
    yield f"from {of}: {sample.n_sentences:,} sentences, {sample.n_tokens:,} tokens, {sample.n_rejected:,} records refused"
    yield f"  tokens    {about}{found.n_tokens:,}"
    yield f"  shards    {about}{found.n_shards:,}"
    yield f"  store     {about}{human_bytes(found.store_bytes)}"
    free = root.free_bytes() if root is not None else None
    if free is not None:
        yield f"  free      {human_bytes(free)}" + (" (NOT ENOUGH)" if free < found.store_bytes else "")
    if found.seconds_reading is not None:
        yield f"  reading   about {duration(found.seconds_reading)} with {workers} worker(s)"
    if found.seconds_computing is not None:
        yield f"  computing about {duration(found.seconds_computing)} with {workers} worker(s)"
    if found.cost is not None:
        yield f"  cost      about {found.cost:,.2f} at the price given for an hour of a worker"


def foreign_share(scripts: Mapping[str, int], known: Iterable[str]) -> tuple[float, str]:
    """Share of tokens in scripts that are not ``known``, and the commonest of those scripts ("" without any)."""
    total = sum(scripts.values())
    foreign = {script: n for script, n in scripts.items() if script not in set(known)}
    if not total or not foreign:
        return 0.0, ""
    return sum(foreign.values()) / total, max(foreign, key=lambda script: foreign[script])


def preview_lines(
    splits: Sequence[Split], names: Sequence[str], settings: ReadSettings, storage_options: Mapping[str, Any] | None, n: int
) -> Iterator[str]:
    """The first ``n`` records as lines: id, then tokens between spaces, or why it was refused. ``names``: of their files."""
    positions: Counter[str] = Counter()
    ordinals: Counter[str] = Counter()
    left = n
    for split, name in zip(splits, names, strict=True):
        source, records = open_split(split, settings, storage_options)
        for record in records:
            if not left:
                return
            left -= 1
            yield f"{in_line(_id(record, name, positions[name], ordinals[name]))}\t{in_line(_shown(record))}"
        positions[name] += source.n_positions
        ordinals[name] += source.n_ordinals


def _id(record: Record, name: str, positions: int, ordinals: int) -> str:
    from transforms.stages.number import sentence_id

    place = record.position + positions if record.ordinal < 0 else record.ordinal + ordinals
    return sentence_id(record.id, name, place, record.within)


def _shown(record: Record) -> str:
    return " ".join(record.tokens) if isinstance(record, Sentence) else f"REFUSED: {record.reason}: {record.raw}"
