"""``elmo-store convert STORE --output URL``: the same rows in another form, other numbers or fewer states, as a store of its own.

No model is asked: vectors are read, rounded where the numbers get smaller, and written.
"""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.commands import derive
from pipeline.jobs.spec import CHECKSUMS, LAYOUTS, NO_ROWS

if TYPE_CHECKING:
    from elmo_store.format.manifest import Manifest
    from elmo_store.storage.root import Root

TAKES_BEAM_OPTIONS = True
LOADS = "Apache Beam"
EPILOG = """\
  elmo-store convert out/store --output out/small --dtype int8       half of float16, a quarter of float32
  elmo-store convert out/store --output out/table --store parquet    for DuckDB, Polars, Spark
  elmo-store convert out/store --output out/top --states fwd2,bwd2   the top layer alone
  elmo-store convert out/store --output out/rows --layout rows       for training: a sentence is one read

Sentences, ids, rejects and shards stay as they are. What int8 loses: docs/development/performance.md.
Any option of Apache Beam may follow, as for embed. The same command on an unfinished output continues it.
"""
check, touches = derive.check, derive.touches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="STORE", help="the store to convert, of states or a mixed one; any fsspec URL")
    parser.add_argument("--output", required=True, metavar="URL", help="folder or URL of the store to write (required)")
    parser.add_argument(
        "--states", metavar="NAME,…", help="only some of its states (or weight sets), such as fwd2,bwd2 (default: all)"
    )
    parser.add_argument("--checksum", choices=CHECKSUMS, help="of each inner chunk or page, as embed's (default: as the source)")
    parser.add_argument("--layout", choices=LAYOUTS, help="of the Zarr form, as embed's (default: as the source)")
    derive.add_arguments(parser)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    return derive.run(args, beam_args, lambda source: converted_manifest(args, source))


def converted_manifest(args: argparse.Namespace, source: "Root") -> "Manifest":
    """The manifest of the store that is asked for, incomplete. CommandError if the source can't be used, or has no such state."""
    from pipeline.jobs import derive_job

    manifest, source_sha256 = derive_job.source_manifest(source, "converted")
    asked = [name.strip() for name in args.states.split(",")] if args.states else manifest.states
    unknown = [name for name in asked if name not in manifest.states]
    if unknown:
        raise CommandError(Exit.BAD_USAGE, f"--states {', '.join(unknown)}: {source} has {', '.join(manifest.states)}")
    states = tuple(name for name in manifest.states if name in asked)
    mix = manifest.mix
    if mix is not None:
        mix = replace(mix, weight_sets=tuple(weights for weights in mix.weight_sets if weights.name in states))
    asked_else = {name: value for name in ("checksum", "layout") if (value := getattr(args, name))}
    converted = derive_job.output_manifest(args, manifest, states=states, mix=mix, **asked_else)
    if args.layout == "rows" and "zarr" not in converted.forms:
        raise CommandError(Exit.BAD_USAGE, NO_ROWS)
    # The source's job stays, so that --recompute knows how the states were computed.
    own_job = {
        "converted_from": source_sha256,
        "rounded": f"{manifest.job.get('rounded', manifest.dtype)} {converted.dtype}",
        "states": ",".join(states),
        "dtype": converted.dtype,
        "store": " ".join(converted.forms),
        "compression": converted.compression,
        "checksum": converted.checksum,
        "layout": converted.layout,
    }
    return replace(converted, job=dict(manifest.job) | own_job)
