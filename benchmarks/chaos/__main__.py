"""Faults on purpose, and what came of them.

    python -m benchmarks.chaos [--kills N] [--flink-kills N] [--storage-errors RATE [--jobs N]] [--network-faults RATE [--jobs N]]
                               [--fuzz N] [--bit-flips N] [--seed N] [--keep DIR]

Each option runs its kind and prints a table; the exit code is 1 if something was not as it must be, and its details follow the
table. Needs the extras ``embed`` and ``test`` (moto and s3fs for the network; Java and Maven for Flink).
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.chaos import bits, fuzz, kills, network, storage
from benchmarks.chaos.job import seconds_since
from benchmarks.processes import machine


def main() -> int:
    """Print the tables; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="kill -9 so many commands (default: none)")
    parser.add_argument("--flink-kills", type=int, default=0, metavar="N", help="so many on a Flink cluster (default: none)")
    parser.add_argument("--storage-errors", type=float, default=0, metavar="RATE", help="share of operations that fail")
    parser.add_argument("--network-faults", type=float, default=0, metavar="RATE", help="share of stretches that are cut or late")
    parser.add_argument("--jobs", type=int, default=10, metavar="N", help="jobs on bad storage or network (default: 10)")
    parser.add_argument("--fuzz", type=int, default=0, metavar="N", help="so many records")
    parser.add_argument("--bit-flips", type=int, default=0, metavar="N", help="so many bits")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random (default: 0)")
    args = parser.parse_args()
    asked: list[tuple[str, Callable[[Path], Any]]] = []
    if args.kills:
        asked.append((f"{args.kills} kills", lambda folder: kills.run(folder, args.kills, args.seed)))
    if args.flink_kills:
        asked.append(
            (f"{args.flink_kills} kills on Flink", lambda folder: kills.run_on_flink(folder, args.flink_kills, args.seed))
        )
    if args.storage_errors:
        what = f"{args.jobs} jobs on storage of which {args.storage_errors:.0%} of operations go wrong"
        asked.append((what, lambda folder: storage.run(folder, args.storage_errors, args.jobs, args.seed)))
    if args.network_faults:
        what = f"{args.jobs} jobs on an S3 server behind a network that cuts or delays {args.network_faults:.1%} of what passes"
        asked.append((what, lambda folder: network.run(folder, args.network_faults, args.jobs, args.seed)))
    if args.fuzz:
        asked.append((f"{args.fuzz:,} records, random and mutated", lambda folder: fuzz.run(folder, args.fuzz, args.seed)))
    if args.bit_flips:
        asked.append((f"{args.bit_flips} flipped bits", lambda folder: bits.run(folder, args.bit_flips, args.seed)))
    if not asked:
        parser.error("name one kind of fault or more")
    print(machine())
    wrong = 0
    for what, run in asked:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = run(Path(folder))
        print(f"\n{what}; seed {args.seed}; {seconds_since(began)}\n\n{found.table()}", flush=True)
        failures = [*found.wrong, *getattr(found, "unexplained", ())]
        for text in failures[:5]:
            print(f"\n{text}", file=sys.stderr)
        wrong += len(failures)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
