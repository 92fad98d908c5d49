"""An ``embed`` job from options to a finished store: validate at the door, put the job's start into the store, run the pipeline.

The door: inputs exist, the output can be written, the model loads, and what stands at the output is this very job, nothing, or
(with ``--overwrite``) a store of ours.
"""

import logging
import math
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from elmo_store.errors import OverlapError, StoreError
from elmo_store.format.inputs import encode_inputs
from elmo_store.format.layout import INPUTS, START_STATE
from elmo_store.format.manifest import InputInfo, Manifest, ModelInfo, StartStateInfo, write_manifest
from elmo_store.format.markers import marked_shards
from elmo_store.storage.location import Location, check_outside
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from model.errors import ModelError
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.start_state import StartState
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.dry_run import check_size, chosen_states
from pipeline.jobs.embed_corpus import JobSettings
from pipeline.jobs.embed_input import STDIN, Input
from pipeline.jobs.lease_holder import LeaseHolder
from pipeline.jobs.model_loading import LoadingModel
from pipeline.jobs.options import EmbedOptions
from pipeline.jobs.output import clear, is_same_job, reach, standing
from pipeline.jobs.software import versions
from pipeline.runners.beam_options import ENGINES, is_local, n_local_processes, runner_name
from pipeline.runners.machine import cores, memory_limit
from pipeline.runners.preflight import check_reach, left_behind
from pipeline.runners.workers import workers_of
from transforms.inputs.records import ReadSettings, Split, describe_files, input_fingerprint
from transforms.runtime.job_root import JobRoot
from transforms.runtime.work import BAD, DEVICE, MODEL, PLAN, PROBLEM, PROGRESS, START
from transforms.stages.embed import EmbedSettings, build_ahead
from transforms.stages.plan import shards_per_call
from transforms.stages.shard_worker import engine_dtype
from transforms.stages.split import read_tasks
from transforms.stages.unpack import write_tasks
from transforms.text.tokenizers import describe

_LOG = logging.getLogger(__name__)

CPU_SHARDS_PER_TASK = 32
CUDA_SHARDS_PER_TASK = 128
# Rows of one call of the engine: 128 lanes were 92% full with 16,384 rows of real text and 99% with 65,536; a GPU has
# thousands of lanes. The states of two calls exist at once: one is computed, one written.
CPU_ROWS_AT_ONCE, CPU_BYTES_AT_ONCE = 65_536, 256 << 20
CUDA_ROWS_AT_ONCE, CUDA_BYTES_AT_ONCE = 1 << 20, 4 << 30
CUDA_WRITERS = 8
BYTES_FOR_PROCESSES = 8 << 20  # a few seconds of reading, as long as processes take to start
READER_BYTES = 256 << 20  # of a process that reads and tokenises: 227 MB were measured
LIBRARY_BYTES = 2 << 30  # Python, Beam, PyTorch, the engine's tables of words


@dataclass(frozen=True)
class EmbedJob:
    """A job that passed the door. ``settings`` and ``holder`` are None if its store is complete already."""

    options: EmbedOptions
    root: Root
    manifest: Manifest
    settings: JobSettings | None
    n_files: int
    holder: LeaseHolder | None = None


def open_job(options: EmbedOptions, pipeline_options: PipelineOptions, loading: LoadingModel | None = None) -> EmbedJob:
    """Check everything that can be checked before the work, and put the job's start into the store.

    ``loading`` is the job's model where its loading began earlier.
    CommandError for what the user can mend; JobMismatchError (a StoreError) if another job stands on the output.
    """
    loading = loading or LoadingModel(options.model, options.start_state)
    root = Root(options.output, options.storage_options)
    places = [("output", options.output), *(("input", one) for one in options.inputs if one != STDIN)]
    check_reach(pipeline_options, places, shared_disk=options.shared_disk)
    opened = [(options.output, options.storage_options), *((one, options.input_storage_options) for one in options.inputs)]
    if names := left_behind(pipeline_options, opened, os.environ):
        _LOG.warning(
            "%s is set here and does not travel: give the workers a role or the variable, or --storage-options", ", ".join(names)
        )
    reach(root, "output")
    given = Input(options)
    read, splits = given.settings, given.splits
    _check_inputs_outside(options, given)
    name, weights, start = loading.result()
    device = resolve_device(options.device, is_local(pipeline_options))
    options = replace(options, precision=resolve_precision(options.precision, device))
    manifest = new_manifest(options, read, splits, name, weights, device, resolve_cell(device))

    def same_job_there() -> Manifest | None:
        there = standing(root, overwrite=options.overwrite)
        same = there is not None and is_same_job(root, there, manifest, describe_files(splits))
        return there if same else None

    there = same_job_there()
    if there is not None and there.complete:
        return EmbedJob(options, root, replace(manifest, counts=there.counts, complete=True), None, manifest.input.files)
    local = is_local(pipeline_options)
    holder = LeaseHolder.begin(root, uuid.uuid4().hex, local=local, waits=not options.no_wait, take_over=options.take_over)
    try:
        there = same_job_there()  # another run may just have ended
        if there is not None and there.complete:
            holder.end()
            return EmbedJob(options, root, replace(manifest, counts=there.counts, complete=True), None, manifest.input.files)
        if there is None:
            clear(JobRoot(root, holder.run))
        settings = _begin(options, holder, manifest, there, given, pipeline_options, weights, start)
    except BaseException:
        holder.end()
        raise
    return EmbedJob(options, root, manifest, settings, manifest.input.files, holder)


def _check_inputs_outside(options: EmbedOptions, given: Input) -> None:
    """CommandError (bad usage) for a file of the input that lies in the output, which a link in a folder may hide."""
    output = Location("output", options.output, options.storage_options)
    urls = () if STDIN in options.inputs else (split.url for split in given.splits)
    try:
        check_outside(output, "input", urls, options.input_storage_options)
    except OverlapError as error:
        raise CommandError(Exit.BAD_USAGE, str(error)) from error


def _begin(
    options: EmbedOptions,
    holder: LeaseHolder,
    manifest: Manifest,
    there: Manifest | None,
    given: Input,
    pipeline_options: PipelineOptions,
    weights: BiLMWeights,
    start: StartState,
) -> JobSettings:
    """Put the start of a job whose lease is held into the store. ``there``: the manifest of its earlier run."""
    root = JobRoot(holder.root, holder.run)
    if there is None:
        row_bytes = len(manifest.states) * manifest.channels * np.dtype(manifest.dtype).itemsize * len(manifest.forms)
        check_size(options, given, root, row_bytes)
    else:
        manifest = replace(manifest, counts=there.counts, start_state=there.start_state)
    local = is_local(pipeline_options)
    state = start if there is None else _start_state_there(root, manifest) or start
    manifest = replace(manifest, start_state=StartStateInfo(state.kind, state.sha256))
    _put_start(root, holder.run, manifest, state, None if local else weights, given, waits=not options.no_wait)
    weight_bytes = sum(tensor.nbytes for tensor in weights.tensors.values())
    workers_root = JobRoot(root, holder.run, Process.here() if local else None)
    settings = job_settings(options, workers_root, manifest, given, pipeline_options, weight_bytes)
    settings = replace(settings, resumed=there is not None)
    if local and n_local_processes(pipeline_options) == 1:
        build_ahead(settings.embed, weights, state)
    return settings


def job_settings(
    options: EmbedOptions,
    root: JobRoot,
    manifest: Manifest,
    given: Input,
    pipeline_options: PipelineOptions,
    weight_bytes: int,
) -> JobSettings:
    """What the workers are told. A GPU gets larger calls: thousands of lanes, and more threads to write what it computes."""
    device = resolve_device(options.device, is_local(pipeline_options))
    cuda = device == "cuda"
    workers = workers_of(pipeline_options)
    n_states = BiLMOptions.from_dict(manifest.model.options).n_states  # the engine gives all, also where the store keeps a few
    row_bytes = n_states * manifest.channels * np.dtype(engine_dtype(manifest.dtype)).itemsize
    embed = EmbedSettings(
        root=root,
        run_id=root.run,
        fingerprint=manifest.model.fingerprint,
        start_sha256=manifest.start_state.sha256,
        engine={
            "precision": options.precision,
            "device": device,
            "cell": manifest.job["cell"],
            "lanes": options.lanes,
            "threads": options.threads or workers.threads,
        },
        shards_at_once=shards_per_call(
            options.shard_rows,
            row_bytes,
            most_rows=CPU_ROWS_AT_ONCE,
            most_bytes=CPU_BYTES_AT_ONCE,
            most=CPU_SHARDS_PER_TASK,
        ),
        cuda_shards_at_once=shards_per_call(
            options.shard_rows,
            row_bytes,
            most_rows=CUDA_ROWS_AT_ONCE,
            most_bytes=CUDA_BYTES_AT_ONCE,
            most=CUDA_SHARDS_PER_TASK,
        ),
        cuda_writers=CUDA_WRITERS,
        model=options.model,
    )
    return JobSettings(
        embed=embed,
        read=given.settings,
        input_storage_options=options.input_storage_options,
        most_shards_per_task=CUDA_SHARDS_PER_TASK if cuda else CPU_SHARDS_PER_TASK,
        workers=workers.n,
        device=device,
        hints=resource_hints(pipeline_options, weight_bytes, options.accelerator if cuda else None),
        max_reject_rate=options.max_reject_rate,
        unpack=given.has_streams,
        read_processes=read_processes(given.splits, weight_bytes, CUDA_BYTES_AT_ONCE if cuda else CPU_BYTES_AT_ONCE)
        if is_local(pipeline_options) and workers.n == 1
        else 1,
    )


def read_processes(splits: Sequence[Split], weight_bytes: int, call_bytes: int) -> int:
    """Processes that read and tokenise on this machine: as many as a container's limits allow beside the one that computes.

    One where starting more takes longer than the work.
    """
    sizes = {split.url: split.identity.size for split in splits}
    if sum(sizes.values()) < BYTES_FOR_PROCESSES:
        return 1
    memory = memory_limit()
    fitting = cores() if memory is None else (memory - worker_bytes(weight_bytes, call_bytes)) // READER_BYTES
    return max(1, min(cores(), fitting))


def resource_hints(options: PipelineOptions, weight_bytes: int, accelerator: str | None) -> dict[str, str]:
    """Beam's resource hints for the stage that embeds, empty for runners that don't read them.

    There they would do harm: a stage with hints has an environment of its own, so a second worker process on every machine.
    """
    if is_local(options) or runner_name(options) in ENGINES:
        return {}
    ram = {"min_ram": f"{worker_gb(weight_bytes, CUDA_BYTES_AT_ONCE if accelerator else CPU_BYTES_AT_ONCE)}GB"}
    return ram | ({"accelerator": accelerator} if accelerator else {})


def worker_gb(weight_bytes: int, call_bytes: int) -> int:
    """Memory that a worker process is asked for, GB.

    The full-size model took 2.6 GiB at its peak on a CPU (docs/development/performance.md), of which this makes 4 GB.
    """
    return math.ceil(worker_bytes(weight_bytes, call_bytes) / 1e9)


def worker_bytes(weight_bytes: int, call_bytes: int) -> int:
    """Memory of a worker process: the libraries and tables, the weights as loaded and as packed, two calls."""
    return LIBRARY_BYTES + 3 * weight_bytes + 2 * call_bytes


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


def new_manifest(
    options: EmbedOptions, read: ReadSettings, splits: Sequence[Split], name: str, weights: BiLMWeights, device: str, cell: str
) -> Manifest:
    """The manifest of a job that begins: incomplete, without counts, its start state not known yet."""
    formats = sorted({split.format for split in splits})
    tokenizer = ", ".join(dict.fromkeys(describe(read.tokenizer, form, split_sentences=read.split_sentences) for form in formats))
    states = chosen_states(options, weights.options)
    fields: dict[str, Any] = {
        "model": weights.fingerprint,
        "start_state": options.start_state,
        "input": input_fingerprint(splits),
        "input_format": options.input_format,
        "text_field": read.text_field,
        "id_field": read.id_field,
        "tokenizer": tokenizer,
        "document": read.document,
        "split_sentences": read.split_sentences,
        "line_ends": read.line_ends,
        "max_sentence_tokens": read.max_sentence_tokens,
        "encoding": read.encoding,
        "max_sentences": read.max_sentences,
        "sample": read.sample,
        "states": ",".join(states),
        "on_bad_file": read.on_bad_file,
        "dtype": options.dtype,
        "precision": options.precision,
        "device": device,
        "lanes": options.lanes,
        "cell": cell,
        "boundaries": options.boundaries,
        "shard_rows": options.shard_rows,
        "store": options.store,
        "compression": options.compression,
        "checksum": options.checksum,
    }
    return Manifest(
        kind="states",
        complete=False,
        model=ModelInfo(name, weights.fingerprint, weights.options.to_dict()),
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
        input=InputInfo(input_fingerprint(splits), len(describe_files(splits))),
        job=fields,
        software=versions(),
    )


def _put_start(
    root: Root, run: str, manifest: Manifest, state: StartState, weights: BiLMWeights | None, given: Input, *, waits: bool
) -> None:
    """Put manifest, start state, weights and list of splits. Weights are None where workers find them on this machine."""
    try:
        # Counts are the plan's to write; a job that goes on keeps those it had.
        write_manifest(root, manifest)
        root.put(START_STATE, state.to_bytes())
        if weights is not None and root.size(MODEL) is None:
            root.put(MODEL, weights.to_safetensors())
        root.put(INPUTS, encode_inputs(describe_files(given.splits)))
        tasks = list(read_tasks(given.splits))
        write_tasks(root, tasks)
        given.put_stdin(root, tasks)
        for folder in (PROGRESS, BAD):
            root.remove_tree(folder)
        for name in (PLAN, PROBLEM):  # of an earlier run
            root.remove(name)
        if manifest.job["device"] != "cpu" and not marked_shards(root):  # nothing is bound to what a worker said it has
            root.remove(DEVICE)
        n_bytes = sum({split.url: split.identity.size for split in given.splits}.values())
        root.put_json(START, {"run": run, "started": time.time(), "n_pieces": len(tasks), "n_bytes": n_bytes, "waits": waits})
    except (OSError, StoreError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"the output {root} can't be written: {error}") from error


def _start_state_there(root: Root, manifest: Manifest) -> StartState | None:
    """The start state of the earlier run, None if it is missing or not the manifest's."""
    try:
        state = StartState.from_bytes(root.get(START_STATE))
    except (FileNotFoundError, ModelError):
        return None
    return state if state.sha256 == manifest.start_state.sha256 else None
