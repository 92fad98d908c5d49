"""``python -m benchmarks.curve RUN/training --output FILE.svg``: a training run's curve as a picture.

The sampled softmax's loss along the run, and, in a panel of its own, the full softmax's held-out perplexity at the points where
`--heldout-every` measured it: the two are not the same thing. Needs Matplotlib.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from model.training.run import CURVE, POINTS

DIRECTIONS = (("forward", "#0b6fb8", "-", "o"), ("backward", "#d1600f", "--", "s"))


def draw(folder: Path, output: Path) -> None:
    """Draw; OSError where there is no curve."""
    from matplotlib.figure import Figure

    curve = np.loadtxt(folder / CURVE, skiprows=1, ndmin=2)  # [reports, 5]: tokens, seconds, two losses, rate
    points = _points(folder / POINTS)  # [points, 3]: tokens, two perplexities
    figure = Figure(figsize=(8.0 if len(points) else 5.0, 3.0), layout="constrained")
    loss, *rest = figure.subplots(1, 2 if len(points) else 1, squeeze=False)[0]
    for column, (name, colour, line, _) in enumerate(DIRECTIONS, 2):
        loss.plot(curve[:, 0] / 1e6, curve[:, column], line, color=colour, label=name, linewidth=1.4)
    loss.set_title("loss of the sampled softmax, nats", fontsize=10, loc="left")
    for perplexity in rest:
        for column, (name, colour, line, mark) in enumerate(DIRECTIONS, 1):
            perplexity.plot(points[:, 0] / 1e6, points[:, column], line, color=colour, marker=mark, markersize=5, label=name)
        for i, (tokens, *both) in enumerate(points):
            values = dict.fromkeys(f"{value:.0f}" for value in both)
            away = 7 if i % 2 == 0 else -15  # points, in turn above and below, so that neighbours have room
            perplexity.annotate(", ".join(values), (tokens / 1e6, max(both)), (0, away), textcoords="offset points", ha="center")
        perplexity.set_title("held-out perplexity, full softmax", fontsize=10, loc="left")
        perplexity.set_xlim(loss.get_xlim())
        perplexity.set_ylim(0, 1.2 * points[:, 1:].max())
    for panel in (loss, *rest):
        panel.set_xlabel("million tokens")
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=9, loc="upper right" if panel is loss else "lower right")
    figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)


def _points(path: Path) -> npt.NDArray[np.float64]:
    """Tokens and the two perplexities of each measurement, [points, 3]; none where the run measured none."""
    rows = path.read_text(encoding="utf-8").splitlines()[1:] if path.is_file() else []
    cells = [line.split("\t") for line in rows]
    return np.asarray([[float(cell) for cell in (row[0], *row[2:4])] for row in cells]).reshape(-1, 3)


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
