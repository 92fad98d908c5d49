"""Faults on purpose, and what came of them.

    python -m benchmarks.chaos [--kills N] [--overlaps N] [--bit-flips N] [--damages N] [--hostile] [--fuzz N]
                               [--storage-errors RATE [--jobs N]] [--network-faults RATE [--jobs N]] [--seed N]

Each option runs its kind and prints a table; the exit code is 1 if something was not as it must be, and its details follow the
table. Needs the extras ``embed`` and ``test`` (moto and s3fs for the network).
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos import damage, fuzz, hostile, kills, network, overlaps, storage
from benchmarks.chaos.job import Found
from benchmarks.support import machine


def main() -> int:
    """Print the tables; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, what in {
        "kills": "kill -9 commands so often in all",
        "overlaps": "so many pairs of each command, two at once",
        "bit-flips": "flip so many bits of stores",
        "damages": "swap, truncate, delete, add so many files of stores, and put older ones in their place",
        "fuzz": "embed so many records, random and mutated",
    }.items():
        parser.add_argument(f"--{option}", type=int, default=0, metavar="N", help=f"{what} (default: none)")
    parser.add_argument("--hostile", action="store_true", help="stores and records made to harm, to every command")
    parser.add_argument("--storage-errors", type=float, default=0, metavar="RATE", help="share of operations that fail")
    parser.add_argument("--network-faults", type=float, default=0, metavar="RATE", help="share of stretches that are cut or late")
    parser.add_argument("--jobs", type=int, default=10, metavar="N", help="jobs on bad storage or network (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random (default: 0)")
    args = parser.parse_args()
    seed, others = args.seed, damage.KINDS[1:]
    kinds: list[tuple[object, str, Callable[[Path], Found]]] = [
        (args.kills, f"{args.kills} kills", lambda at: kills.run(at, args.kills, seed)),
        (args.overlaps, f"{args.overlaps} pairs of each command", lambda at: overlaps.run(at, args.overlaps, seed)),
        (args.bit_flips, f"{args.bit_flips} flipped bits", lambda at: damage.run(at, args.bit_flips, seed, ("flipped",))),
        (args.damages, f"{args.damages} damaged files", lambda at: damage.run(at, -(-args.damages // len(others)), seed, others)),
        (args.hostile, "stores and records made to harm", hostile.run),
        (args.fuzz, f"{args.fuzz:,} records, random and mutated", lambda at: fuzz.run(at, args.fuzz, seed)),
        (
            args.storage_errors, f"{args.jobs} jobs on storage of which {args.storage_errors:.0%} of operations go wrong",
            lambda at: storage.run(at, args.storage_errors, args.jobs, seed),
        ),
        (
            args.network_faults, f"{args.jobs} jobs on S3 behind a network that harms {args.network_faults:.1%} of what passes",
            lambda at: network.run(at, args.network_faults, args.jobs, seed),
        ),
    ]  # fmt: skip
    asked = [(what, run) for wanted, what, run in kinds if wanted]
    if not asked:
        parser.error("name one kind of fault or more")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the server that commands are forked from
    print(machine())
    wrong = 0
    for what, run in asked:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = run(Path(folder))
        print(f"\n{what}; seed {seed}; {time.monotonic() - began:,.0f} s\n\n{found.table()}", flush=True)
        for text in found.wrong[:20]:
            print(f"\n{text}", file=sys.stderr)
        wrong += len(found.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
