"""What is looked at before a job begins: checks that return what they read, of which nothing is written.

Each raises CommandError for what the user can mend.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from apache_beam.options.pipeline_options import PipelineOptions

from elmo_store.collecting import check_collection, member_root, name_of
from elmo_store.errors import StoreError, StoreNotFoundError
from elmo_store.format.layout import state_names
from elmo_store.format.manifest import InputInfo, Manifest, ModelInfo, StartStateInfo, read_manifest
from elmo_store.format.version import check_agrees, newest, numbers
from elmo_store.storage.location import Location
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.embed_input import Input
from pipeline.jobs.model_loading import JobModel, start_state_of
from pipeline.jobs.output import versions
from pipeline.jobs.spec import STORES, EmbedOptions
from pipeline.runners.beam_options import is_local, runner_name
from transforms.inputs.records import describe_files, input_fingerprint
from transforms.stages.known import KnownSource, source_of
from transforms.text.tokenizers import describe

SKIP_VERSION = "skip_version"  # of a job with --skip-known: the version of the collection that it was compared with
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class StorePlace:
    """Where a job's store goes, and what it takes from there."""

    root: Root
    manifest: Manifest  # that it begins with
    model: JobModel  # with the start state of the collection, if there is one
    known: KnownSource | None = None  # what may be copied from the collection
    is_done: bool = False  # the same job wrote the store before


def check_reach(
    options: PipelineOptions, locations: Sequence[Location], *, shared_disk: bool
) -> None:
    """CommandError for a location that the runner's workers can't reach.

    ``shared_disk``: the user says that every worker sees local paths as this machine does.
    """
    if shared_disk or is_local(options):
        return
    for location in locations:
        scheme, separator, _ = location.url.partition("://")
        if not separator or scheme in ("file", "local", "memory"):
            raise CommandError(
                Exit.BAD_LOCATION,
                f"the {location} is a path of this machine, and {runner_name(options)}'s workers run on others: give a URL "
                "that they reach too (gs://…, s3://…), or --shared-disk if every worker has this path mounted",
            )


def decided(options: EmbedOptions, runner: PipelineOptions | None = None) -> EmbedOptions:
    """``options`` with a device, one for all workers of the job, and with a precision; without a runner those of this machine.

    CommandError for a device or a precision that workers on this machine don't have.
    """
    if runner is None or is_local(runner):
        device = device_here(options.device)
        check_precision(options.precision, device)
    elif (
        options.device == "auto"
    ):  # nothing steers an engine's bundles to machines of a kind, and a job's shards come from one
        device, name = "cpu", runner_name(runner)
        _LOG.warning(
            "--device auto takes CPUs on %s, whose machines can't be seen from here: for GPUs give --device cuda",
            name,
        )
    else:
        device = options.device
    chosen = "tf32" if device == "cuda" else "float32"
    return replace(
        options,
        device=device,
        precision=chosen if options.precision == "auto" else options.precision,
    )


def device_here(asked: str) -> str:
    """What workers on this machine compute on. CommandError for a GPU that PyTorch does not find."""
    if asked == "cpu":
        return asked
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        raise CommandError(
            Exit.BAD_USAGE, "--device cuda: PyTorch finds no GPU on this machine; take auto or cpu"
        )
    return "cpu"


def check_precision(asked: str, device: str) -> None:
    """CommandError for int8 where the workers on this machine would refuse it."""
    if asked != "int8":
        return
    from model.engine.products import int8_problem

    if problem := "it is for CPUs" if device == "cuda" else int8_problem():
        raise CommandError(
            Exit.BAD_USAGE,
            f"--precision int8: {problem}; use --precision bfloat16. A job started in int8 resumes on a machine that has "
            "it, or starts again with --overwrite",
        )


def resolve_cell(device: str) -> str:
    """What computes the cell on the CPU of every worker: the C one if this installation has it. Last bits differ."""
    if device == "cuda":
        return "auto"
    import torch

    from model.engine.cell import select_cell

    return select_cell(torch.device("cpu")).NAME


def chosen_states(asked: str | None, every: Sequence[str], where: str) -> tuple[str, ...]:
    """What ``--states`` keeps of ``every`` state, in that order. CommandError for names that ``where`` does not have."""
    names = every if asked is None else [name.strip() for name in asked.split(",")]
    chosen = tuple(name for name in every if name in names)
    if len(chosen) < len(names):
        raise CommandError(
            Exit.BAD_USAGE,
            f"--states {asked}: {where} has {', '.join(every)}: name some of them, each once",
        )
    return chosen


def new_manifest(options: EmbedOptions, source: Input, model: JobModel) -> Manifest:
    """The manifest of a job that begins: incomplete, without counts, its start state not known yet."""
    read, splits, weights = source.settings, source.splits, model.weights
    formats = sorted({split.format for split in splits})
    tokenizer = ", ".join(dict.fromkeys(describe(read, form) for form in formats))
    states = chosen_states(options.states, state_names(weights.options.n_layers), "the model")
    job = options.job_fields()
    job |= {
        name: value for name, value in asdict(read).items() if name in job
    }  # the reader's defaults too
    job["keep_fields"] = (
        job["keep_fields"] or ",".join(field.asked for field in read.fields) or None
    )  # the collection's
    job |= {
        "model": weights.fingerprint,
        "input": input_fingerprint(splits),
        "tokenizer": tokenizer,
    }
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
        forms=STORES[options.store],
        compression=options.compression,
        checksum=options.checksum,
        counts=None,
        input=InputInfo(job["input"], len(describe_files(splits))),
        fields=read.fields,
        job=job,
        software=versions(),
    )


def job_identity(manifest: Manifest) -> str:
    """The name of the member that a job writes: the same job is the same member, so the same command continues."""
    return name_of(
        json.dumps(
            {name: value for name, value in manifest.job.items() if name != SKIP_VERSION},
            sort_keys=True,
        )
    )


def place_of(options: EmbedOptions, root: Root, manifest: Manifest, model: JobModel) -> StorePlace:
    """Where the job of ``manifest`` writes: at ``root``, or as a member of the collection there.

    CommandError if something else stands there, MemberMismatchError, field by field, if the job's store could not be a member.
    """
    if not options.into:
        return StorePlace(root, manifest, model)
    version = newest(root)
    if version is None:
        try:
            check_collection(root)
        except StoreError as error:
            raise CommandError(Exit.REFUSED, str(error)) from error
    identity = job_identity(manifest)
    if version is not None and (added := version.of_source(identity)) is not None:
        return StorePlace(member_root(root, added.name), manifest, model, is_done=True)
    own, known = member_root(root, identity), None
    if version is not None:
        if (version.store.model.fingerprint, version.store.start_state.kind) == (
            manifest.model.fingerprint,
            model.start.kind,
        ):
            first = member_root(root, version.members[0].name)
            model = replace(
                model, start=start_state_of(first)
            )  # other machines may round otherwise
        begun = replace(manifest, start_state=StartStateInfo(model.start.kind, model.start.sha256))
        check_agrees(str(root), version.store, "what is asked for", begun)
        known = source_of(root, version, manifest.job)
    if options.skip_known:
        number = _compared_with(own, root, version.number if version else 0)
        manifest = replace(manifest, job={**manifest.job, SKIP_VERSION: number})
    return StorePlace(own, manifest, model, known)


def _compared_with(own: Root, collection: Root, latest: int) -> int:
    """The version whose sentences are left out of the member at ``own``: the ``latest`` (0: none), of a resumed job the same.

    CommandError if that is gone.
    """
    try:
        began_with = int(read_manifest(own).job.get(SKIP_VERSION, latest) or 0)
    except StoreNotFoundError:
        return latest
    if began_with and began_with not in numbers(collection):
        raise CommandError(
            Exit.REFUSED,
            f"version {began_with} of {collection}, which this job was compared with when it began, is gone: remove {own} and "
            "run the same command again",
        )
    return began_with
