"""An ``embed`` job: its start put into the store once it is checked and the lease is held, and its pipeline.

The pipeline: tasks of the input → scratch parts → plan → (final parts ‖ shards) → complete store. Every stage reads what it needs
from the store and leaves what the next ones need there; between stages travel numbers, tasks (pointers) and counts.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PBegin, PCollection

from elmo_store.errors import ShardCorruptError, ShardMissingError
from elmo_store.format import layout
from elmo_store.format.layout import INPUTS, START_STATE
from elmo_store.format.manifest import Manifest, StartStateInfo, encode_inputs, write_manifest
from elmo_store.format.markers import marked
from elmo_store.format.words import WordLimit
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import check_outside
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from pipeline.cli.locations import reached
from pipeline.jobs.embed_input import STDIN, Input, opened_input
from pipeline.jobs.input_sample import look_at_input
from pipeline.jobs.model_loading import JobModel, loading_model, start_state_of
from pipeline.jobs.output import LeaseTerms, claim, put_start
from pipeline.jobs.preflight import (
    SKIP_VERSION,
    StorePlace,
    check_reach,
    decided,
    new_manifest,
    place_of,
)
from pipeline.jobs.spec import EmbedOptions
from pipeline.runners.beam_options import (
    ENGINES,
    cores,
    ends_with_command,
    is_local,
    n_workers,
    runner_name,
)
from pipeline.runners.flink import address_of
from transforms.inputs.records import describe_files, stored_url
from transforms.runtime.owner import owned
from transforms.runtime.wiring import gathered, spread
from transforms.runtime.work import BAD, DEVICE, MODEL
from transforms.stages.embed import build_engine, embed_shards
from transforms.stages.finish import finish_store, left_to_do
from transforms.stages.job import Job
from transforms.stages.number import merge_ids, number_parts, runs_to_do
from transforms.stages.plan import BEGUN, NUMBER, SHARDS, plan_job, shards_per_call
from transforms.stages.split import listed_tasks, read_tasks, write_tasks
from transforms.stages.tokenise import tokenise_tasks

SHARDS_PER_TASK = 128  # at most; those of a task go to the engine in one call
# Rows of one call of the engine: 128 lanes were 92% full with 16,384 rows of real text and 99% with 65,536; a GPU has
# thousands of lanes. The states of two calls exist at once: one is computed, one written.
CPU_ROWS_AT_ONCE, CPU_BYTES_AT_ONCE = 65_536, 256 << 20
CUDA_ROWS_AT_ONCE, CUDA_BYTES_AT_ONCE = 1 << 20, 4 << 30
CUDA_WRITERS = 8
BYTES_FOR_PROCESSES = 8 << 20  # a few seconds of reading, as long as processes take to start
MOST_READERS = (
    16  # processes that read and tokenise, of 227 MB each: beside the model they fit into 8 GiB
)
LIBRARY_BYTES = 2 << 30  # Python, Beam, PyTorch, the engine's tables of words


class EmbedCorpus(beam.PTransform[PBegin, PCollection[bool]]):
    """The whole job whose start stands in the store at ``job.root``."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def expand(self, begin: PBegin) -> PCollection[bool]:
        """Wire the stages; every `Spread` within them is where work spreads over workers."""
        job = self._job
        root = job.root
        tasks = begin | beam.Impulse() | "List tasks" >> beam.FlatMap(lambda _: listed_tasks(root))
        read = tasks | "Text" >> tokenise_tasks(
            root, job.read, job.input_storage_options, processes=job.read_processes
        )
        settings = (
            root,
            job.read,
            job.shards_per_call,
            job.workers,
            job.resumed,
            job.max_reject_rate,
        )
        planned = read | "Plan" >> gathered(plan_job, *settings, outputs=(NUMBER, SHARDS, BEGUN))
        shards = planned[SHARDS]
        if job.resumed:
            shards |= "Done" >> spread(left_to_do, root, job.shards_per_call, flat=True)
        numbered = planned[NUMBER] | "Number" >> spread(number_parts, root)
        embedded = shards | "Shards" >> embed_shards(job)
        indexed = (
            numbered
            | "All numbered" >> gathered(runs_to_do, root)
            | "Ids" >> spread(merge_ids, root)
        )
        outcomes = (planned[BEGUN], numbered, indexed, embedded)
        return outcomes | "All results" >> beam.Flatten() | "Finish" >> finish_store(root)


@dataclass(frozen=True)
class BegunJob:
    """A job whose start stands in its store; ``manifest`` as it began.

    ``job`` and ``holder`` are None if the store is complete already, ``job`` alone if it goes on without the command that
    submitted it.
    """

    root: Root
    manifest: Manifest
    job: Job | None = None
    holder: LeaseHolder | None = None


def begin_job(
    options: EmbedOptions, runner: PipelineOptions, loading: Callable[[], JobModel] | None = None
) -> BegunJob:
    """Check everything that can be checked before the work, take the lease, and put the job's start into the store.

    ``runner``: Beam's options; ``loading``: the job's model where its loading began earlier.
    CommandError for what the user can mend; JobMismatchError (a StoreError) if another job stands on the output.
    """
    loading = loading or loading_model(options.model, options.start_state)
    output = Location("output", options.place, options.storage_options)
    inputs = [
        Location("input", stored_url(url), options.input_storage_options)
        for url in options.inputs
        if url != STDIN
    ]
    check_reach(runner, [output, *inputs], shared_disk=options.shared_disk)
    root = reached(output.url, output.storage_options, "output")
    with opened_input(options) as source:
        urls = () if source.stdin else {stored_url(split.url) for split in source.splits}
        check_outside(
            output, "input", urls, source.storage_options
        )  # a link in a folder may hide that one lies in the output
        place, asked = open_job(options, runner, root, source, loading())
        if place.is_done:
            return BegunJob(place.root, place.manifest)
        look_at_input(
            source,
            asked.read.word_limit,
            quiet=options.quiet,
            inferred=options.input_format == "auto",
        )
        terms = LeaseTerms(
            is_local(runner),
            ends_with_command(runner),
            not options.no_wait,
            options.take_over,
            address_of(runner),
        )
        start = partial(_put_start, place, asked, source, terms)
        files = describe_files(source.splits)
        holder, job = claim(
            place.root, terms, place.manifest, files, start, overwrite=options.overwrite
        )
        return BegunJob(place.root, place.manifest, job, holder)


def open_job(
    options: EmbedOptions, runner: PipelineOptions, root: Root, source: Input, model: JobModel
) -> tuple[StorePlace, Job]:
    """Where a job writes that is asked for, and what its workers get; nothing is written. CommandError as of `begin_job`."""
    options = decided(options, runner)
    place = place_of(options, root, new_manifest(options, source, model), model)
    return place, job_of(options, runner, place, source)


def _put_start(
    place: StorePlace,
    asked: Job,
    source: Input,
    terms: LeaseTerms,
    holder: LeaseHolder,
    earlier: Manifest | None,
) -> Job:
    """Put manifest, start state, weights (where workers don't find them on this machine) and list of tasks.

    ``earlier``: the manifest of an earlier run, which this one resumes. Counts are the plan's to write; it keeps those it had.
    """
    manifest, state = place.manifest, place.model.start
    if earlier is not None:
        manifest = replace(manifest, counts=earlier.counts)
        with suppress(ShardMissingError, ShardCorruptError):
            earlier_state = start_state_of(place.root)
            state = earlier_state if earlier_state.sha256 == earlier.start_state.sha256 else state
    root = owned(place.root, holder.run, Process.here() if terms.local else None)
    job = replace(
        asked, root=root, run_id=holder.run, start_sha256=state.sha256, resumed=earlier is not None
    )
    write_manifest(root, replace(manifest, start_state=StartStateInfo(state.kind, state.sha256)))
    root.put(START_STATE, state.to_bytes())
    if not terms.local and root.size(MODEL) is None:
        root.put(MODEL, place.model.weights.to_safetensors())
    root.put(INPUTS, encode_inputs(describe_files(source.splits)))
    tasks = list(read_tasks(source.splits))
    write_tasks(root, tasks)
    source.put_stdin(root)
    root.remove_tree(BAD)  # of an earlier run
    if job.device != "cpu" and not marked(
        root, layout.SHARDS
    ):  # nothing is bound to what a worker said it has
        root.remove(DEVICE)
    put_start(root, n_pieces=len(tasks), waits=terms.waits)
    if terms.local and job.workers == 1:
        build_engine(job, lambda: (place.model.weights, state))
    return job


def job_of(options: EmbedOptions, runner: PipelineOptions, place: StorePlace, source: Input) -> Job:
    """What the workers get, but for the run and its start state.

    A GPU gets larger calls: thousands of lanes, and more threads to write what it computes.
    """
    cuda, manifest = options.device == "cuda", place.manifest
    call_rows, call_bytes = (
        (CUDA_ROWS_AT_ONCE, CUDA_BYTES_AT_ONCE) if cuda else (CPU_ROWS_AT_ONCE, CPU_BYTES_AT_ONCE)
    )
    workers = n_workers(runner)
    in_one_process = is_local(runner) and workers == 1
    weight_bytes = sum(tensor.nbytes for tensor in place.model.weights.tensors.values())
    share = max(1, cores() // workers) if is_local(runner) and workers > 1 else None
    return Job(
        root=place.root,
        run_id="",
        fingerprint=manifest.model.fingerprint,
        start_sha256="",
        engine={
            "precision": options.precision,
            "device": options.device,
            "cell": manifest.job["cell"],
            "threads": options.threads or share,
        },
        read=replace(
            source.settings,
            word_limit=WordLimit.of(manifest.model.options),
            skip_version=int(manifest.job.get(SKIP_VERSION) or 0),
        ),
        model=options.model,
        device=options.device,
        hints=resource_hints(
            runner, weight_bytes, call_bytes, options.accelerator if cuda else None
        ),
        workers=workers,
        writers=CUDA_WRITERS if cuda else 1,
        shards_per_call=shards_per_call(
            manifest.shard_rows,
            manifest.row_bytes,
            most_rows=call_rows,
            most_bytes=call_bytes,
            most=SHARDS_PER_TASK,
        ),
        known=place.known,
        input_storage_options=source.storage_options,
        read_processes=read_processes(source.n_bytes) if in_one_process else 1,
        max_reject_rate=options.max_reject_rate,
    )


def read_processes(input_bytes: int) -> int:
    """Processes that read and tokenise on this machine: one a core, one where starting more takes longer than the work."""
    return min(cores(), MOST_READERS) if input_bytes >= BYTES_FOR_PROCESSES else 1


def resource_hints(
    options: PipelineOptions, weight_bytes: int, call_bytes: int, accelerator: str | None
) -> dict[str, str]:
    """Beam's resource hints for the stage that embeds, empty for runners that don't read them.

    There they would do harm: a stage with hints has an environment of its own, so a second worker process on every machine.
    """
    if is_local(options) or runner_name(options) in ENGINES:
        return {}
    worker_bytes = (
        LIBRARY_BYTES + 3 * weight_bytes + 2 * call_bytes
    )  # the weights as loaded and as packed, two calls
    hints = {"min_ram": f"{math.ceil(worker_bytes / 1e9)}GB"}
    if accelerator is not None:
        hints["accelerator"] = accelerator
    return hints
