"""``elmo-store mix`` and ``convert``: a store made from another one, shard by shard, without its model.

`mix` puts learned weights over the layers; `convert` writes the same rows in another form, other numbers or fewer states.
"""

import argparse
import uuid
from functools import partial
from typing import Any

from elmo_store.exports.formats import PER, POOLED, POOLS
from pipeline.cli import locations
from pipeline.cli.arguments import add_option, add_storage_options
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.commands.export import touches, write_export
from pipeline.jobs.spec import add_embed_option

MIX = """\
WEIGHTS is JSON: {"w": [0.1, 0.5, -0.2], "gamma": 1.0}, where w are logits (softmaxed), or "s" instead of "w" for weights
that are normalised already; several named sets, {"task_in": {…}, "task_out": {…}}, give several columns. Also state dicts
(.safetensors, .th, .pt) with AllenNLP's scalar_parameters.0, … and gamma. Layer 0 is [x; x], layer j is [fwd j; bwd j].

With --pool the output is a folder of Parquet files (vectors/) with one row per sentence or document: its id, document, kept
fields, and for each weight set a list of numbers (float32 by default), null where there are no tokens. It is made in this
process, or on the runner that Beam's options name, and published whole: rerun an interrupted command to start again. STORE may
also be a store of mixes.

Any option of Apache Beam may follow, as for embed. Without --pool, rerun an interrupted command to resume it.
"""
CONVERT = """\
  elmo-store convert out/store --output out/small --dtype int8       half of float16, a quarter of float32
  elmo-store convert out/store --output out/table --store parquet    for DuckDB, Polars, Spark
  elmo-store convert out/store --output out/top --states fwd2,bwd2   the top layer alone

Sentences, ids, rejects and shards stay as they are. What int8 loses: docs/development/performance.md.
Any option of Apache Beam may follow, as for embed. Rerun an interrupted command to resume it.
"""


def _add_mix_arguments(parser: argparse.ArgumentParser) -> None:
    _add_ends(parser)
    add_option(
        parser, "--weights", "the learned weights, a path or URL (required, unless --pool reads a store of mixes)", unset=None,
        metavar="FILE",
    )  # fmt: skip
    add_option(
        parser,
        "--layer-norm",
        "first shift and scale each layer of each token over its channels to mean 0, variance 1",
        False,
    )
    add_option(
        parser,
        "--pool",
        "pool the mixed tokens of each sentence or document",
        unset="do not pool",
        choices=POOLS,
    )
    add_option(
        parser,
        "--per",
        "with --pool: one vector per sentence or per document",
        unset="sentence",
        choices=PER,
    )
    _add_job(parser, "store", "dtype", "compression")


def _add_convert_arguments(parser: argparse.ArgumentParser) -> None:
    _add_ends(parser)
    add_option(
        parser,
        "--states",
        "only some of its states (or weight sets), such as fwd2,bwd2",
        unset="all",
        metavar="NAME,…",
    )
    _add_job(parser, "store", "dtype", "compression", "checksum")


def _add_ends(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="STORE", help="a complete store, of states or of mixes; any fsspec URL"
    )
    add_option(
        parser, "--output", "folder or URL of the store to write", required=True, metavar="URL"
    )


def _add_job(parser: argparse.ArgumentParser, *of_source: str) -> None:
    """What the output has of the source unless told otherwise, and how the job is run."""
    writing = parser.add_argument_group("writing")
    for name in of_source:
        add_embed_option(writing, name, default=None, unset="as the source")
    for name in ("overwrite", "take_over"):
        add_embed_option(writing, name)
    screen = parser.add_argument_group("storage and screen")
    add_storage_options(screen, "all that is read and written")
    add_embed_option(screen, "quiet")
    clusters = parser.add_argument_group("clusters and clouds")
    for name in ("no_wait", "shared_disk"):
        add_embed_option(clusters, name)


def _check_mix(args: argparse.Namespace) -> None:
    if args.pool is None:
        if args.weights is None or args.per:
            raise CommandError(
                Exit.BAD_USAGE,
                "give --weights" if args.weights is None else "--per is for --pool: give both",
            )
        return
    given = {"--store": args.store, "--compression": args.compression, "--no-wait": args.no_wait}
    if unused := [option for option, value in given.items() if value]:
        raise CommandError(Exit.BAD_USAGE, f"--pool has no use for {unused[0]}: leave it out")
    if args.dtype == "int8":
        raise CommandError(Exit.BAD_USAGE, "--pool writes float16 or float32: give another --dtype")


def _mix_touches(args: argparse.Namespace) -> locations.Touched:
    stores = touches(args)
    weights = (
        [locations.file("--weights", args.weights, args.storage_options)] if args.weights else []
    )
    return locations.Touched([*stores.reads, *weights], stores.writes)


def _convert(args: argparse.Namespace) -> int:
    """Run the job to its end. 0 complete, 4 if work is left; CommandError for what never began."""
    from pipeline.jobs.derive_job import converted_manifest, run_job

    return run_job(args, converted_manifest)


def _mix(args: argparse.Namespace) -> int:
    """As `_convert`, or pool here or on a runner."""
    if args.pool is None:
        from pipeline.jobs.derive_job import mixed_manifest, run_job

        return run_job(args, mixed_manifest)
    if not args.beam_args:
        return _pool(args)
    from pipeline.jobs import pool_job
    from pipeline.jobs.preflight import check_reach
    from pipeline.jobs.runner import opened
    from pipeline.runners.beam_options import name_job
    from pipeline.runners.submission import template_of

    with opened(args.beam_args) as runner:
        if template_of(runner):
            raise CommandError(
                Exit.BAD_USAGE,
                "--pool takes its files from workers while they run, and can't leave a template",
            )
        name_job(runner, args.command, uuid.uuid4().hex)
        touched = _mix_touches(args)
        check_reach(runner, [touched.reads[0], *touched.writes], shared_disk=args.shared_disk)
        source = locations.open_store(args.source, args.storage_options)
        return _pool(args, workers=partial(pool_job.on_runner, runner, source))


def _pool(args: argparse.Namespace, **options: Any) -> int:
    settings = {"pool": args.pool, "per": args.per or "sentence", "dtype": args.dtype or "float32"}
    return write_export(
        args, POOLED, weights=args.weights, layer_norm=args.layer_norm, **settings, **options
    )


COMMANDS = {
    "mix": Command(
        _add_mix_arguments, _mix, _mix_touches, _check_mix, epilog=MIX, takes_beam_options=True
    ),
    "convert": Command(
        _add_convert_arguments, _convert, touches, epilog=CONVERT, takes_beam_options=True
    ),
}
