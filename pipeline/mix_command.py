"""``elmo-store mix STORE --weights FILE --output URL``: learned weights over a store's layers, as a store of its own.

May import every room; torch only where the weights are a torch state dict.
"""

import argparse
import hashlib
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline import locations, report_command
from pipeline.exit_codes import CommandError, Exit
from pipeline.importing import nothing_to_collect
from pipeline.options import COMPRESSIONS, DTYPES, STORES, add_engine_arguments, add_take_over_argument, json_object

if TYPE_CHECKING:
    from elmo_store.manifest import Manifest, WeightSet
    from elmo_store.storage import Root
    from pipeline.tenure import Tenure

TAKES_BEAM_OPTIONS = True
LOADS = "Apache Beam"

EPILOG = """\
WEIGHTS is JSON: {"w": [0.1, 0.5, -0.2], "gamma": 1.0}, where w are logits (softmaxed), or "s" instead of "w" for weights
that are normalised already; several named sets, {"task_in": {…}, "task_out": {…}}, give several columns. Also safetensors
with the same names (NAME.w, NAME.gamma), and torch state dicts (.th, .pt) or safetensors with AllenNLP's
scalar_parameters.0, … and gamma. Layer 0 is [x; x], layer j is [fwd j; bwd j].

Any option of Apache Beam may follow, as for embed. The same command on an unfinished output continues it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``mix``."""
    parser.epilog = f"{EPILOG}\n{parser.epilog or ''}"
    parser.add_argument("source", metavar="STORE", help="the store to mix; any fsspec URL")
    parser.add_argument("--weights", required=True, metavar="FILE", help="the learned weights, a path or URL (required)")
    parser.add_argument("--output", required=True, metavar="URL", help="folder or URL of the mixed store (required)")
    parser.add_argument(
        "--layer-norm", action="store_true",
        help="first shift and scale each layer of each token over its channels to mean 0, variance 1 (default: off)",
    )  # fmt: skip
    parser.add_argument("--store", choices=tuple(STORES), help="form of the mixed store (default: as the source)")
    parser.add_argument("--dtype", choices=DTYPES, help="numbers as stored (default: as the source)")
    parser.add_argument("--compression", choices=COMPRESSIONS, help="of the Zarr form's vectors (default: as the source)")
    parser.add_argument(
        "--overwrite", action="store_true",
        help="remove the store that stands at the output first; anything else there is left alone (default: off)",
    )  # fmt: skip
    parser.add_argument(
        "--storage-options", type=json_object, metavar="JSON",
        help="what fsspec needs for source, weights and output (default: {})",
    )  # fmt: skip
    add_take_over_argument(parser)
    add_engine_arguments(parser)
    parser.add_argument("--report", action="store_true", help="write report.html beside the finished store (default: off)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the summary (default: off)")
    parser.add_argument("--verbose", action="store_true", help="show Beam's own log (default: off)")


def check(args: argparse.Namespace) -> None:
    """CommandError for paths of this machine that can't be meant."""
    locations.check_store(args.source)
    locations.check_file(args.weights, "--weights")
    locations.check_output(args.output)
    report_command.check_possible(args)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Run the job to its end, then its report. 0 complete, 4 if work is left; CommandError for what never began."""
    return report_command.after(_run_job(args, beam_args), args)


def _run_job(args: argparse.Namespace, beam_args: list[str]) -> Exit:
    with nothing_to_collect():
        from elmo_store.errors import JobMismatchError
        from elmo_store.lease import Process
        from elmo_store.storage import Root
        from pipeline import beam_options, door, running
        from pipeline.beam_options import is_local
        from pipeline.mix_store import MixStore
        from pipeline.tenure import Tenure
        from transforms.job_root import JobRoot

    beam_options.set_worker_environment()
    source, target = Root(args.source, args.storage_options), Root(args.output, args.storage_options)
    if source == target:
        raise CommandError(Exit.BAD_USAGE, f"{target} is the source itself: give another --output")
    with door.opened(beam_args, wait=not args.no_wait) as pipeline_options:
        door.check_reach(pipeline_options, [("source", args.source), ("output", args.output)], shared_disk=args.shared_disk)
        manifest = mixed_manifest(args, source)
        try:
            if _there(source, target, manifest, args.overwrite, complete=True):
                return running.complete_already(target)
            tenure = Tenure.begin(
                target, uuid.uuid4().hex, local=is_local(pipeline_options), waits=not args.no_wait, take_over=args.take_over
            )
            try:
                if _there(source, target, manifest, args.overwrite, complete=True):  # another run has just ended
                    tenure.end()
                    return running.complete_already(target)
                resumed = put_start(source, tenure, manifest, overwrite=args.overwrite, waits=not args.no_wait)
            except BaseException:
                tenure.end()
                raise
        except JobMismatchError as error:
            raise CommandError(Exit.REFUSED, str(error)) from error
        workers_root = JobRoot(target, tenure.run, Process.here() if is_local(pipeline_options) else None)
        transform = MixStore(source, workers_root, resumed=resumed)
        return running.run_to_end("mix", tenure, transform, pipeline_options, quiet=args.quiet, wait=not args.no_wait)


def mixed_manifest(args: argparse.Namespace, source: "Root") -> "Manifest":
    """The manifest of the mixed store that is asked for, incomplete. CommandError if source or weights can't be used."""
    from elmo_store.errors import StoreError
    from elmo_store.layout import MANIFEST, n_layers
    from elmo_store.manifest import MixInfo
    from elmo_store.mix_weights import check_layers
    from elmo_store.store import open as open_store
    from pipeline.software import versions

    try:
        there = open_store(str(source), storage_options=source.storage_options).manifest
        source_sha256 = hashlib.sha256(source.get(MANIFEST)).hexdigest()
    except (StoreError, OSError, ImportError, ValueError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"the store {source} can't be mixed: {error}") from error
    if there.kind != "states":
        raise CommandError(Exit.BAD_LOCATION, f"{source} is a mixed store: mix the store that it came from, {_origin(there)}")
    weight_sets = _weight_sets(args)
    try:
        check_layers(weight_sets, n_layers(there.states))
    except (StoreError, ValueError) as error:
        raise CommandError(Exit.BAD_USAGE, f"--weights {args.weights}: {error}") from error
    forms = STORES[args.store] if args.store else there.forms
    mixed = replace(
        there,
        kind="mix",
        complete=False,
        objects=(),
        checksums=None,
        states=tuple(weights.name for weights in weight_sets),
        channels=2 * there.channels,
        dtype=args.dtype or there.dtype,
        forms=forms,
        compression=args.compression or there.compression,
        software=versions(),
        mix=MixInfo(str(source), source_sha256, args.layer_norm, weight_sets),
    )
    return replace(mixed, job=job_fields(mixed, weight_sets))


def job_fields(mixed: "Manifest", weight_sets: Sequence["WeightSet"]) -> dict[str, Any]:
    """Everything that makes two mix jobs different; where the source stands does not."""
    if mixed.mix is None:
        raise ValueError("not a mixed store")
    sets = {weights.name: {"s": list(weights.s), "gamma": weights.gamma} for weights in weight_sets}
    return {
        "source_sha256": mixed.mix.source_sha256,
        "weights": json.dumps(sets, sort_keys=True),
        "layer_norm": mixed.mix.layer_norm,
        "dtype": mixed.dtype,
        "store": " ".join(mixed.forms),
        "compression": mixed.compression,
    }


def put_start(source: "Root", tenure: "Tenure", manifest: "Manifest", *, overwrite: bool, waits: bool = True) -> bool:
    """Put start state and incomplete manifest into the output that ``tenure`` holds; whether an earlier run of the job began it.

    JobMismatchError if another job stands there; CommandError if the output can't be written.
    """
    from elmo_store.errors import StoreError
    from elmo_store.layout import INPUTS, START_STATE
    from elmo_store.manifest import write_manifest
    from pipeline.output import clear
    from transforms.work import PLAN, PROBLEM, START

    target = tenure.root
    resumed = _there(source, target, manifest, overwrite)
    if overwrite:
        clear(target)
    try:
        write_manifest(target, manifest)
        target.put(START_STATE, source.get(START_STATE))
        target.put(INPUTS, source.get(INPUTS))
        for name in (PLAN, PROBLEM):  # of an earlier run
            target.remove(name)
        target.put_json(START, {"run": tenure.run, "started": time.time(), "n_pieces": 0, "waits": waits})
    except (OSError, StoreError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"the output {target} can't be written: {error}") from error
    return resumed


def _there(source: "Root", target: "Root", manifest: "Manifest", overwrite: bool, *, complete: bool = False) -> bool:
    """Whether this very job stands at the output; with ``complete``, whether it is complete. Errors as `put_start`'s."""
    from elmo_store.inputs import read_inputs
    from pipeline.output import check_same_job, standing

    there = standing(target, overwrite=overwrite)
    if there is None:
        return False
    check_same_job(target, there, manifest, read_inputs(source))
    return there.complete or not complete


def _weight_sets(args: argparse.Namespace) -> tuple["WeightSet", ...]:
    from elmo_store.errors import WeightSetError
    from elmo_store.mix_weights import read_weight_sets

    try:
        return read_weight_sets(args.weights, args.storage_options if "://" in args.weights else None)
    except WeightSetError as error:
        raise CommandError(Exit.BAD_USAGE, f"--weights: {error}") from error
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, f"--weights {args.weights} can't be read: {error}") from error


def _origin(manifest: "Manifest") -> str:
    return manifest.mix.source if manifest.mix else "unknown"
