"""Many small files on a local disk: a whole job, seconds and processor time, a model of 16 channels.

    python -m benchmarks.small_files [--files 8000] [--shard-rows 64] [XX]

A file is three lines of 25 tokens. What is measured is the work beside the engine: a task, a part, a shard.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from model.files.registry import random_weights
from model.options import BiLMOptions

LINES, TOKENS_A_LINE = 3, 25
NARROW = BiLMOptions(
    cell_clip=3.0, proj_clip=3.0, use_skip_connections=True, projection_dim=16, dim=32, n_layers=2, activation="relu",
    filters=((1, 8), (2, 8), (3, 16)), n_highway=1, char_embedding_dim=4,
)  # fmt: skip


def write_files(folder: Path, n: int) -> None:
    """``n`` files of three lines, from 5,000 words."""
    folder.mkdir()
    for i in range(n):
        lines = (" ".join(f"word{(i * 31 + line * 7 + j * j) % 5000}" for j in range(TOKENS_A_LINE)) for line in range(LINES))
        (folder / f"{i:06d}.tok").write_text("".join(line + "\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=8_000)
    parser.add_argument("--shard-rows", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_files(folder / "input", args.files)
        random_weights(NARROW).save_safetensors(folder / "narrow.safetensors")
        command = [sys.executable, "-m", "elmo_store", "embed", str(folder / "input"), "--output", str(folder / "store")]
        command += ["--model", str(folder / "narrow.safetensors"), "--shard-rows", str(args.shard_rows), "--quiet"]
        began = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        tokens = args.files * LINES * TOKENS_A_LINE
        shards = -(-tokens // args.shard_rows)
        print(f"{'files':>8}{'tokens':>10}{'shards':>8}{'s':>8}{'user s':>8}{'sys s':>8}{'ms a shard':>12}")
        print(
            f"{args.files:>8,}{tokens:>10,}{shards:>8,}{seconds:>8.1f}{used.ru_utime:>8.1f}{used.ru_stime:>8.1f}"
            f"{1000 * seconds / shards:>12.2f}"
        )


if __name__ == "__main__":
    main()
