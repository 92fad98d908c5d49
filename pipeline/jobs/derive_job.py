"""A job that makes a store from another one, shard by shard: `mix` and `convert`, from options to a finished store.

Its pipeline: plan → (copies ‖ shards) → complete store.
"""

import argparse
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PBegin, PCollection

from elmo_store.errors import WeightSetError
from elmo_store.format.layout import INPUTS, MANIFEST, START_STATE, check_scale_columns, n_layers
from elmo_store.format.manifest import Manifest, MixInfo, encode_inputs, write_manifest
from elmo_store.mixing.weights import check_layers, read_weight_sets
from elmo_store.reading.view import View
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.location import Location
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from elmo_store.store import Store
from elmo_store.writer import begun, inputs_of
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.locations import open_store, reached
from pipeline.jobs.output import LeaseTerms, claim, put_start, versions
from pipeline.jobs.preflight import check_reach, chosen_states
from pipeline.jobs.run import Running, complete_already, run_to_end
from pipeline.jobs.runner import opened
from pipeline.jobs.spec import STORES
from pipeline.runners.beam_options import ends_with_command, is_local
from pipeline.runners.flink import address_of
from transforms.runtime.owner import owned
from transforms.runtime.wiring import Spread, spread
from transforms.stages.derive import (
    BEGUN,
    PARTS,
    SHARDS,
    SHARDS_PER_TASK,
    DeriveShards,
    plan_derived,
    put_texts,
)
from transforms.stages.finish import finish_store, left_to_do


class DeriveStore(beam.PTransform[PBegin, PCollection[bool]]):
    """The store ``source`` into the one that the manifest at ``target`` asks for: mixed, or in other numbers and forms.

    ``resumed``: some of it may be done.
    """

    def __init__(self, source: View, target: Root, *, resumed: bool = False) -> None:
        super().__init__()
        self._ends = (source, target)
        self._resumed = resumed

    def expand(self, begin: PBegin) -> PCollection[bool]:
        plan = beam.FlatMap(plan_derived, *self._ends, self._resumed).with_outputs(
            PARTS, SHARDS, BEGUN
        )
        tasks = begin | beam.Impulse() | "Plan" >> plan
        copied = tasks[PARTS] | "Parts" >> spread(put_texts, *self._ends)
        shards = tasks[SHARDS]
        if self._resumed:
            shards |= "Done" >> spread(left_to_do, self._ends[1], SHARDS_PER_TASK, flat=True)
        derived = (
            shards | "Spread shards" >> Spread() | "Derive" >> beam.ParDo(DeriveShards(*self._ends))
        )
        return (
            (tasks[BEGUN], copied, derived)
            | "All results" >> beam.Flatten()
            | "Finish" >> finish_store(self._ends[1])
        )


def run_job(
    args: argparse.Namespace, manifest_of: Callable[[argparse.Namespace, Store], Manifest]
) -> Exit:
    """Check, take the lease, put the job's start into the output, run. CommandError for what never began.

    ``manifest_of``: `mixed_manifest` or `converted_manifest`, by the command of ``args``.
    """
    waits = not args.no_wait
    source, target = (
        open_store(args.source, args.storage_options),
        reached(args.output, args.storage_options, "output"),
    )
    with opened(args.beam_args, wait=waits) as runner:
        ends = [
            Location("source", args.source, args.storage_options),
            Location("output", args.output, args.storage_options),
        ]
        check_reach(runner, ends, shared_disk=args.shared_disk)
        manifest = manifest_of(args, source)
        terms = LeaseTerms(
            is_local(runner), ends_with_command(runner), waits, args.take_over, address_of(runner)
        )

        def begin(holder: LeaseHolder, earlier: Manifest | None) -> DeriveStore:
            own = owned(target, holder.run)
            write_manifest(own, manifest)
            view, whole = source._view, source._view.whole_store
            own.put(START_STATE, view.opened_stores()[0].store.root.get(START_STATE))
            # The inputs of one store are copied as they are, so that their bytes are the same.
            inputs = encode_inputs(inputs_of(view)) if whole is None else whole.root.get(INPUTS)
            own.put(INPUTS, inputs)
            put_start(own, n_pieces=0, waits=waits)
            workers_root = owned(target, holder.run, Process.here() if terms.local else None)
            return DeriveStore(view, workers_root, resumed=earlier is not None)

        def attempt() -> Exit | None:
            holder, transform = claim(
                target, terms, manifest, inputs_of(source._view), begin, overwrite=args.overwrite
            )
            if holder is None:
                return complete_already(target, quiet=args.quiet)
            return run_to_end(
                Running(args.command, holder, manifest, runner, quiet=args.quiet, wait=waits),
                transform,
            )

        code = attempt()
        code = attempt() if code is None else code
        return Exit.INCOMPLETE if code is None else code


def mixed_manifest(args: argparse.Namespace, source: Store) -> Manifest:
    """The manifest of the mixed store that is asked for, incomplete. CommandError if source or weights can't be used."""
    manifest, source_sha256 = _source_manifest(source)
    if manifest.kind != "states":
        origin = manifest.mix.source if manifest.mix else "unknown"
        raise CommandError(
            Exit.BAD_LOCATION,
            f"{source.url} is a mixed store: mix the store that it came from, {origin}",
        )
    weight_sets = read_weight_sets(
        args.weights, args.storage_options if "://" in args.weights else None
    )
    try:
        check_layers(weight_sets, n_layers(manifest.states))
    except WeightSetError as error:
        raise CommandError(Exit.BAD_USAGE, f"--weights {args.weights}: {error}") from error
    except ValueError as error:
        raise CommandError(Exit.BAD_LOCATION, f"{source.url}: {error}") from error
    sets = {weights.name: {"s": list(weights.s), "gamma": weights.gamma} for weights in weight_sets}
    # Where the source stands makes no two mix jobs different.
    job = {
        "source_sha256": source_sha256,
        "weights": json.dumps(sets, sort_keys=True),
        "layer_norm": args.layer_norm,
    }
    return _output_manifest(
        args,
        manifest,
        job,
        kind="mix",
        states=tuple(weights.name for weights in weight_sets),
        channels=2 * manifest.channels,
        mix=MixInfo(source.url, source_sha256, args.layer_norm, weight_sets),
    )


def converted_manifest(args: argparse.Namespace, source: Store) -> Manifest:
    """The manifest of the store that is asked for, incomplete. CommandError if the source has no such state."""
    manifest, source_sha256 = _source_manifest(source)
    states = chosen_states(args.states, manifest.states, source.url)
    mix = manifest.mix
    if mix is not None:
        mix = replace(
            mix, weight_sets=tuple(weights for weights in mix.weight_sets if weights.name in states)
        )
    checksum = args.checksum or manifest.checksum
    # The source's job stays, so that --recompute knows how the states were computed.
    job = {
        **manifest.job,
        "converted_from": source_sha256,
        "rounded": f"{manifest.job.get('rounded', manifest.dtype)} {args.dtype or manifest.dtype}",
        "states": ",".join(states),
        "checksum": checksum,
    }
    return _output_manifest(args, manifest, job, states=states, mix=mix, checksum=checksum)


def _source_manifest(source: Store) -> tuple[Manifest, str]:
    """The manifest of the store to read, and the SHA-256 of its bytes."""
    whole, described = source._view.whole_store, source.manifest
    if whole is not None:
        return described, hashlib.sha256(whole.root.get(MANIFEST)).hexdigest()
    n_files = len(inputs_of(source._view))
    as_one = begun(described, described.sizes, input=replace(described.input, files=n_files))
    return as_one, str(described.to_json()["sha256"])


def _output_manifest(
    args: argparse.Namespace, source: Manifest, job: Mapping[str, Any], **changes: Any
) -> Manifest:
    """The manifest of the output, incomplete: the source's, but for what the options and ``changes`` say.

    ``job``: what makes two jobs different, beside how numbers are written. CommandError for names that an int8 store can't have.
    """
    dtype, compression = args.dtype or source.dtype, args.compression or source.compression
    forms = STORES[args.store] if args.store else source.forms
    made = replace(
        source,
        complete=False,
        objects=(),
        checksums=None,
        dtype=dtype,
        forms=forms,
        compression=compression,
        job={**job, "dtype": dtype, "store": " ".join(forms), "compression": compression},
        software=versions(),
        **changes,
    )
    if made.is_int8:
        try:
            check_scale_columns(made.states)
        except ValueError as error:
            raise CommandError(Exit.BAD_USAGE, str(error)) from error
    return made
