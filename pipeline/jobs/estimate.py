"""The size of a job, from a sample of its input or all of it, and whether the model was made for its text.

Pure but for reading the sample and the clock.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elmo_store.figures.text import NO_SCRIPT, script_of
from model.files.registry import card_language
from pipeline.jobs.spec import EmbedOptions
from transforms.inputs.records import ReadSettings, Sentence, Split
from transforms.readers import open_split

SAMPLED_SPLITS = 16
SAMPLED_BYTES = 1 << 18  # of the stored bytes of each of them
SAMPLED_RECORDS = 5_000  # of each
OVERHEAD = 1.02  # of a store: metadata, markers, sentences' table
FOREIGN_SHARE = 0.05  # of the tokens, from which on a warning is given
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
    """A job before it is run. None where no rate is known."""

    n_tokens: int
    n_shards: int
    store_bytes: int
    seconds_reading: float
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
    options: EmbedOptions, sample: Sample, input_bytes: int, row_bytes: int, tokens_per_second: float | None = None
) -> Estimate:
    """What a job on ``input_bytes`` bytes (as stored) comes to.

    ``row_bytes``: of a token in the store; ``tokens_per_second``: of one worker, computing.
    """
    workers = options.workers or 1
    factor = 1.0 if sample.exact or not sample.bytes else input_bytes / sample.bytes
    n_tokens = round(sample.n_tokens * factor)
    n_rows = n_tokens + (2 * round((sample.n_sentences - sample.n_rejected) * factor) if options.boundaries else 0)
    reading = sample.seconds * factor / workers
    computing = n_tokens / (tokens_per_second * workers) if tokens_per_second else None
    price = options.price_per_hour
    cost = None if price is None or computing is None else price * workers * (reading + computing) / 3600
    return Estimate(n_tokens, -(-n_rows // options.shard_rows), round(n_rows * row_bytes * OVERHEAD), reading, computing, cost)


def script_warning(model: str | None, scripts: Mapping[str, int]) -> str:
    """One sentence if many of a sample's tokens are in a script that the model was not made for; "" otherwise."""
    language = card_language(model)
    share, script = foreign_share(scripts, SCRIPTS_OF_LANGUAGE.get(language, ()))
    if language not in SCRIPTS_OF_LANGUAGE or share < FOREIGN_SHARE:
        return ""
    return (
        f"{share:.0%} of the sampled tokens are in another script ({script}) than the model's language, {language}: it "
        "has never seen such words, and their states mean little"
    )


def foreign_share(scripts: Mapping[str, int], known: Iterable[str]) -> tuple[float, str]:
    """Share of tokens in scripts that are not ``known``, and the commonest of those scripts ("" without any)."""
    total = sum(scripts.values())
    foreign = {script: n for script, n in scripts.items() if script not in set(known)}
    if not total or not foreign:
        return 0.0, ""
    return sum(foreign.values()) / total, max(foreign, key=lambda script: foreign[script])
