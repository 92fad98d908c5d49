"""What ``embed`` does instead of a job, if asked: show the text as it is read, or what the job will take."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

from elmo_store.format.layout import row_bytes
from elmo_store.storage.root import Root
from model.files.registry import load_model, model_options
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import duration, human_bytes, in_line
from pipeline.jobs.estimate import Estimate, Sample, estimate, script_warning, take_sample
from pipeline.jobs.preflight import Input, chosen_states, resolve_device, resolve_precision
from pipeline.jobs.spec import EmbedOptions
from transforms.inputs.records import InputError, Record, Sentence
from transforms.readers import open_split, read_split

MEASURED_SECONDS = 3.0
MEASURED_SENTENCES = 4096


def preview(options: EmbedOptions) -> Exit:
    """Print the first records, an id and its tokens a line."""
    try:
        for line in islice(_preview_lines(options, Input(options)), options.preview):
            print(line)
    except InputError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    return Exit.COMPLETE


def dry_run(options: EmbedOptions) -> Exit:
    """Print what the job would come to; nothing is written."""
    source = Input(options)
    try:
        sample = take_sample(source.readable_here(), source.settings, options.input_storage_options, exact=options.exact)
    except InputError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    model = model_options(options.model)
    stored = row_bytes(options.dtype, len(chosen_states(options, model)), model.projection_dim) * len(options.forms)
    # A rate that is given needs neither the model's weights nor the engine.
    rate = options.tokens_per_second or _measured(options, source) / (options.workers or 1)
    for line in _lines(options, sample, estimate(options, sample, source.n_bytes, stored, rate)):
        print(line)
    if warning := script_warning(options.model, sample.scripts):
        print(warning, file=sys.stderr)
    return Exit.COMPLETE


def _preview_lines(options: EmbedOptions, source: Input) -> Iterator[str]:
    """The records as lines: id, then tokens between spaces, or why it was refused."""
    positions: Counter[str] = Counter()
    ordinals: Counter[str] = Counter()
    for split, planned in zip(source.readable_here(), source.splits, strict=True):
        name = planned.url
        stream, records = open_split(split, source.settings, options.input_storage_options)
        for record in records:
            yield f"{in_line(_id(record, name, positions[name], ordinals[name]))}\t{in_line(_shown(record))}"
        positions[name] += stream.n_positions
        ordinals[name] += stream.n_ordinals


def _id(record: Record, name: str, positions: int, ordinals: int) -> str:
    from transforms.stages.number import sentence_id

    position = record.position + positions if record.ordinal < 0 else record.ordinal + ordinals
    return sentence_id(record.id, name, position, record.within)


def _shown(record: Record) -> str:
    return " ".join(record.tokens) if isinstance(record, Sentence) else f"REFUSED: {record.reason}: {record.raw}"


def _lines(options: EmbedOptions, sample: Sample, job: Estimate) -> Iterator[str]:
    """What a dry run prints."""
    about = "" if sample.exact else "about "
    of = "all of the input" if sample.exact else f"a sample of {human_bytes(sample.bytes)}"
    yield f"from {of}: {sample.n_sentences:,} sentences, {sample.n_tokens:,} tokens, {sample.n_rejected:,} records refused"
    yield f"  tokens    {about}{job.n_tokens:,}"
    yield f"  shards    {about}{job.n_shards:,}"
    yield f"  store     {about}{human_bytes(job.store_bytes)}"
    free = Root(options.output, options.storage_options).free_bytes() if options.output else None
    if free is not None:
        yield f"  free      {human_bytes(free)}" + (" (NOT ENOUGH)" if free < job.store_bytes else "")
    workers = f"with {options.workers or 1} worker(s)"
    yield f"  reading   about {duration(job.seconds_reading)} {workers}"
    if job.seconds_computing is not None:
        yield f"  computing about {duration(job.seconds_computing)} {workers}"
    if job.cost is not None:
        yield f"  cost      about {job.cost:,.2f} at the price given for an hour of a worker"


def _measured(options: EmbedOptions, source: Input) -> float:
    """Tokens a second of the engine on this machine, on the input's own text."""
    from model.engine.embedder import Embedder, EngineSettings, SentenceRows
    from model.start_state import StartState

    _, weights = load_model(options.model)
    device = resolve_device(options.device, local=True)
    chosen: dict[str, Any] = {"device": device, "precision": resolve_precision(options.precision, device)}
    settings = EngineSettings(**chosen, threads=options.threads, lanes=options.lanes)
    engine = Embedder(weights, StartState.zero(weights.options), settings)
    records = (
        record
        for split in source.readable_here()
        for record in read_split(split, source.settings, options.input_storage_options)
        if isinstance(record, Sentence)
    )
    sentences = [SentenceRows(record.tokens, 0, len(record.tokens)) for record in islice(records, MEASURED_SENTENCES)]
    n = 64
    while True:
        began = time.perf_counter()
        engine.embed(sentences[:n])
        seconds = time.perf_counter() - began
        if seconds > MEASURED_SECONDS / 4 or n >= len(sentences):
            return sum(sentence.stop for sentence in sentences[:n]) / seconds if seconds else 0.0
        n *= 4
