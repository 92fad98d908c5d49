"""What ``embed`` does before any work, if asked: show the text as it is read, or what the job will take."""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from elmo_store.format.layout import row_bytes, state_names
from elmo_store.storage.root import Root
from model.files.registry import card_language, load_model, model_options
from model.options import BiLMOptions
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.quantities import human_bytes
from pipeline.jobs.embed_input import Input
from pipeline.jobs.estimate import SCRIPTS_OF_LANGUAGE, estimate, foreign_share, lines_of, preview_lines, take_sample
from pipeline.jobs.options import EmbedOptions
from transforms.inputs.records import DamagedInputError, InputError, Sentence
from transforms.readers import read_split

FOREIGN_SHARE = 0.05  # of the tokens, from which on a warning is given
MEASURED_SECONDS = 3.0
_log = logging.getLogger(__name__)


def preview(options: EmbedOptions) -> Exit:
    """Print the first records, an id and its tokens a line."""
    given = Input(options)
    try:
        names = [split.url for split in given.splits]
        splits, read = given.readable_here(), given.settings
        for line in preview_lines(splits, names, read, options.input_storage_options, options.preview or 0):
            print(line)
    except InputError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    return Exit.COMPLETE


def dry_run(options: EmbedOptions) -> Exit:
    """Print what the job would come to; nothing is written."""
    given = Input(options)
    workers = options.workers or 1
    try:
        sample = take_sample(given.readable_here(), given.settings, options.input_storage_options, exact=options.exact)
    except InputError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    model = model_options(options.model)
    states, channels = len(chosen_states(options, model)), model.projection_dim
    # A rate that is given needs neither the model's weights nor the engine.
    rate = options.tokens_per_second or _measured(options, given) / workers
    found = estimate(
        sample,
        given.n_bytes,
        row_bytes=row_bytes(options.dtype, states, channels) * len(options.forms),
        shard_rows=options.shard_rows,
        boundaries=options.boundaries,
        workers=workers,
        tokens_per_second=rate,
        price_per_hour=options.price_per_hour,
    )
    root = Root(options.output, options.storage_options) if options.output else None
    for line in lines_of(found, sample, root, workers):
        print(line)
    if warning := script_warning(options.model, sample.scripts):
        print(warning, file=sys.stderr)
    return Exit.COMPLETE


def chosen_states(options: EmbedOptions, model: BiLMOptions) -> tuple[str, ...]:
    """The states to keep, in the model's order. CommandError for one that the model does not have."""
    every = state_names(model.n_layers)
    asked = options.named_states or every
    unknown = [name for name in asked if name not in every]
    if unknown:
        raise CommandError(Exit.BAD_USAGE, f"--states {', '.join(unknown)}: the model has {', '.join(every)}")
    return tuple(name for name in every if name in asked)


def check_size(options: EmbedOptions, given: Input, root: Root, row_bytes: int) -> None:
    """Look at a sample of the input before the work: warn of a script that the model was not made for, refuse a full disk.

    CommandError (bad location) if the states can't have room at the output.
    """
    # Words between spaces, a line at a time: a tenth of the time of the job's own tokens, and near enough for both questions.
    splits = [
        msgspec.structs.replace(split, format="lines") if split.format == "text" else split for split in given.readable_here()
    ]
    roughly = replace(given.settings, tokenizer="whitespace", split_sentences=False)
    try:
        sample = take_sample(splits, roughly, options.input_storage_options)
    except DamagedInputError:
        return  # the job looks at all files, and names all that are damaged
    except InputError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    if warning := script_warning(options.model, sample.scripts):
        _log.warning("%s", warning)
    found = estimate(
        sample, given.n_bytes, row_bytes=row_bytes, shard_rows=options.shard_rows, boundaries=options.boundaries, workers=1
    )
    free = root.free_bytes()
    # Half of it: a sample may mislead; the plan, which knows, asks again.
    if free is not None and options.max_sentences is None and free < found.store_bytes // 2:
        raise CommandError(
            Exit.BAD_LOCATION,
            f"the output {root} has {human_bytes(free)} free and the store takes about {human_bytes(found.store_bytes)}: give "
            "another --output, or fewer --states, or --sample",
        )


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


def _measured(options: EmbedOptions, given: Input) -> float:
    """Tokens a second of the engine on this machine, on the input's own text."""
    from model.engine.embedder import Embedder, EngineSettings, SentenceRows
    from model.start_state import StartState
    from pipeline.jobs.embed_job import resolve_device, resolve_precision

    _, weights = load_model(options.model)
    device = resolve_device(options.device, local=True)
    chosen: dict[str, Any] = {"device": device, "precision": resolve_precision(options.precision, device)}
    settings = EngineSettings(**chosen, threads=options.threads, lanes=options.lanes)
    engine = Embedder(weights, StartState.zero(weights.options), settings)
    sentences: list[SentenceRows] = []
    for split in given.readable_here():
        for record in read_split(split, given.settings, options.input_storage_options):
            if isinstance(record, Sentence):
                sentences.append(SentenceRows(record.tokens, 0, len(record.tokens)))
            if len(sentences) >= 4096:
                break
        if len(sentences) >= 4096:
            break
    rate, n = 0.0, 64
    while True:
        some: Sequence[SentenceRows] = sentences[:n]
        tokens = sum(one.stop for one in some)
        began = time.perf_counter()
        engine.embed(some)
        seconds = time.perf_counter() - began
        rate = tokens / seconds if seconds else 0.0
        if seconds > MEASURED_SECONDS / 4 or n >= len(sentences):
            return rate
        n *= 4
