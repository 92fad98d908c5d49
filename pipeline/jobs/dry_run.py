"""A look before the work: the first records, and what the job will come to, from a sample of its input."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from elmo_store.format.layout import row_bytes, state_names
from elmo_store.format.words import WordLimit
from elmo_store.storage.root import Root
from model.options import BiLMOptions
from pipeline.cli.exit_codes import Exit
from pipeline.cli.terminal import duration, human_bytes, in_line, quantity
from pipeline.jobs.embed_input import Input, opened_input
from pipeline.jobs.input_sample import Estimate, estimate, look_at_input
from pipeline.jobs.model_loading import load
from pipeline.jobs.preflight import chosen_states, decided
from pipeline.jobs.spec import STORES, EmbedOptions
from transforms.inputs.records import ReadSentence
from transforms.readers import open_split

MEASURED_SENTENCES = 256
SHOWN_RECORDS = 10
OVERHEAD = 1.02  # of a store: metadata, markers, sentences' table


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
    model = load(options.model, "zero").weights.options
    limit = WordLimit.of(model.to_dict())
    with opened_input(options) as source:
        look_at_input(source, limit, quiet=options.quiet, inferred=options.input_format == "auto")
        for line in islice(_first_lines(source), SHOWN_RECORDS):
            print(line)
        whole = estimate(source, limit)
        rate = _measured(options, source) * (options.workers or 1)
    for line in _lines(options, model, whole, rate):
        print(line)
    return Exit.COMPLETE


def _lines(
    options: EmbedOptions, model: BiLMOptions, whole: Estimate, rate: float
) -> Iterator[str]:
    """What a job on an input comes to. ``rate``: tokens a second, 0 where none is known."""
    workers = options.workers or 1
    n_tokens, counts = whole.n_tokens, whole.sample.counts
    n_rows = n_tokens + (2 * whole.n_nonempty if options.boundaries else 0)
    states = chosen_states(options.states, state_names(model.n_layers), "the model")
    stored = row_bytes(options.dtype, len(states), model.projection_dim) * len(
        STORES[options.store]
    )
    store_bytes = round(n_rows * stored * OVERHEAD)
    refused = f"{quantity(counts['rejected'], 'record')} refused"
    text = f"{quantity(counts['sentences'], 'sentence')}, {quantity(counts['tokens'], 'token')}, {refused}"
    yield f"from a sample of {human_bytes(counts['bytes'])}: {text}"
    yield f"  tokens    about {n_tokens:,}"
    yield f"  shards    about {-(-n_rows // options.shard_rows):,}"
    yield f"  store     about {human_bytes(store_bytes)}"
    free = Root(options.output, options.storage_options).free_bytes() if options.output else None
    if free is not None:
        yield f"  free      {human_bytes(free)}" + (" (NOT ENOUGH)" if free < store_bytes else "")
    yield f"  reading   about {duration(whole.reading_seconds / workers)} with {quantity(workers, 'worker')}"
    if rate:
        yield f"  computing about {duration(n_tokens / rate)} with {quantity(workers, 'worker')}"


def _measured(options: EmbedOptions, source: Input) -> float:
    """Tokens a second of the engine on this machine, on the input's own text; 0 if its beginning has none."""
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
    if not any(sentences):
        return 0.0
    model.embed(sentences[:1], "float32")  # what is packed or compiled at first
    began = time.perf_counter()
    model.embed(sentences, "float32")
    return sum(map(len, sentences)) / (time.perf_counter() - began)
