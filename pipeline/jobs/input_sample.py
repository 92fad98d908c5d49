"""A sample of a job's input, read before the work: what it comes to, what was inferred about it, what may be wrong with it."""

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from elmo_store.figures.gather import evenly
from elmo_store.format.words import WordLimit
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.signals import say
from pipeline.cli.terminal import in_line, quantity
from pipeline.jobs.embed_input import Input
from pipeline.progress.summary import MAX_CUT_SHARE
from transforms.inputs.decompress import compression_of_name
from transforms.inputs.files import known_format
from transforms.inputs.records import DamagedInputError, InputError, ReadSentence, Split, file_name
from transforms.readers import open_split

ESTIMATE_BYTES = 1 << 18  # of the text of each split from which an estimate is made
ESTIMATE_SPLITS = 16  # shared by the kinds of files of the input
FEWEST_SPLITS = 4  # of each kind
LARGEST_SAMPLE_BYTES = 1 << 25  # of a split whose first record is longer than a sample
LOOK_BYTES = 1 << 16  # of the text of each split that is looked at before a job
LOOK_SPLITS = 4
GROUPS_SHOWN, EMPTY_SHOWN = 5, 5
TOKENS_SHOWN, TOKEN_SHOWN = 8, 30  # tokens of a first sentence, and characters of each
# Ten letters in a row of scripts that are written without spaces.
_UNSPLIT = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{10}")
_LOG = logging.getLogger(__name__)


@dataclass
class Sample:
    """What was counted in the beginnings of some splits."""

    counts: Counter[str] = field(default_factory=Counter)
    first: tuple[str, ...] = ()  # the first sentence that has a token
    is_whole: bool = True  # the splits were read to their ends

    def __add__(self, other: "Sample") -> "Sample":
        return Sample(
            self.counts + other.counts,
            self.first or other.first,
            self.is_whole and other.is_whole,
        )


@dataclass(frozen=True)
class Estimate:
    """What the whole input comes to."""

    sample: Sample
    n_tokens: int
    n_nonempty: int  # sentences with a token
    reading_seconds: float  # of one process


def sample_split(source: Input, split: Split, limit: WordLimit, sample_bytes: int) -> Sample:
    """Read about ``sample_bytes`` of the text of a split, or more if its first record is longer.

    Returns counts of: bytes as stored, sentences, those that are nonempty, tokens, rejected records, and words that are cut, or
    are a whole sentence of a script without spaces. InputError for what can't be read.
    """
    sample = Sample()
    counts = sample.counts
    stream, records = open_split(
        split, source.settings, source.storage_options, sample_bytes=sample_bytes
    )
    was_rejected = False
    try:
        for record in records:
            was_rejected = not isinstance(record, ReadSentence)
            counts["sentences"] += 1
            counts["rejected"] += was_rejected
            if isinstance(record, ReadSentence) and record.tokens:
                counts["nonempty"] += 1
                counts["tokens"] += len(record.tokens)
                counts["cut"] += sum(_is_unsplit(token, limit) for token in record.tokens)
                sample.first = sample.first or record.tokens
    except DamagedInputError:
        if not stream.is_cut:
            raise
    if stream.is_cut and was_rejected and split.format != "parquet":
        # The sample ends in the middle of this record. Samples of Parquet are whole rows.
        counts["sentences"] -= 1
        counts["rejected"] -= 1
    if stream.is_cut and not counts["tokens"] and sample_bytes < LARGEST_SAMPLE_BYTES:
        return sample_split(source, split, limit, 8 * sample_bytes)
    counts["bytes"] = stream.bytes_read
    sample.is_whole = not stream.is_cut
    return sample


def _is_unsplit(word: str, limit: WordLimit) -> bool:
    return limit.truncates(word) or _UNSPLIT.search(word) is not None


def estimate(source: Input, limit: WordLimit) -> Estimate:
    """What the input comes to, from a sample of each kind of its files. InputError for what can't be read."""
    splits = source.readable_here()
    kinds: dict[tuple[str, str], list[Split]] = {}
    for split in splits:
        kinds.setdefault((split.format, compression_of_name(split.url)), []).append(split)
    n_sampled = max(FEWEST_SPLITS, ESTIMATE_SPLITS // max(1, len(kinds)))
    whole = Sample()
    n_tokens = n_nonempty = seconds = 0.0
    for own_splits in kinds.values():
        began = time.perf_counter()
        chosen = (own_splits[i] for i in evenly(len(own_splits), n_sampled))
        sample = sum(
            (sample_split(source, split, limit, ESTIMATE_BYTES) for split in chosen), Sample()
        )
        files = {split.url: split.identity.size for split in own_splits}
        n_bytes = sample.counts["bytes"]
        factor = sum(files.values()) / n_bytes if n_bytes else 1.0
        n_tokens += sample.counts["tokens"] * factor
        n_nonempty += sample.counts["nonempty"] * factor
        seconds += (time.perf_counter() - began) * factor
        whole += sample
    return Estimate(whole, round(n_tokens), round(n_nonempty), seconds)


def look_at_input(source: Input, limit: WordLimit, *, quiet: bool, inferred: bool) -> None:
    """Read a little of the input, and say what a user should know before the work.

    Args:
        source: The input.
        limit: What the model reads of a word.
        quiet: Say only what is probably wrong.
        inferred: The formats of the files were not said by the user.

    Raises:
        CommandError: No file has a sentence, as far as that can be seen from here.
    """
    _check_sizes(source)
    if inferred and not quiet:
        say_inferred(source)
    splits = source.readable_here()
    sample = Sample(is_whole=len(splits) <= LOOK_SPLITS)
    try:
        for i in evenly(len(splits), LOOK_SPLITS):
            sample += sample_split(source, splits[i], limit, LOOK_BYTES)
    except InputError:  # the job looks at all files, and names each that is damaged
        return
    counts = sample.counts
    if sample.is_whole and not counts["sentences"]:
        raise CommandError(Exit.BAD_LOCATION, no_sentence(source))
    if counts["cut"] > MAX_CUT_SHARE * counts["tokens"]:
        _LOG.warning(
            "%s: %.0f%% of the first words are longer than the %s that the model reads, or have no space where a sentence has "
            "some: the text probably has no spaces between words. Split it into words first, and use --input-format lines",
            _names(source),
            100 * counts["cut"] / counts["tokens"],
            limit,
        )


def no_sentence(source: Input) -> str:
    """The message that there is nothing to embed."""
    return f"{_names(source)}: no input file has a sentence, so there is nothing to embed: check the input"


def _check_sizes(source: Input) -> None:
    """Warn of empty files. CommandError if all files are empty."""
    sizes = {split.url: split.identity.size for split in source.splits}
    empty = [url for url, size in sizes.items() if not size]
    if empty and len(empty) == len(sizes):
        if source.stdin is not None:
            raise CommandError(Exit.BAD_LOCATION, "standard input is empty: nothing to embed")
        raise CommandError(Exit.BAD_LOCATION, no_sentence(source))
    if empty:
        verb = "is" if len(empty) == 1 else "are"
        counted = f"{len(empty):,} of {quantity(len(sizes), 'input file')} {verb} empty"
        _LOG.warning("%s: %s", counted, in_line(", ".join(empty[:EMPTY_SHOWN])))


def _names(source: Input) -> str:
    """The first file of the input, and how many others there are."""
    if source.stdin is not None:
        return "standard input"
    urls = list(dict.fromkeys(split.url for split in source.splits))
    others = f" and {quantity(len(urls) - 1, 'other file')}" if len(urls) > 1 else ""
    return in_line(f"{urls[0]}{others}")


def say_inferred(source: Input) -> None:
    """Say as which format files are read whose names don't say it, with the first tokens of one of each kind."""
    kinds = _inferred_kinds(source.splits)
    if not kinds:
        return
    lines = ["The names of these files do not say their format (change it with --input-format):"]
    for (pattern, input_format), files in list(kinds.items())[:GROUPS_SHOWN]:
        what = {"lines": "a tokenised sentence per line", "text": "running text"}[input_format]
        lines.append(
            f"  {quantity(len(files), 'file')} {pattern}: read as {what} ({input_format}); "
            f"{file_name(files[0].url)} begins: {_first_tokens(source, files[0])}"
        )
    if len(kinds) > GROUPS_SHOWN:
        lines.append(f"  and {quantity(len(kinds) - GROUPS_SHOWN, 'other kind')} of names")
    say("\n".join(map(in_line, lines)))


def _inferred_kinds(splits: Sequence[Split]) -> dict[tuple[str, str], list[Split]]:
    """Files whose names don't say their format, by the pattern of the name and the format."""
    kinds: dict[tuple[str, str], list[Split]] = {}
    for split in {split.url: split for split in reversed(splits)}.values():
        named = known_format(split.url)
        if not named or (named == "text" and split.format == "lines"):
            kinds.setdefault((_pattern(split), split.format), []).insert(0, split)
    return dict(reversed(kinds.items()))


def _pattern(split: Split) -> str:
    """A glob for names with the ending of a split's, with an asterisk for each number: those of a series count as one."""
    if split.piped:
        return "(standard input)"
    name = file_name(split.url)
    stem, compressed = os.path.splitext(name) if compression_of_name(name) else (name, "")
    ending = os.path.splitext(stem)[1]
    return (
        "*" + re.sub(r"\d+", "*", ending) + compressed
        if ending
        else f"without an ending{compressed}"
    )


def _first_tokens(source: Input, split: Split) -> str:
    """The first tokens of a file, between bars; what is wrong with it otherwise."""
    own = split if source.stdin is None else source.stdin
    try:
        tokens = sample_split(source, own, WordLimit(), LOOK_BYTES).first
    except InputError as error:
        return error.reason
    if not tokens:
        return "no token"
    shown = [
        token if len(token) <= TOKEN_SHOWN else f"{token[:TOKEN_SHOWN]}…"
        for token in tokens[:TOKENS_SHOWN]
    ]
    return " | ".join([*shown, *(["…"] if len(tokens) > TOKENS_SHOWN else [])])
