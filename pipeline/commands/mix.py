"""``elmo-store mix STORE --weights FILE --output URL``: learned weights over a store's layers, as a store of its own."""

import argparse
import json
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from elmo_store.exports.formats import PER, POOLED
from elmo_store.mixing import POOLS
from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.commands import derive
from pipeline.commands.export import write_export

if TYPE_CHECKING:
    from elmo_store.format.manifest import Manifest, WeightSet
    from elmo_store.storage.root import Root

TAKES_BEAM_OPTIONS = True
LOADS = "Apache Beam"
EPILOG = """\
WEIGHTS is JSON: {"w": [0.1, 0.5, -0.2], "gamma": 1.0}, where w are logits (softmaxed), or "s" instead of "w" for weights
that are normalised already; several named sets, {"task_in": {…}, "task_out": {…}}, give several columns. Also safetensors
with the same names (NAME.w, NAME.gamma), and torch state dicts (.th, .pt) or safetensors with AllenNLP's
scalar_parameters.0, … and gamma. Layer 0 is [x; x], layer j is [fwd j; bwd j].

With --pool the output is a folder of Parquet files (vectors/), a row a sentence or document: its id, document, kept fields, and a
list of numbers a weight set (float32 by default), null where there are no tokens. It is made in this process, or on the runner
that Beam's options name; STORE may also be a store of mixes.

Any option of Apache Beam may follow, as for embed. The same command on an unfinished output continues it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="STORE", help="the store to mix; any fsspec URL")
    parser.add_argument(
        "--weights", metavar="FILE", help="the learned weights, a path or URL (required; none to pool a store of mixes)"
    )
    parser.add_argument("--output", required=True, metavar="URL", help="folder or URL of the mixed store (required)")
    parser.add_argument(
        "--layer-norm", action="store_true",
        help="first shift and scale each layer of each token over its channels to mean 0, variance 1 (default: off)",
    )  # fmt: skip
    parser.add_argument(
        "--pool", choices=POOLS, help="one vector a sentence or document: of its mixed tokens the mean, … (default: one a token)"
    )
    parser.add_argument("--per", choices=PER, help="with --pool: what has a vector (default: sentence)")
    derive.add_arguments(parser)


def check(args: argparse.Namespace) -> None:
    """CommandError for options that make no sense together."""
    derive.check(args)
    if args.pool is None:
        if args.weights is None or args.per:
            raise CommandError(Exit.BAD_USAGE, "give --weights" if args.weights is None else "--per is for --pool: give both")
        return
    given = {"--store": args.store, "--compression": args.compression, "--no-wait": args.no_wait, "--report": args.report}
    given["--metrics-port"] = args.metrics_port
    if unused := [option for option, value in given.items() if value]:
        raise CommandError(Exit.BAD_USAGE, f"--pool has no use for {unused[0]}: leave it out")
    if args.dtype == "int8":
        raise CommandError(Exit.BAD_USAGE, "--pool writes float16 or float32: give another --dtype")
    locations.check_output(args.output)


def touches(args: argparse.Namespace) -> locations.Touched:
    stores = derive.touches(args)
    weights = [locations.file("--weights", args.weights, args.storage_options)] if args.weights else []
    writes = [Location("output", args.output, args.storage_options)] if args.pool else stores.writes
    return locations.Touched([*stores.reads, *weights], writes)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    if args.pool:
        return _pool_on_runner(args, beam_args) if beam_args else _pool(args)
    return derive.run(args, beam_args, lambda source: mixed_manifest(args, source))


def _pool(args: argparse.Namespace, **options: Any) -> int:
    settings = {"pool": args.pool, "per": args.per or "sentence", "dtype": args.dtype or "float32"}
    return write_export(args, POOLED, weights=args.weights, layer_norm=args.layer_norm, **settings, **options)


def _pool_on_runner(args: argparse.Namespace, beam_args: list[str]) -> int:
    from pipeline.jobs import pool_job
    from pipeline.runners import preflight
    from pipeline.runners.beam_options import name_job

    with preflight.opened(beam_args) as runner:
        name_job(runner, args.command, args.output, uuid.uuid4().hex)
        preflight.check_reach(runner, [*derive.touches(args).reads, *touches(args).writes], shared_disk=args.shared_disk)
        source = locations.open_store(args.source, args.storage_options).root
        return _pool(args, workers=partial(pool_job.on_runner, runner, source))


def mixed_manifest(args: argparse.Namespace, source: "Root") -> "Manifest":
    """The manifest of the mixed store that is asked for, incomplete. CommandError if source or weights can't be used."""
    from elmo_store.errors import WeightSetError
    from elmo_store.format.layout import n_layers
    from elmo_store.format.manifest import MixInfo
    from elmo_store.mixing.weights import check_layers
    from pipeline.jobs import derive_job

    manifest, source_sha256 = derive_job.source_manifest(source, "mixed")
    if manifest.kind != "states":
        origin = manifest.mix.source if manifest.mix else "unknown"
        raise CommandError(Exit.BAD_LOCATION, f"{source} is a mixed store: mix the store that it came from, {origin}")
    weight_sets = _weight_sets(args)
    try:
        check_layers(weight_sets, n_layers(manifest.states))
    except WeightSetError as error:
        raise CommandError(Exit.BAD_USAGE, f"--weights {args.weights}: {error}") from error
    except ValueError as error:
        raise CommandError(Exit.BAD_LOCATION, f"{source}: {error}") from error
    mixed = derive_job.output_manifest(
        args,
        manifest,
        kind="mix",
        states=tuple(weights.name for weights in weight_sets),
        channels=2 * manifest.channels,
        mix=MixInfo(str(source), source_sha256, args.layer_norm, weight_sets),
    )
    sets = {weights.name: {"s": list(weights.s), "gamma": weights.gamma} for weights in weight_sets}
    # Everything that makes two mix jobs different; where the source stands does not.
    job = {
        "source_sha256": source_sha256,
        "weights": json.dumps(sets, sort_keys=True),
        "layer_norm": args.layer_norm,
        "dtype": mixed.dtype,
        "store": " ".join(mixed.forms),
        "compression": mixed.compression,
    }
    return replace(mixed, job=job)


def _weight_sets(args: argparse.Namespace) -> tuple["WeightSet", ...]:
    from elmo_store.errors import WeightSetError
    from elmo_store.mixing.weights import read_weight_sets

    try:
        return read_weight_sets(args.weights, args.storage_options if "://" in args.weights else None)
    except WeightSetError as error:
        raise CommandError(Exit.BAD_USAGE, f"--weights: {error}") from error
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, f"--weights {args.weights} can't be read: {error}") from error
