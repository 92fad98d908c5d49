"""What is looked at before an ``embed`` job begins: a row of checks over its options, of which nothing is written.

Each check returns what it found, and raises CommandError for what the user can mend.
"""

import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

import msgspec
from apache_beam.options.pipeline_options import PipelineOptions

from elmo_store.errors import OverlapError
from elmo_store.format.layout import state_names
from elmo_store.format.manifest import InputInfo, Manifest, ModelInfo, StartStateInfo
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import check_outside
from elmo_store.storage.root import Root
from model.options import BiLMOptions
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import human_bytes
from pipeline.jobs.estimate import estimate, script_warning, take_sample
from pipeline.jobs.model_loading import LoadedModel, LoadingModel
from pipeline.jobs.output import reach, versions
from pipeline.jobs.spec import EmbedOptions, unused_options
from pipeline.runners.beam_options import is_local
from pipeline.runners.preflight import check_reach, left_behind
from transforms.inputs.files import find_files
from transforms.inputs.records import (
    DamagedInputError,
    FileIdentity,
    InputError,
    ReadSettings,
    ReadTask,
    Split,
    Stream,
    WholeFile,
    describe_files,
    input_fingerprint,
    split_as,
)
from transforms.stages.split import plan_splits
from transforms.stages.unpack import unpack_local
from transforms.text.tokenizers import describe

_LOG = logging.getLogger(__name__)
STDIN = "-"


@dataclass(frozen=True)
class Checked:
    """What the checks of a job found: all that its start needs.

    Attributes:
        options: with device and precision decided.
        runner: Beam's options.
        manifest: of the job that is asked for, incomplete, without counts.
    """

    options: EmbedOptions
    runner: PipelineOptions
    root: Root
    input: "Input"
    model: LoadedModel
    manifest: Manifest


def preflight(options: EmbedOptions, runner: PipelineOptions, loading: LoadingModel) -> Checked:
    """Everything that can be checked before the output is asked for its job. ``runner``: Beam's options."""
    check_locations(options, runner)
    root = check_output(options)
    source = check_input(options)
    model = loading.result()
    options = decided(options, is_local(runner))
    return Checked(options, runner, root, source, model, new_manifest(options, source, model))


def check_locations(options: EmbedOptions, runner: PipelineOptions) -> None:
    """That the runner's workers reach all locations; warns of credentials that only this machine has."""
    inputs = [url for url in options.inputs if url != STDIN]
    check_reach(runner, [("output", options.output), *(("input", url) for url in inputs)], shared_disk=options.shared_disk)
    opened = [(options.output, options.storage_options), *((url, options.input_storage_options) for url in options.inputs)]
    if names := left_behind(runner, opened, os.environ):
        _LOG.warning(
            "%s is set here and does not travel: give the workers a role or the variable, or --storage-options", ", ".join(names)
        )


def check_output(options: EmbedOptions) -> Root:
    """The output, whose filesystem answers."""
    root = Root(options.output, options.storage_options)
    reach(root, "output")
    return root


def check_input(options: EmbedOptions) -> "Input":
    """The input, of which no file lies in the output: a link in a folder may hide that."""
    source = Input(options)
    output = Location("output", options.output, options.storage_options)
    urls = () if STDIN in options.inputs else (split.url for split in source.splits)
    try:
        check_outside(output, "input", urls, options.input_storage_options)
    except OverlapError as error:
        raise CommandError(Exit.BAD_USAGE, str(error)) from error
    return source


class Input:
    """The splits of a job. What came from standard input is held in a local file until there is a store to put it into."""

    def __init__(self, options: EmbedOptions, stdin: BinaryIO | None = None) -> None:
        """CommandError for an input that can't be read, or an option that no format of it uses."""
        self.settings = ReadSettings(**options.read_settings())
        self._spooled: tempfile._TemporaryFileWrapper[bytes] | None = None
        try:
            if STDIN in options.inputs:
                self.splits: list[Split] = [self._spool(options, stdin or sys.stdin.buffer)]
            else:
                self.splits = plan_splits(
                    options.inputs,
                    options.input_format,
                    self.settings,
                    storage_options=options.input_storage_options,
                    exclude=[options.output] if options.output else [],
                )
        except InputError as error:
            raise CommandError(Exit.BAD_LOCATION, "\n".join(map(str, (error, *error.also)))) from error
        for problem in unused_options(options, (split.format for split in self.splits)):
            raise CommandError(Exit.BAD_USAGE, problem)

    @property
    def n_bytes(self) -> int:
        """Bytes of all its files, as stored."""
        return sum({split.url: split.identity.size for split in self.splits}.values())

    @property
    def has_streams(self) -> bool:
        """Whether some of it must be unpacked before it is read."""
        return any(isinstance(split, Stream) for split in self.splits)

    def readable_here(self) -> Sequence[Split]:
        """The splits as this process can read them at once."""
        whole = [split_as(WholeFile, split) if isinstance(split, Stream) else split for split in self.splits]
        if self._spooled is None:
            return whole
        return [
            msgspec.structs.replace(split, url=self._spooled.name, identity=_identity_here(self._spooled.name)) for split in whole
        ]

    def put_stdin(self, root: Root, tasks: Sequence[ReadTask]) -> None:
        """Put what came from standard input into the store, where workers find it."""
        if self._spooled is not None:
            (task,) = tasks
            unpack_local(self._spooled.name, _identity_here(self._spooled.name), task, root, self.settings)

    def _spool(self, options: EmbedOptions, stdin: BinaryIO) -> Stream:
        if len(options.inputs) > 1:
            raise CommandError(Exit.BAD_USAGE, "- (standard input) stands alone: name files, or pipe all of them in")
        kind = "text" if options.input_format == "auto" else options.input_format
        if kind == "parquet":
            raise CommandError(
                Exit.BAD_USAGE, "Parquet can't be read from standard input, its end comes first: write it to a file"
            )
        self._spooled = tempfile.NamedTemporaryFile(prefix="elmo-store-stdin-")  # noqa: SIM115 (lives as long as the input)
        digest, size = hashlib.sha256(), 0
        while data := stdin.read(1 << 20):
            digest.update(data)
            size += len(data)
            self._spooled.write(data)
        self._spooled.flush()
        return Stream(0, "stdin", kind, FileIdentity(size, f"sha256={digest.hexdigest()}"))


def _identity_here(path: str) -> FileIdentity:
    return find_files([path])[0].identity


def decided(options: EmbedOptions, local: bool) -> EmbedOptions:
    """``options`` with device and precision as far as they can be decided here."""
    device = resolve_device(options.device, local)
    return replace(options, device=device, precision=resolve_precision(options.precision, device))


def resolve_device(asked: str, local: bool) -> str:
    """``auto`` is decided here for workers on this machine; elsewhere each worker decides for itself."""
    if not local or asked == "cpu":
        return asked
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        raise CommandError(Exit.BAD_USAGE, "--device cuda: PyTorch finds no GPU on this machine; take auto or cpu")
    return "cpu"


def resolve_precision(asked: str, device: str) -> str:
    """``auto`` is tf32 on a GPU, and float32 on a CPU and where each worker finds out for itself what it has; says so."""
    if asked != "auto":
        return asked
    chosen = "tf32" if device == "cuda" else "float32"
    faster = {
        "cuda": "bfloat16 is faster on a GPU",
        "cpu": "bfloat16 is up to 1.8 × as fast where a CPU has it",
        "auto": "tf32 and bfloat16 are faster on GPUs, and --device cuda takes tf32",
    }[device]
    _LOG.info("precision %s (device %s); %s: docs/development/performance.md says what it costs", chosen, device, faster)
    return chosen


def resolve_cell(device: str) -> str:
    """What computes the cell on the CPU of every worker: the C one if this installation has it. Last bits differ."""
    if device == "cuda":
        return "auto"
    import torch

    from model.engine.cell import select_cell

    return select_cell(torch.device("cpu")).NAME


def chosen_states(options: EmbedOptions, model: BiLMOptions) -> tuple[str, ...]:
    """The states to keep, in the model's order. CommandError for one that the model does not have."""
    every = state_names(model.n_layers)
    asked = options.named_states or every
    unknown = [name for name in asked if name not in every]
    if unknown:
        raise CommandError(Exit.BAD_USAGE, f"--states {', '.join(unknown)}: the model has {', '.join(every)}")
    return tuple(name for name in every if name in asked)


def new_manifest(options: EmbedOptions, source: Input, model: LoadedModel) -> Manifest:
    """The manifest of a job that begins: incomplete, without counts, its start state not known yet."""
    read, splits, weights = source.settings, source.splits, model.weights
    formats = sorted({split.format for split in splits})
    tokenizer = ", ".join(dict.fromkeys(describe(read.tokenizer, form, split_sentences=read.split_sentences) for form in formats))
    states = chosen_states(options, weights.options)
    job = options.job_fields()
    job |= {name: value for name, value in read.to_dict().items() if name in job}  # the reader's defaults too
    job |= {"model": weights.fingerprint, "input": input_fingerprint(splits), "tokenizer": tokenizer}
    job |= {"states": ",".join(states), "cell": resolve_cell(options.device)}
    return Manifest(
        kind="states",
        complete=False,
        model=ModelInfo(model.name, weights.fingerprint, weights.options.to_dict()),
        tokenizer=tokenizer,
        start_state=StartStateInfo(options.start_state, "0" * 64),
        dtype=options.dtype,
        precision=options.precision,
        boundaries=options.boundaries,
        states=states,
        channels=weights.options.projection_dim,
        shard_rows=options.shard_rows,
        forms=options.forms,
        compression=options.compression,
        checksum=options.checksum,
        counts=None,
        input=InputInfo(job["input"], len(describe_files(splits))),
        job=job,
        software=versions(),
    )


def check_size(checked: Checked) -> None:
    """Look at a sample of the input: warn of a script that the model was not made for, refuse a disk without room.

    CommandError (bad location) if the states can't have room at the output.
    """
    options, source, root = checked.options, checked.input, checked.root
    # Words between spaces, a line at a time: a tenth of the time of the job's own tokens, and near enough for both questions.
    splits = [
        msgspec.structs.replace(split, format="lines") if split.format == "text" else split for split in source.readable_here()
    ]
    roughly = replace(source.settings, tokenizer="whitespace", split_sentences=False)
    try:
        sample = take_sample(splits, roughly, options.input_storage_options)
    except DamagedInputError:
        return  # the job looks at all files, and names all that are damaged
    except InputError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    if warning := script_warning(options.model, sample.scripts):
        _LOG.warning("%s", warning)
    size = estimate(options, sample, source.n_bytes, checked.manifest.row_bytes * len(options.forms)).store_bytes
    free = root.free_bytes()
    # Half of it: a sample may mislead; the plan, which knows, asks again.
    if free is not None and options.max_sentences is None and free < size // 2:
        raise CommandError(
            Exit.BAD_LOCATION,
            f"the output {root} has {human_bytes(free)} free and the store takes about {human_bytes(size)}: give "
            "another --output, or fewer --states, or --sample",
        )
