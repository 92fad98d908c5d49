"""Is a job's memory flat? ``python -m benchmarks.memory`` runs the command on little and on much text and prints both peaks.

The corpus is drawn from a Zipf law over a fixed vocabulary, so that both sizes know the same words and only their amount
differs. The limit of the project: the peaks differ by less than 15%.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.processes import elmo_store, machine, run_measured
from model.files.registry import random_weights
from model.options import BiLMOptions

LIMIT = 0.15
VOCABULARY = 20_000
SENTENCE_TOKENS = 24


def small_model(folder: Path) -> Path:
    """A random biLM of 2 × 64/32 as a safetensors file."""
    options = BiLMOptions(
        cell_clip=3.0, proj_clip=3.0, use_skip_connections=True, projection_dim=32, dim=64, n_layers=2,
        activation="relu", filters=((1, 16), (2, 16), (3, 32)), n_highway=1, char_embedding_dim=8,
    )  # fmt: skip
    path = folder / "small.safetensors"
    random_weights(options).save_safetensors(path)
    return path


def write_corpus(path: Path, tokens: int, seed: int = 0) -> None:
    """About ``tokens`` tokens of Zipf-distributed words, one sentence a line."""
    random = np.random.Generator(np.random.PCG64(seed))
    words = np.array([f"w{number:x}" for number in range(VOCABULARY)])
    with path.open("w", encoding="utf-8") as file:
        left = tokens
        while left > 0:
            lengths = random.integers(1, 2 * SENTENCE_TOKENS, size=2000)
            drawn = words[np.minimum(random.zipf(1.2, lengths.sum()) - 1, VOCABULARY - 1)]
            at = 0
            for length in lengths:
                file.write(" ".join(drawn[at : at + min(length, left)]) + "\n")
                at += length
                left -= min(length, left)
                if left <= 0:
                    break


def main() -> int:
    """Measure and print; 1 if the peaks differ by the limit or more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs=2, default=[100_000, 10_000_000], help="two sizes (default: 1e5 1e7)")
    parser.add_argument("--model", help="NAME|FOLDER|URL (default: a random biLM of 2 × 64/32)")
    parser.add_argument("--folder", help="where texts and stores go, removed again (default: the system's)")
    parser.add_argument("options", nargs="*", help="more options of `elmo-store embed`, after --")
    args = parser.parse_args()
    print(machine())
    print(f"{'tokens':>12} {'seconds':>9} {'tokens/s':>9} {'peak MiB':>9}")
    peaks = []
    for tokens in args.tokens:
        with tempfile.TemporaryDirectory(dir=args.folder) as name:
            folder = Path(name)
            write_corpus(folder / "corpus.txt", tokens)
            model = args.model or str(small_model(folder))
            command = elmo_store(
                "embed", str(folder / "corpus.txt"), "--input-format", "lines", "--model", model,
                "--output", str(folder / "store"), "--quiet", *args.options,
            )  # fmt: skip
            measured = run_measured(command)
        peaks.append(measured.peak_bytes)
        print(
            f"{tokens:>12,} {measured.seconds:>9.1f} {tokens / measured.seconds:>9,.0f} {measured.peak_bytes / 2**20:>9,.0f}",
            flush=True,
        )
    difference = max(peaks) / min(peaks) - 1
    print(f"the peaks differ by {difference:.1%}; the limit is {LIMIT:.0%}")
    return 0 if difference < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
