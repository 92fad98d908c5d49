"""What a probe found: a Markdown table, bars of s and γ in text, the same as a figure, and JSON. May import this package.

Only `plot` needs Matplotlib (the extra "plot").
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.probing.senses import MOST_FREQUENT, SenseRun
from pipeline.probing.tagger import TaggingRun

BAR_WIDTH = 30  # characters of the longest bar


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of a value over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return math.fsum(self.values) / len(self.values)

    @property
    def sd(self) -> float | None:
        """With n - 1 in the denominator; None of a single value."""
        if len(self.values) < 2:
            return None
        return math.sqrt(math.fsum((v - self.mean) ** 2 for v in self.values) / (len(self.values) - 1))

    def text(self, scale: float = 1.0, digits: int = 2) -> str:
        """``97.31 ± 0.04``."""
        spread = "" if self.sd is None else f" ± {scale * self.sd:.{digits}f}"
        return f"{scale * self.mean:.{digits}f}{spread}"


@dataclass(frozen=True)
class Mixes:
    """What learned mixes came to, over seeds."""

    s: tuple[Spread, ...]
    gamma: Spread


@dataclass(frozen=True)
class Result:
    """One task's outcome.

    Attributes:
        task: its name in tables.
        columns: names of the scores, each 0 … 1.
        rows: feature → a spread for each column.
        runs: the single trainings or foldings, as JSON.
    """

    task: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[Spread, ...]]
    mixes: Mixes | None
    runs: tuple[dict[str, Any], ...]

    def mean(self, feature: str, column: int = 0) -> float:
        """The mean score of a feature, 0 … 1."""
        return self.rows[feature][column].mean


def tagging_result(task: str, metric: str, runs: Sequence[TaggingRun]) -> Result:
    """Trainings as a result; the mixes are those of the feature "mix"."""
    rows: dict[str, tuple[Spread, ...]] = {
        f: (Spread(tuple(run.score for run in runs if run.feature == f)),) for f in _in_order(r.feature for r in runs)
    }
    learned = [(run.s, run.gamma) for run in runs if run.s is not None and run.gamma is not None]
    mixes = None
    if learned:
        shares = tuple(Spread(values) for values in zip(*(s for s, _ in learned), strict=True))
        mixes = Mixes(shares, Spread(tuple(gamma for _, gamma in learned)))
    return Result(task, (metric,), rows, mixes, tuple(asdict(run) for run in runs))


def sense_result(task: str, runs: Sequence[SenseRun]) -> Result:
    """Foldings as a result with two columns."""
    rows: dict[str, tuple[Spread, ...]] = {}
    for feature in _in_order(run.feature for run in runs):
        own = [run for run in runs if run.feature == feature]
        rows[feature] = (Spread(tuple(run.nearest for run in own)), Spread(tuple(run.averaged for run in own)))
    return Result(task, ("nearest occurrence", "nearest sense mean"), rows, None, tuple(asdict(run) for run in runs))


def markdown(results: Sequence[Result]) -> str:
    """One table, in percent: a row for each feature, a column for each score of each task."""
    heads = [f"{result.task}, {column}" for result in results for column in result.columns]
    lines = [f"| feature | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for feature in _ranked({feature for result in results for feature in result.rows}):
        cells = []
        for result in results:
            scores = result.rows.get(feature)
            cells += [score.text(100) for score in scores] if scores else ["–"] * len(result.columns)
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join(lines)


def bars(result: Result) -> str:
    """The learned s and γ of a task as bars of text; empty where nothing was learned."""
    if result.mixes is None:
        return ""
    gamma = result.mixes.gamma
    longest = max(1.0, gamma.mean)
    named = [*((f"s {name}", s) for name, s in zip(_layer_names(result.mixes), result.mixes.s, strict=True)), ("γ", gamma)]
    width = max(len(name) for name, _ in named)
    lines = [f"{result.task}: learned mix"]
    for name, spread in named:
        top = longest if name == "γ" else 1.0
        filled = round(BAR_WIDTH * max(0.0, spread.mean) / top)
        lines.append(f"  {name:<{width}}  {'█' * filled:<{BAR_WIDTH}}  {spread.text(digits=3)}")
    return "\n".join(lines)


def plot(results: Sequence[Result], path: str) -> None:
    """The learned s and γ of every task as bars with their standard deviations, in a file (.svg, .png, .pdf).

    ImportError without Matplotlib; ValueError if no result has a learned mix or the file's ending is unknown.
    """
    from matplotlib.figure import Figure

    learned = [(result, result.mixes) for result in results if result.mixes is not None]
    if not learned:
        raise ValueError("no learned mix to plot: probe the feature 'mix'")
    figure = Figure(figsize=(1.2 + 3.2 * len(learned), 3.0), layout="constrained")
    panels = figure.subplots(1, len(learned), squeeze=False)[0]
    for panel, (result, mixes) in zip(panels, learned, strict=True):
        names = [*(f"s\n{name}" for name in _layer_names(mixes)), "γ"]
        spreads = [*mixes.s, mixes.gamma]
        colours = ["#4c72b0"] * len(mixes.s) + ["#c44e52"]
        panel.bar(names, [s.mean for s in spreads], yerr=[s.sd or 0.0 for s in spreads], color=colours, capsize=3)
        panel.set_title(result.task, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every task with means, standard deviations and single runs; scores 0 … 1."""
    return [
        {
            "task": result.task,
            "scores": {
                feature: {
                    column: {"mean": spread.mean, "sd": spread.sd} for column, spread in zip(result.columns, spreads, strict=True)
                }
                for feature, spreads in result.rows.items()
            },
            "mix": result.mixes
            and {
                "s": [{"mean": s.mean, "sd": s.sd} for s in result.mixes.s],
                "gamma": {"mean": result.mixes.gamma.mean, "sd": result.mixes.gamma.sd},
            },
            "runs": list(result.runs),
        }
        for result in results
    ]


def weight_sets(result: Result) -> dict[str, dict[str, Any]]:
    """The learned mixes as `elmo-store mix --weights` reads them: one named set for each seed."""
    learned = [run for run in result.runs if run.get("w") is not None]
    return {f"seed{run['seed']}": {"w": list(run["w"]), "gamma": run["gamma"]} for run in learned}


def _layer_names(mixes: Mixes) -> list[str]:
    return ["x", *(f"layer {j}" for j in range(1, len(mixes.s)))]


def _in_order(features: Iterable[str]) -> list[str]:
    """Each once, as first met."""
    return list(dict.fromkeys(features))


def _ranked(features: Iterable[str]) -> list[str]:
    """The baseline, x, the layers from below, average, mix."""
    ends = {MOST_FREQUENT: (0, ""), "x": (1, ""), "average": (3, ""), "mix": (4, "")}
    return sorted(features, key=lambda name: ends.get(name, (2, name)))
