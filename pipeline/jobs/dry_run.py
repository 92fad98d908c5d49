"""A look before the work: the first records, and what the job will come to, from a sample of its input."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from elmo_store.figures.gather import evenly
from elmo_store.format.layout import row_bytes, state_names
from elmo_store.storage.root import Root
from model.options import BiLMOptions
from pipeline.cli.exit_codes import Exit
from pipeline.cli.terminal import duration, human_bytes, in_line, quantity
from pipeline.jobs.embed_input import Input, opened_input
from pipeline.jobs.model_loading import load
from pipeline.jobs.preflight import chosen_states, decided
from pipeline.jobs.spec import STORES, EmbedOptions
from transforms.inputs.records import ReadSentence
from transforms.readers import open_split

MEASURED_SENTENCES = 256
SAMPLED_SPLITS = 16
SAMPLED_BYTES = 1 << 18  # of the stored bytes of each of them
SAMPLED_RECORDS = 5_000  # of each
SHOWN_RECORDS = 10
OVERHEAD = 1.02  # of a store: metadata, markers, sentences' table


def take_sample(source: Input) -> tuple[Counter[str], float]:
    """Read the beginnings of splits from all over the input, the first and the last among them.

    Returns bytes (as stored), sentences, tokens and rejected records that were read, and the seconds that it took.
    InputError for what can't be read.
    """
    began = time.perf_counter()
    totals = Counter[str]()
    splits = source.readable_here()
    for split in (splits[i] for i in evenly(len(splits), SAMPLED_SPLITS)):
        stream, records = open_split(split, source.settings, source.storage_options)
        for record in islice(records, SAMPLED_RECORDS):
            totals["sentences"] += 1
            totals["tokens"] += len(record.tokens) if isinstance(record, ReadSentence) else 0
            totals["rejected"] += not isinstance(record, ReadSentence)
            if stream.bytes_read >= SAMPLED_BYTES:
                break
        totals["bytes"] += stream.bytes_read
    return totals, time.perf_counter() - began


def _first_lines(source: Input) -> Iterator[str]:
    """The records as lines: id, then tokens between spaces, or why it was refused."""
    from transforms.stages.number import sentence_id

    positions: Counter[str] = Counter()
    ordinals: Counter[str] = Counter()
    for split, planned in zip(source.readable_here(), source.splits, strict=True):
        name = planned.url
        stream, records = open_split(split, source.settings, source.storage_options)
        for record in records:
            position = (
                record.position + positions[name]
                if record.ordinal < 0
                else record.ordinal + ordinals[name]
            )
            shown = (
                " ".join(record.tokens)
                if isinstance(record, ReadSentence)
                else f"REFUSED: {record.reason}: {record.raw}"
            )
            yield f"{in_line(sentence_id(record.id, name, position, record.within))}\t{in_line(shown)}"
        positions[name] += stream.n_positions
        ordinals[name] += stream.n_ordinals


def dry_run(options: EmbedOptions) -> Exit:
    """Print the first records and what the job would come to; nothing is written."""
    model = load(options.model, "zero")
    with opened_input(options) as source:
        for line in islice(_first_lines(source), SHOWN_RECORDS):
            print(line)
        sample, seconds = take_sample(source)
        rate = _measured(options, source) * (options.workers or 1)
    for line in _lines(options, model.weights.options, sample, seconds, source.n_bytes, rate):
        print(line)
    return Exit.COMPLETE


def _lines(
    options: EmbedOptions,
    model: BiLMOptions,
    sample: Counter[str],
    seconds: float,
    input_bytes: int,
    rate: float,
) -> Iterator[str]:
    """What a job on ``input_bytes`` bytes (as stored) comes to, by a sample that took so many seconds to read.

    ``rate``: tokens a second, 0 where none is known.
    """
    factor, workers = (
        input_bytes / sample["bytes"] if sample["bytes"] else 1.0,
        options.workers or 1,
    )
    n_tokens = round(sample["tokens"] * factor)
    n_rows = n_tokens + (
        2 * round((sample["sentences"] - sample["rejected"]) * factor) if options.boundaries else 0
    )
    states = chosen_states(options.states, state_names(model.n_layers), "the model")
    stored = row_bytes(options.dtype, len(states), model.projection_dim) * len(
        STORES[options.store]
    )
    store_bytes = round(n_rows * stored * OVERHEAD)
    refused = f"{quantity(sample['rejected'], 'record')} refused"
    text = f"{quantity(sample['sentences'], 'sentence')}, {quantity(sample['tokens'], 'token')}, {refused}"
    yield f"from a sample of {human_bytes(sample['bytes'])}: {text}"
    yield f"  tokens    about {n_tokens:,}"
    yield f"  shards    about {-(-n_rows // options.shard_rows):,}"
    yield f"  store     about {human_bytes(store_bytes)}"
    free = Root(options.output, options.storage_options).free_bytes() if options.output else None
    if free is not None:
        yield f"  free      {human_bytes(free)}" + (" (NOT ENOUGH)" if free < store_bytes else "")
    yield f"  reading   about {duration(seconds * factor / workers)} with {workers} worker(s)"
    if rate:
        yield f"  computing about {duration(n_tokens / rate)} with {workers} worker(s)"


def _measured(options: EmbedOptions, source: Input) -> float:
    """Tokens a second of the engine on this machine, on the input's own text."""
    from model.engine.loaded import LoadedModel

    here = decided(options)
    engine = {name: getattr(here, name) for name in ("device", "precision", "threads")}
    model = LoadedModel(options.model, "zero", **engine)
    splits = source.readable_here()
    records = chain.from_iterable(
        open_split(split, source.settings, source.storage_options)[1] for split in splits
    )
    sentences = [
        record.tokens
        for record in islice(records, MEASURED_SENTENCES)
        if isinstance(record, ReadSentence)
    ]
    model.embed(sentences[:1], "float32")  # what is packed or compiled at first
    began = time.perf_counter()
    model.embed(sentences, "float32")
    return sum(map(len, sentences)) / (time.perf_counter() - began)
