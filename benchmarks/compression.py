"""What ``--compression`` costs and saves: ``python -m benchmarks.compression`` prints a table.

A real text is embedded once for each form and compression; then one shard is encoded over and over in this process, on one
thread, and the whole store is read. Rates are GB of plain states a second, so that they compare with what an engine gives.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import elmo_store as stores
from benchmarks.processes import elmo_store, machine, run_measured
from elmo_store.format.layout import COMPRESSIONS
from elmo_store.forms import shards as forms

SAMPLE = Path(__file__).resolve().parent.parent / "examples" / "sample"


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Median of some calls, after one that does not count."""
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def main() -> int:
    """Embed, encode, read, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", default=[str(SAMPLE)], help="as for embed (default: examples/sample)")
    parser.add_argument("--model", help="NAME|FOLDER|URL (default: the default model)")
    parser.add_argument("--repeats", type=int, default=5, help="of which the median is shown (default: 5)")
    parser.add_argument("--folder", help="where the stores go, removed again (default: the system's)")
    args, more = parser.parse_known_args()
    model = ["--model", args.model] if args.model else []
    print(f"{machine()}; {args.repeats} repeats")
    print(f"{'form':<10}{'compression':<13}{'bytes/token':>12}{'of plain':>10}{'encode GB/s':>13}{'read GB/s':>11}")
    for form in ("zarr", "parquet"):
        plain = 0.0
        for compression in COMPRESSIONS:
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                url = str(Path(folder) / "store")
                options = ["--output", url, "--store", form, "--compression", compression, "--quiet", *model, *more]
                run_measured(elmo_store("embed", *args.inputs, *options))
                store = stores.open(url)
                stored = sum(file.stat().st_size for file in Path(url).glob("states*/**/*") if file.is_file()) / store.n_rows
                plain = plain or stored
                first, stop = store.manifest.shard_range(0)
                states = store.read(rows=slice(first, stop))  # [n, states, channels]
                tokens, numbers = ["word"] * (stop - first), np.arange(stop - first)
                shard = (states, tokens, numbers.astype(np.int64), numbers.astype(np.int32))
                encoding = median_seconds(lambda: forms.encode_shard(store.manifest, 0, *shard), args.repeats)  # noqa: B023
                reading = median_seconds(store.read, args.repeats)
                everything = store.n_rows * states[0].nbytes
                print(
                    f"{form:<10}{compression:<13}{stored:>12,.0f}{stored / plain:>10.1%}{states.nbytes / encoding / 1e9:>13.2f}"
                    f"{everything / reading / 1e9:>11.2f}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
