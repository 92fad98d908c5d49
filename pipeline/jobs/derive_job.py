"""A job that makes a store from another one, shard by shard: what `mix` and `convert` have in common, options and run."""

import argparse
import hashlib
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.importing import nothing_to_collect
from pipeline.cli.touched import Touched
from pipeline.commands import report as report_command
from pipeline.jobs.options import COMPRESSIONS, DTYPES, STORES, add_engine_arguments, add_take_over_argument, json_object

if TYPE_CHECKING:
    from elmo_store.format.manifest import Manifest
    from elmo_store.storage.root import Root
    from pipeline.jobs.lease_holder import LeaseHolder

ManifestOf = Callable[[argparse.Namespace, "Root"], "Manifest"]  # the output's, incomplete, of the options and the source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Form and numbers of the output, and how the job is run."""
    parser.add_argument("--store", choices=tuple(STORES), help="form of the output (default: as the source)")
    parser.add_argument(
        "--dtype", choices=DTYPES,
        help="numbers as stored; int8 has a scale for each vector of each row: half of float16 (default: as the source)",
    )  # fmt: skip
    parser.add_argument(
        "--compression", choices=COMPRESSIONS, help="of the vectors; Parquet takes zstd for either (default: as the source)"
    )
    parser.add_argument(
        "--overwrite", action="store_true",
        help="remove the store that stands at the output first; anything else there is left alone (default: off)",
    )  # fmt: skip
    parser.add_argument(
        "--storage-options",
        type=json_object,
        metavar="JSON",
        help="what fsspec needs for all that is read and written (default: {})",
    )
    add_take_over_argument(parser)
    add_engine_arguments(parser)
    parser.add_argument("--report", action="store_true", help="write report.html beside the finished store (default: off)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the summary (default: off)")
    parser.add_argument("--verbose", action="store_true", help="show Beam's own log (default: off)")


def check(args: argparse.Namespace) -> None:
    """CommandError for paths of this machine that can't be meant."""
    locations.check_store(args.source)
    locations.check_output(args.output)
    report_command.check_possible(args)


def touches(args: argparse.Namespace) -> Touched:
    """The store that is read, and the one that is made."""
    source, output = Location("STORE", args.source, args.storage_options), Location("output", args.output, args.storage_options)
    return Touched([source], [output])


def run(args: argparse.Namespace, beam_args: list[str], manifest_of: ManifestOf) -> int:
    """Run the job to its end, then its report. 0 complete, 4 if work is left; CommandError for what never began."""
    return report_command.after(_run_job(args, beam_args, manifest_of), args)


def _run_job(args: argparse.Namespace, beam_args: list[str], manifest_of: ManifestOf) -> Exit:
    with nothing_to_collect():
        from elmo_store.errors import JobMismatchError
        from elmo_store.storage.process import Process
        from elmo_store.storage.root import Root
        from pipeline.jobs import run as running
        from pipeline.jobs.derive_store import DeriveStore
        from pipeline.jobs.lease_holder import LeaseHolder
        from pipeline.runners import preflight as door
        from pipeline.runners.beam_options import is_local
        from transforms.runtime.job_root import JobRoot

    source, target = _source(args), Root(args.output, args.storage_options)
    with door.opened(beam_args, wait=not args.no_wait) as pipeline_options:
        door.check_reach(pipeline_options, [("source", args.source), ("output", args.output)], shared_disk=args.shared_disk)
        manifest = manifest_of(args, source)
        try:
            if _there(source, target, manifest, args.overwrite, complete=True):
                return running.complete_already(target)
            holder = LeaseHolder.begin(
                target, uuid.uuid4().hex, local=is_local(pipeline_options), waits=not args.no_wait, take_over=args.take_over
            )
            try:
                if _there(source, target, manifest, args.overwrite, complete=True):  # another run has just ended
                    holder.end()
                    return running.complete_already(target)
                resumed = put_start(source, holder, manifest, overwrite=args.overwrite, waits=not args.no_wait)
            except BaseException:
                holder.end()
                raise
        except JobMismatchError as error:
            raise CommandError(Exit.REFUSED, str(error)) from error
        workers_root = JobRoot(target, holder.run, Process.here() if is_local(pipeline_options) else None)
        transform = DeriveStore(source, workers_root, resumed=resumed)
        return running.run_to_end(args.command, holder, transform, pipeline_options, quiet=args.quiet, wait=not args.no_wait)


def _source(args: argparse.Namespace) -> "Root":
    """The store to read; if another one takes its place, every worker notices. `source_manifest` names what is no store."""
    from elmo_store.errors import StoreError
    from elmo_store.reading.watched import opened_store
    from elmo_store.storage.root import Root

    try:
        return opened_store(args.source, args.storage_options)[0]
    except (StoreError, OSError, ImportError, ValueError):
        return Root(args.source, args.storage_options)


def source_manifest(source: "Root", doing: str) -> tuple["Manifest", str]:
    """The manifest of the store to read, and the SHA-256 of its bytes. CommandError if it is none, or not complete."""
    from elmo_store.errors import StoreError
    from elmo_store.format.layout import MANIFEST
    from elmo_store.store import open as open_store

    try:
        there = open_store(str(source), storage_options=source.storage_options).manifest
        return there, hashlib.sha256(source.get(MANIFEST)).hexdigest()
    except (StoreError, OSError, ImportError, ValueError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"the store {source} can't be {doing}: {error}") from error


def output_manifest(args: argparse.Namespace, there: "Manifest", **changes: Any) -> "Manifest":
    """The manifest of the output, incomplete, its job not said yet: the source's, but for what the options and ``changes`` say.

    CommandError for names that an int8 store can't have.
    """
    from elmo_store.format.layout import check_scale_columns
    from pipeline.jobs.software import versions

    made = replace(
        there,
        complete=False,
        objects=(),
        checksums=None,
        dtype=args.dtype or there.dtype,
        forms=STORES[args.store] if args.store else there.forms,
        compression=args.compression or there.compression,
        software=versions(),
        **changes,
    )
    if made.is_int8:
        try:
            check_scale_columns(made.states)
        except ValueError as error:
            raise CommandError(Exit.BAD_USAGE, str(error)) from error
    return made


def put_start(source: "Root", holder: "LeaseHolder", manifest: "Manifest", *, overwrite: bool, waits: bool = True) -> bool:
    """Put start state and incomplete manifest into the output that ``holder`` holds; whether an earlier run of the job began it.

    JobMismatchError if another job stands there; CommandError if the output can't be written.
    """
    from elmo_store.errors import StoreError
    from elmo_store.format.layout import INPUTS, START_STATE
    from elmo_store.format.manifest import write_manifest
    from pipeline.jobs.output import clear
    from transforms.runtime.job_root import JobRoot
    from transforms.runtime.work import PLAN, PROBLEM, START

    target = JobRoot(holder.root, holder.run)
    resumed = _there(source, target, manifest, overwrite)
    if not resumed:
        clear(target)
    try:
        write_manifest(target, manifest)
        target.put(START_STATE, source.get(START_STATE))
        target.put(INPUTS, source.get(INPUTS))
        for name in (PLAN, PROBLEM):  # of an earlier run
            target.remove(name)
        target.put_json(START, {"run": holder.run, "started": time.time(), "n_pieces": 0, "waits": waits})
    except (OSError, StoreError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"the output {target} can't be written: {error}") from error
    return resumed


def _there(source: "Root", target: "Root", manifest: "Manifest", overwrite: bool, *, complete: bool = False) -> bool:
    """Whether this very job stands at the output; with ``complete``, whether it is complete. Errors as `put_start`'s."""
    from elmo_store.format.inputs import read_inputs
    from pipeline.jobs.output import is_same_job, standing

    there = standing(target, overwrite=overwrite)
    if there is None:
        return False
    return is_same_job(target, there, manifest, read_inputs(source)) and (there.complete or not complete)
