"""What a probe found: a Markdown table, differences with their noise, bars of s and γ, a figure, JSON.

Only `plot` needs Matplotlib (the extra "plot").
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pipeline.probing.features import LEARNED_MIX
from pipeline.probing.scores import Counts, Difference, Metric, paired_bootstrap
from pipeline.probing.senses import SenseRun
from pipeline.probing.tagger import TaggingRun

SCORE_NAMES = {"accuracy": "accuracy", "span-f1": "F1"}

COLOURS = ("#0b6fb8", "#d1600f", "#128a63", "#b0508f", "#8a6d00")  # told apart by the colour-blind
BAR_WIDTH = 30  # characters of the longest bar


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of a value over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def sd(self) -> float | None:
        """With n - 1 in the denominator; None of a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def numbers(self) -> dict[str, float | None]:
        """As JSON."""
        return {"mean": self.mean, "sd": self.sd}

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
        rows: feature → a spread for each column; None where a column does not know the feature.
        runs: the single trainings or foldings, as JSON.
        differences: feature and another → how far the first is ahead, by a paired bootstrap over the test sentences.
    """

    task: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[Spread | None, ...]]
    mixes: Mixes | None
    runs: tuple[dict[str, Any], ...]
    differences: dict[tuple[str, str], Difference] = field(default_factory=dict)


def tagging_result(
    task: str,
    metric: Metric,
    runs: Sequence[TaggingRun],
    *,
    baselines: Mapping[str, Counts] | None = None,
    control: Sequence[TaggingRun] = (),
    logistic: Mapping[str, Counts] | None = None,
) -> Result:
    """Trainings as a result; the mixes are those of the feature "mix".

    Args:
        baselines: guesses by name, the table's first rows.
        control: trainings on the control task: two columns more, their accuracy and the selectivity (score less that).
        logistic: feature → counts of a logistic regression: one column more.
    """
    names = _in_order(run.feature for run in runs)
    score = {name: Spread(tuple(run.score for run in runs if run.feature == name)) for name in names}
    columns = [SCORE_NAMES[metric]]
    rows: dict[str, list[Spread | None]] = {name: [Spread((found.score,))] for name, found in (baselines or {}).items()}
    rows |= {name: [score[name]] for name in names}
    if control:
        memorised = {run.feature: run.score for run in control}
        columns += ["control task", "selectivity"]
        for name, row in rows.items():
            known = name in memorised
            row += [Spread((memorised[name],)), Spread((score[name].mean - memorised[name],))] if known else [None, None]
    if logistic:
        columns.append("logistic regression")
        for name, row in rows.items():
            row.append(Spread((logistic[name].score,)) if name in logistic else None)
    learned = [run for run in runs if run.feature == LEARNED_MIX and run.s is not None and run.gamma is not None]
    mixes = None
    if learned:
        shares = tuple(Spread(values) for values in zip(*(run.s for run in learned if run.s), strict=True))
        mixes = Mixes(shares, Spread(tuple(run.gamma for run in learned if run.gamma is not None)))
    names_kept = ("feature", "seed", "score", "seconds", "w", "s", "gamma")
    plain = tuple({name: getattr(run, name) for name in names_kept} for run in runs)
    return Result(task, tuple(columns), {name: tuple(row) for name, row in rows.items()}, mixes, plain, _differences(runs))


def _differences(runs: Sequence[TaggingRun]) -> dict[tuple[str, str], Difference]:
    """The learned mix less each other feature, and each layer less the one below it; counts summed over seeds."""
    summed: dict[str, Counts] = {}
    for run in runs:
        summed[run.feature] = summed[run.feature] + run.counts if run.feature in summed else run.counts
    layers = [name for name in summed if name == "x" or name.startswith("layer")]
    pairs = list(itertools.pairwise(reversed(layers)))
    if LEARNED_MIX in summed:
        pairs = [(LEARNED_MIX, name) for name in summed if name != LEARNED_MIX] + pairs
    return {(one, other): paired_bootstrap(summed[one], summed[other]) for one, other in pairs}


def sense_result(task: str, runs: Sequence[SenseRun]) -> Result:
    """Foldings as a result with two columns."""
    rows: dict[str, tuple[Spread | None, ...]] = {}
    for feature in _in_order(run.feature for run in runs):
        own = [run for run in runs if run.feature == feature]
        rows[feature] = (Spread(tuple(run.nearest for run in own)), Spread(tuple(run.averaged for run in own)))
    return Result(task, ("nearest occurrence", "nearest sense mean"), rows, None, tuple(asdict(run) for run in runs))


def text(results: Sequence[Result]) -> str:
    """The table of all tasks, then the differences and the learned mix of each that has them."""
    found = [markdown(results), *(part for result in results for part in (differences(result), bars(result)))]
    return "\n\n".join(filter(None, found))


def markdown(results: Sequence[Result]) -> str:
    """One table, in percent: a row for each feature, a column for each score of each task."""
    heads = [f"{result.task}, {column}" for result in results for column in result.columns]
    lines = [f"| feature | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for feature in _guesses_first(_in_order(feature for result in results for feature in result.rows)):
        cells = []
        for result in results:
            scores = result.rows.get(feature, (None,) * len(result.columns))
            cells += [score.text(100) if score else "–" for score in scores]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(result: Result) -> str:
    """The differences of a task in points, each with its interval and what it amounts to; empty where there are none."""
    if not result.differences:
        return ""
    lines = [f"{result.task}: differences in points, 95% of a paired bootstrap over the test sentences"]
    width = max(len(f"{one} - {other}") for one, other in result.differences)
    for (one, other), found in result.differences.items():
        interval = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
        lines.append(f"  {f'{one} - {other}':<{width}}  {100 * found.mean:+6.2f}  {interval:>16}  {found.verdict}")
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
    """The learned s of every task as shares of one bar, and γ on an axis of its own, with standard deviations: .svg, .png, .pdf.

    ImportError without Matplotlib; ValueError if no result has a learned mix or the file's ending is unknown.
    """
    from matplotlib.figure import Figure

    learned = [(result.task, result.mixes) for result in results if result.mixes is not None]
    if not learned:
        raise ValueError("no learned mix to plot: probe the feature 'mix'")
    figure = Figure(figsize=(8.4, 1.0 + 0.42 * len(learned)), layout="constrained")
    shares, scale = figure.subplots(1, 2, width_ratios=(3, 1))
    rows, left = np.arange(len(learned)), np.zeros(len(learned))
    for layer, name in enumerate(_layer_names(max((mixes for _, mixes in learned), key=lambda mixes: len(mixes.s)))):
        spreads = [mixes.s[layer] if layer < len(mixes.s) else Spread((0.0,)) for _, mixes in learned]
        widths, colour = np.asarray([s.mean for s in spreads]), COLOURS[layer % len(COLOURS)]
        bars = shares.barh(rows, widths, left=left, height=0.66, color=colour, label=name, edgecolor="white", linewidth=1)
        texts = [s.text() if s.mean > 0.16 else f"{s.mean:.2f}" if s.mean > 0.06 else "" for s in spreads]
        shares.bar_label(bars, texts, label_type="center", color="white", fontsize=8)
        left += widths
    gammas = [mixes.gamma for _, mixes in learned]
    means, deviations = [gamma.mean for gamma in gammas], [gamma.sd or 0.0 for gamma in gammas]
    bars = scale.barh(rows, means, xerr=deviations, height=0.66, color="#8a94a0", capsize=2)
    scale.bar_label(bars, [gamma.text() for gamma in gammas], padding=4, fontsize=8)
    for panel, title, right in ((shares, "s: shares of the layers", 1.0), (scale, "γ", 1.5 * max(means))):
        panel.set_title(title, fontsize=10, loc="left")
        panel.set(xlim=(0, right), xticks=[], yticks=[], ylim=(len(learned) - 0.5, -0.5))
        panel.spines[["top", "right", "bottom"]].set_visible(False)
    shares.set_yticks(rows, [task for task, _ in learned])
    shares.tick_params(length=0)
    figure.legend(*shares.get_legend_handles_labels(), loc="outside lower left", ncols=6, frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every task with means, standard deviations and single runs; scores 0 … 1."""
    return [
        {
            "task": result.task,
            "scores": {
                feature: {
                    column: spread.numbers for column, spread in zip(result.columns, spreads, strict=True) if spread is not None
                }
                for feature, spreads in result.rows.items()
            },
            "mix": result.mixes and {"s": [s.numbers for s in result.mixes.s], "gamma": result.mixes.gamma.numbers},
            "differences": [
                {"feature": one, "less": other, **asdict(difference), "verdict": difference.verdict}
                for (one, other), difference in result.differences.items()
            ],
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


def _guesses_first(names: Sequence[str]) -> list[str]:
    """Baselines before features, each in its order; a task may have a baseline that the first one lacks."""
    return sorted(names, key=lambda name: not name.startswith("most frequent"))
