"""``python -m benchmarks.curve RUN/training --output FILE.svg``: a training run's curve as a picture.

The sampled softmax's loss along the run, and, on an axis of its own, the full softmax's held-out perplexity at the points where
`--heldout-every` measured it: the two are not the same thing. Needs Matplotlib. Imports NumPy and model.training.run.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from model.training.run import CURVE, POINTS


def draw(folder: Path, output: Path) -> None:
    """Draw; OSError where there is no curve."""
    from matplotlib.figure import Figure

    curve = np.loadtxt(folder / CURVE, skiprows=1, ndmin=2)  # [reports, 5]: tokens, seconds, two losses, rate
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    loss = figure.subplots()
    lines = []
    for column, name, colour in ((2, "forward", "#4c72b0"), (3, "backward", "#c44e52")):
        lines += loss.plot(curve[:, 0] / 1e6, curve[:, column], color=colour, label=f"sampled loss, {name}", linewidth=1)
    loss.set_xlabel("million tokens")
    loss.set_ylabel("sampled loss, nats")
    if (folder / POINTS).is_file():
        rows = [line.split("\t") for line in (folder / POINTS).read_text(encoding="utf-8").splitlines()[1:]]
        points = np.asarray([[float(cell) for cell in (row[0], *row[2:4])] for row in rows])  # [points, 3]
        perplexity = loss.twinx()
        for column, name, colour in ((1, "forward", "#4c72b0"), (2, "backward", "#c44e52")):
            lines += perplexity.plot(
                points[:, 0] / 1e6, points[:, column], "o:", color=colour, markersize=4, label=f"held-out perplexity, {name}"
            )
        perplexity.set_yscale("log")
        perplexity.set_ylabel("perplexity, full softmax")
    loss.legend(handles=lines, fontsize=8)
    figure.savefig(output)


def main() -> int:
    """Draw it; 3 where the run can't be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curve", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="RUN/training", help="of `elmo-store train --output RUN`")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help=".svg, .png or .pdf (required)")
    args = parser.parse_args()
    try:
        draw(args.folder, args.output)
    except (OSError, ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
