"""What a probe found: scores with their noise as a Markdown table, bars of s and γ, a figure, JSON.

Accuracy, and F1 of the spans that IOB2 labels mark, are both 2 · right / (gold + predicted), counted sentence by sentence, so
that a bootstrap can say whether two scores differ by more than their sentences do. Only `plot` needs Matplotlib.
"""

import itertools
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Metric = Literal["accuracy", "span-f1"]
SCORE_NAMES: dict[Metric, str] = {"accuracy": "accuracy", "span-f1": "F1"}
_IOB2 = re.compile(r"O|[BI]-.+")
_COVERAGE = 0.95  # of the interval
COLOURS = ("#0b6fb8", "#d1600f", "#128a63", "#b0508f", "#8a6d00")  # told apart by the colour-blind
LEARNED_MIX = "mix"  # the feature
BAR_WIDTH = 30  # characters of the longest bar


@dataclass(frozen=True, eq=False)
class Counts:
    """What a score is made of, for each sentence: int64 [sentences] each.

    Attributes:
        right: tokens, or spans, that are predicted as they are.
        gold: how many there are; predicted: how many were predicted.
    """

    right: npt.NDArray[np.int64]
    gold: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]

    @property
    def score(self) -> float:
        """Over all sentences, 0 … 1; 0 where nothing is right."""
        return float(_score(self.table().sum(0)))

    def table(self) -> npt.NDArray[np.int64]:
        """[sentences, 2]: right, gold + predicted."""
        return np.stack([self.right, self.gold + self.predicted], axis=1)

    def __add__(self, other: "Counts") -> "Counts":
        """Of two passes over the same sentences."""
        return Counts(self.right + other.right, self.gold + other.gold, self.predicted + other.predicted)


def counts(metric: Metric, gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Counts:
    """The counts of predicted labels beside the right ones, sentence by sentence."""
    rows = []
    for gs, ps in zip(gold, predicted, strict=True):
        if metric == "accuracy":
            rows.append((sum(g == p for g, p in zip(gs, ps, strict=True)), len(gs), len(ps)))
        else:
            true, guessed = spans(gs), spans(ps)
            rows.append((len(true & guessed), len(true), len(guessed)))
    right, n_gold, n_predicted = np.asarray(rows, np.int64).reshape(-1, 3).T
    return Counts(right, n_gold, n_predicted)


@dataclass(frozen=True)
class Difference:
    """A score less another on the same sentences, with the interval that holds 95% of the bootstrap's differences."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``ahead``, ``behind``, or ``within noise`` where the interval holds 0."""
        if self.low > 0:
            return "ahead"
        return "behind" if self.high < 0 else "within noise"


def paired_bootstrap(first: Counts, second: Counts, *, samples: int = 2000, seed: int = 0) -> Difference:
    """How far ``first`` is ahead of ``second``: sentences drawn with replacement, the same ones for both.

    It says what other test sentences of the same kind would do, not what other training seeds would: give counts summed
    over seeds. Source: Koehn 2004 (Statistical significance tests for machine translation evaluation).
    """
    pair = np.concatenate([first.table(), second.table()], axis=1)  # [sentences, 4]
    n = len(pair)
    chance = np.random.default_rng(seed)
    differences = []
    for _ in range(0, samples, 100):
        drawn = chance.multinomial(n, np.full(n, 1 / n), size=100) @ pair  # [100, 4]
        differences.append(_score(drawn[:, :2]) - _score(drawn[:, 2:]))
    tail = 100 * (1 - _COVERAGE) / 2
    low, high = np.percentile(np.concatenate(differences), [tail, 100 - tail])
    return Difference(first.score - second.score, float(low), float(high))


def _score(table: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """2 · right / (gold + predicted) of [..., 2]; 0 where there is nothing."""
    return np.asarray(2.0 * table[..., 0] / np.maximum(table[..., 1], 1))


def is_iob2(labels: Iterable[str]) -> bool:
    """True if all of ``labels`` are O, B-TYPE or I-TYPE, and not all are O."""
    distinct = set(labels)
    return all(_IOB2.fullmatch(label) for label in distinct) and distinct != {"O"}


def spans(labels: Sequence[str]) -> set[tuple[int, int, str]]:
    """(first, stop, type) of each span. I-TYPE that continues no span of its type begins one, as in CoNLL's own scorer."""
    marked, first, kind = set(), 0, ""
    for i, label in enumerate([*labels, "O"]):
        mark, _, this = label.partition("-")
        if kind and (mark != "I" or this != kind):
            marked.add((first, i, kind))
            kind = ""
        if mark in ("B", "I") and not kind:
            first, kind = i, this
    return marked


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


@dataclass(frozen=True)
class TaggingRun:
    """One training: its counts on the test set, γ, and w and s where the mix was learned (None where w is frozen).

    Of the forms without a mix (`projection`, `h`) γ is None too.
    """

    feature: str
    seed: int
    counts: Counts
    seconds: float
    w: tuple[float, ...] | None = None
    s: tuple[float, ...] | None = None
    gamma: float | None = None

    @property
    def score(self) -> float:
        """On the test set, 0 … 1."""
        return self.counts.score


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
    names = list(dict.fromkeys(run.feature for run in runs))
    score = {name: Spread(tuple(run.score for run in runs if run.feature == name)) for name in names}
    columns = [SCORE_NAMES[metric]]
    rows: dict[str, list[Spread | None]] = {name: [Spread((guess.score,))] for name, guess in (baselines or {}).items()}
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
    return {(feature, other): paired_bootstrap(summed[feature], summed[other]) for feature, other in pairs}


def layer_names(n_layers: int) -> list[str]:
    """x, then each layer."""
    return ["x", *(f"layer {j}" for j in range(1, n_layers))]


def text(results: Sequence[Result]) -> str:
    """The table of all tasks, then the differences and the learned mix of each that has them."""
    parts = [markdown(results), *(part for result in results for part in (differences(result), bars(result)))]
    return "\n\n".join(filter(None, parts))


def markdown(results: Sequence[Result]) -> str:
    """One table, in percent: a row for each feature, a column for each score of each task."""
    heads = [f"{result.task}, {column}" for result in results for column in result.columns]
    lines = [f"| feature | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    names = dict.fromkeys(feature for result in results for feature in result.rows)
    # Baselines before features: a task may have one that the first task lacks.
    for feature in sorted(names, key=lambda name: not name.startswith("most frequent")):
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
    pairs = {f"{feature} - {other}": difference for (feature, other), difference in result.differences.items()}
    width = max(map(len, pairs))
    for pair, difference in pairs.items():
        interval = f"[{100 * difference.low:+.2f}, {100 * difference.high:+.2f}]"
        lines.append(f"  {pair:<{width}}  {100 * difference.mean:+6.2f}  {interval:>16}  {difference.verdict}")
    return "\n".join(lines)


def bars(result: Result) -> str:
    """The learned s and γ of a task as bars of text; empty where nothing was learned."""
    if result.mixes is None:
        return ""
    gamma = result.mixes.gamma
    longest = max(1.0, gamma.mean)
    named = [*((f"s {name}", s) for name, s in zip(layer_names(len(result.mixes.s)), result.mixes.s, strict=True)), ("γ", gamma)]
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
    for layer, name in enumerate(layer_names(max(len(mixes.s) for _, mixes in learned))):
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
            "scores": {feature: _numbers(result.columns, spreads) for feature, spreads in result.rows.items()},
            "mix": result.mixes and {"s": [s.numbers for s in result.mixes.s], "gamma": result.mixes.gamma.numbers},
            "differences": [
                {"feature": feature, "less": other, **asdict(difference), "verdict": difference.verdict}
                for (feature, other), difference in result.differences.items()
            ],
            "runs": list(result.runs),
        }
        for result in results
    ]


def _numbers(columns: Sequence[str], spreads: Sequence[Spread | None]) -> dict[str, dict[str, float | None]]:
    return {column: spread.numbers for column, spread in zip(columns, spreads, strict=True) if spread is not None}


def weight_sets(result: Result) -> dict[str, dict[str, Any]]:
    """The learned mixes as `elmo-store mix --weights` reads them: one named set for each seed."""
    learned = [run for run in result.runs if run.get("w") is not None]
    return {f"seed{run['seed']}": {"w": list(run["w"]), "gamma": run["gamma"]} for run in learned}
