"""Faults on purpose, and what came of them.

    python -m benchmarks.chaos [--kills N] [--overlaps N] [--bit-flips N] [--damages N] [--hostile] [--fuzz N]
                               [--storage-errors RATE [--jobs N]] [--network-faults RATE [--jobs N]] [--seed N]

Each option runs its kind and prints a table; the exit code is 1 if something was not as it must be, and its details follow the
table. Needs the extras ``embed`` and ``test`` (moto and s3fs for the network).
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos.damage import KINDS, damage
from benchmarks.chaos.fuzz import fuzz
from benchmarks.chaos.hostile import hostile
from benchmarks.chaos.job import Outcomes
from benchmarks.chaos.kills import kills, pairs
from benchmarks.chaos.storage import network, storage
from benchmarks.shared.support import machine, options_of


def main() -> int:
    """Print the tables; 1 if anything was wrong."""
    parser = options_of(__doc__)
    add = parser.add_argument
    add("--kills", type=int, default=0, metavar="N", help="kill -9 commands so often in all")
    add("--overlaps", type=int, default=0, metavar="N", help="so many pairs of each command, two at once")
    add("--bit-flips", type=int, default=0, metavar="N", help="flip so many bits of stores")
    add("--damages", type=int, default=0, metavar="N", help="swap, truncate, delete, add or set back so many files of stores")
    add("--hostile", action="store_true", help="stores and records made to harm, to every command")
    add("--fuzz", type=int, default=0, metavar="N", help="embed so many records, random and mutated")
    add("--storage-errors", type=float, default=0, metavar="RATE", help="share of operations that fail")
    add("--network-faults", type=float, default=0, metavar="RATE", help="share of stretches that are cut or late")
    add("--jobs", type=int, default=10, metavar="N", help="jobs on bad storage or network (default: 10)")
    add("--seed", type=int, default=0, metavar="N", help="of all that is random (default: 0)")
    args = parser.parse_args()
    n_jobs, seed, others = args.jobs, args.seed, KINDS[1:]
    kinds: list[tuple[object, str, Callable[[Path], Outcomes]]] = [
        (args.kills, f"{args.kills} kills", lambda at: kills(at, args.kills, seed)),
        (args.overlaps, f"{args.overlaps} pairs of each command", lambda at: pairs(at, args.overlaps, seed)),
        (args.bit_flips, f"{args.bit_flips} flipped bits", lambda at: damage(at, args.bit_flips, seed, ("flipped",))),
        (args.damages, f"{args.damages} damaged files", lambda at: damage(at, -(-args.damages // len(others)), seed, others)),
        (args.hostile, "stores and records made to harm", hostile),
        (args.fuzz, f"{args.fuzz:,} records, random and mutated", lambda at: fuzz(at, args.fuzz, seed)),
        (
            args.storage_errors, f"{n_jobs} jobs on storage of which {args.storage_errors:.0%} of operations go wrong",
            lambda at: storage(at, args.storage_errors, n_jobs, seed),
        ),
        (
            args.network_faults, f"{n_jobs} jobs on S3 behind a network that harms {args.network_faults:.1%} of what passes",
            lambda at: network(at, args.network_faults, n_jobs, seed),
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
            outcomes = run(Path(folder))
        print(f"\n{what}; seed {seed}; {time.monotonic() - began:,.0f} s\n\n{outcomes.table()}", flush=True)
        for text in outcomes.wrong[:20]:
            print(f"\n{text}", file=sys.stderr)
        wrong += len(outcomes.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
