"""The report's pictures, one by one: ``store.plot.norms()``. Draws with Matplotlib (extra ``plot``) what `figures` works out.

Colours are the theme's: in the SVG they are CSS variables with the light theme's value as a fallback, so that one picture
serves light, dark and paper.
"""

import html
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo_store.figures import vectors
from elmo_store.figures.gather import StoreFigures, gather
from elmo_store.figures.text import LENGTH_EDGES
from elmo_store.notebook import visible
from elmo_store.reading.store import StoreReader

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A colour as Matplotlib draws it → the CSS variable that stands for it. Series colours can be told apart by the colour-blind.
INK, FAINT, PAPER = "#1b1f24", "#8a94a0", "#fefefe"
SERIES = ("#0b6fb8", "#d1600f", "#128a63", "#b0508f", "#8a6d00", "#4a55c4", "#c23a3a")
VARIABLES = {INK: "--ink", FAINT: "--faint", PAPER: "--paper"} | {colour: f"--series-{i}" for i, colour in enumerate(SERIES)}
WIDTH = 7.2  # inches
LABEL = 40  # characters of a word in a picture


@dataclass(frozen=True)
class Picture:
    """One drawn picture. In a notebook it shows itself.

    Attributes:
        name, title: what it is called.
        expected: what is to be seen in a sound store. bad_sign: what would be a reason to look closer.
        figure: Matplotlib's.
        numbers: what is drawn, as rows of a table, its head first: for those who can't see the picture.
    """

    name: str
    title: str
    expected: str
    bad_sign: str
    figure: "Figure"
    numbers: tuple[tuple[str, ...], ...]

    def svg(self) -> str:
        """The picture as an SVG element, to stand in an HTML page: its ids begin with its name, its colours are variables."""
        sink = io.StringIO()
        with _style(self.name):
            self.figure.savefig(sink, format="svg", metadata={"Date": None})
        text = sink.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r'\bid="([^"]+)"', rf'id="{self.name}-\1"', text)
        text = re.sub(r'href="#([^"]+)"', rf'href="#{self.name}-\1"', text)
        text = re.sub(r"url\(#([^)]+)\)", rf"url(#{self.name}-\1)", text)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        for colour, variable in VARIABLES.items():
            text = text.replace(colour, f"var({variable}, {colour})")
        label = f'role="img" aria-label="{html.escape(self.title)}"'
        return re.sub(r"<svg ", f"<svg {label} ", text, count=1)

    _repr_svg_ = svg

    def save(self, path: str) -> None:
        """Write it to a file: .svg, .png, .pdf."""
        with _style(self.name):
            self.figure.savefig(path, dpi=150)


class StorePlots:
    """``store.plot``: the report's pictures by name, over one sample that is read when the first is asked for."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store

    @cached_property
    def figures(self) -> StoreFigures:
        """The numbers behind the pictures."""
        return gather(self._store)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *PICTURES]

    def __getattr__(self, name: str) -> Callable[[], Picture]:
        if name not in PICTURES:
            raise AttributeError(f"there is no picture {name!r}; there are {', '.join(PICTURES)}")
        return lambda: draw(name, self.figures)


def draw(name: str, figures: StoreFigures) -> Picture:
    """Draw one picture. ImportError without Matplotlib, naming the extra; ValueError if the store has nothing to draw there."""
    drawing = PICTURES[name]
    if not drawing.applies(figures):
        raise ValueError(f"{figures.url} has nothing to show as {name}: {drawing.title}")
    with _style(name):
        figure, numbers = drawing.draw(figures)
    return Picture(name, drawing.title, drawing.expected, drawing.bad_sign, figure, tuple(map(tuple, numbers)))


@contextmanager
def _style(name: str) -> Iterator[None]:
    """The theme; without warnings about fonts.

    ``system-ui`` is the reader's font: Matplotlib can't find it here and need not, nor need its own have every letter.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ImportError("pictures need Matplotlib: pip install '.[plot]' in elmo-store's checkout") from error
    settings: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 9.5,
        "font.sans-serif": ["system-ui", "DejaVu Sans"], "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT,
        "xtick.color": INK, "ytick.color": INK, "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none",
        "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10, "legend.frameon": False,
        "text.parse_math": False,
    }  # fmt: skip
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with mpl.rc_context(settings), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
            yield
    finally:
        log.setLevel(level)


def _axes(n: int = 1, height: float = 2.6) -> tuple["Figure", "list[Axes]"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(1, n, squeeze=False)[0])


Drawn = tuple["Figure", list[tuple[str, ...]]]


def _speed(figures: StoreFigures) -> Drawn:
    job = figures.job
    figure, (axes,) = _axes()
    hours = float(job.hours[-1])
    unit, factor = ("hours", 1) if hours > 3 else ("minutes", 60) if hours > 0.05 else ("seconds", 3600)
    times = job.hours * factor
    axes.stairs(job.tokens_per_second, np.concatenate([[0.0], times]), fill=True, color=SERIES[0])
    axes.set_xlim(0, times[-1])
    axes.set_xlabel(f"{unit} since the first shard was begun")
    axes.set_ylabel("tokens a second")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    rows = [(f"{time:.1f}", f"{rate:,.0f}") for time, rate in zip(times, job.tokens_per_second, strict=True)]
    return figure, [(unit, "tokens a second, all workers"), *rows]


def _bars(names: list[str], values: list[float], label: str, form: str = "{:,.0f}") -> Drawn:
    figure, (axes,) = _axes(height=0.5 + 0.19 * max(2, len(names)))
    rows = np.arange(len(names))
    bars = axes.barh(rows, values, color=SERIES[0], height=0.7)
    axes.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize=8)
    axes.set_yticks(rows, [visible(name[:LABEL]) for name in names])
    axes.set_ylim(max(2, len(names)) - 0.45, -0.55)
    axes.spines["left"].set_bounds(-0.5, len(names) - 0.5)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)
    axes.set_xticks([])  # each bar has its number
    axes.spines["bottom"].set_visible(False)
    axes.set_xlabel(label)
    return figure, [("", label), *((name, form.format(value)) for name, value in zip(names, values, strict=True))]


def _workers(figures: StoreFigures) -> Drawn:
    shown = list(figures.job.shards_by_worker.items())[:24]
    return _bars([name for name, _ in shown], [float(count) for _, count in shown], "shards written")


def _lengths(figures: StoreFigures) -> Drawn:
    names = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(LENGTH_EDGES)] + [
        f"{LENGTH_EDGES[-1]:,} +"
    ]
    figure, (axes,) = _axes()
    counts = figures.text.lengths
    axes.bar(np.arange(len(names)), counts, color=SERIES[0])
    axes.set_xticks(np.arange(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("tokens in a sentence")
    axes.set_ylabel("sentences")
    return figure, [("tokens", "sentences"), *((name, f"{int(count):,}") for name, count in zip(names, counts, strict=True))]


def _words(figures: StoreFigures) -> Drawn:
    return _bars([word for word, _ in figures.text.commonest], [float(count) for _, count in figures.text.commonest], "tokens")


def _scripts(figures: StoreFigures) -> Drawn:
    shown = list(figures.text.scripts.items())[:12]
    total = max(1, sum(figures.text.scripts.values()))
    return _bars([name for name, _ in shown], [100 * count / total for _, count in shown], "% of tokens", "{:.2f}")


def _norms(figures: StoreFigures) -> Drawn:
    names, quantiles = figures.manifest.states, vectors.norms_by_state(figures.vectors.states)
    figure, (axes,) = _axes(height=0.9 + 0.3 * len(names))
    rows_at = np.arange(len(names))
    axes.hlines(rows_at, quantiles[:, 0], quantiles[:, 4], color=FAINT, linewidth=2)
    axes.hlines(rows_at, quantiles[:, 1], quantiles[:, 3], color=SERIES[0], linewidth=7)
    axes.plot(quantiles[:, 2], rows_at, "|", color=PAPER, markersize=9, markeredgewidth=2)
    axes.set_yticks(rows_at, names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("norm of a vector: middle half (bar), 5th to 95th percentile (line), median (tick)")
    rows = [(name, *(f"{value:.3g}" for value in row)) for name, row in zip(names, quantiles, strict=True)]
    return figure, [("state", "5%", "25%", "50%", "75%", "95%"), *rows]


def _views(figures: StoreFigures) -> Mapping[str, vectors.Float]:
    return vectors.views_of(figures.vectors.states, figures.manifest.states, figures.manifest.kind)


def _positions(figures: StoreFigures) -> Drawn:
    means = vectors.norms_by_position(_views(figures), figures.vectors.position)
    figure, (axes,) = _axes()
    for index, (name, values) in enumerate(means.items()):
        axes.plot(np.arange(len(values)), values, color=SERIES[index % len(SERIES)], marker=".", label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("position in the sentence, from 0")
    axes.set_ylabel("mean norm")
    figure.legend(ncols=5, fontsize=8, loc="outside upper right")
    rows = [(str(i), *(f"{values[i]:.3g}" for values in means.values())) for i in range(vectors.POSITIONS)]
    return figure, [("place", *means), *rows]


def _cosines(figures: StoreFigures) -> Drawn:
    from matplotlib.colors import LinearSegmentedColormap

    names, cosines = figures.manifest.states, vectors.cosines_between_states(figures.vectors.states)
    figure, (axes,) = _axes(height=1.0 + 0.42 * len(names))
    shades = LinearSegmentedColormap.from_list("cosine", ["#c96a2b", "#f1f1f1", "#2f7fc1"])
    axes.imshow(cosines, vmin=-1, vmax=1, cmap=shades, aspect="auto")
    for i in range(len(names)):
        for j in range(len(names)):
            axes.text(j, i, f"{cosines[i, j]:.2f}", ha="center", va="center", fontsize=8, color="#111111")
    axes.set_xticks(np.arange(len(names)), names)
    axes.set_yticks(np.arange(len(names)), names)
    rows = [(name, *(f"{value:.2f}" for value in row)) for name, row in zip(names, cosines, strict=True)]
    return figure, [("", *names), *rows]


def _anisotropy(figures: StoreFigures) -> Drawn:
    cosines = vectors.anisotropy(_views(figures))
    return _bars(list(cosines), list(cosines.values()), "mean cosine of random pairs of tokens", "{:.3f}")


def _maps(figures: StoreFigures) -> Drawn:
    views = _views(figures)
    figure, panels = _axes(len(views), height=2.9)
    kinds = np.array([vectors.kind_of_token(token) for token in figures.vectors.token])
    rows: list[tuple[str, ...]] = []
    for axes, (name, values) in zip(panels, views.items(), strict=True):
        plane = vectors.pca_map(values)
        for index, kind in enumerate(vectors.TOKEN_KINDS):
            these = plane.points[kinds[plane.rows] == kind]
            if len(these):
                axes.plot(these[:, 0], these[:, 1], ".", markersize=3.5, color=SERIES[index], label=kind, alpha=0.75)
        axes.set_title(f"{name}: {100 * sum(plane.explained):.0f}% of the variance", fontsize=9)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.set_xticks([])
        axes.set_yticks([])
        rows.append((name, *(f"{100 * share:.1f}%" for share in plane.explained)))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=5, loc="outside lower center", fontsize=8, markerscale=2)
    return figure, [("", "first component", "second component"), *rows]


def _weights(figures: StoreFigures) -> Drawn:
    mix = figures.manifest.mix
    sets = mix.weight_sets if mix else ()
    figure, (shares, gammas) = _axes(2, height=max(1.6, 0.9 + 0.32 * len(sets)))
    rows_at = np.arange(len(sets))
    left = np.zeros(len(sets))
    for layer in range(max((len(weight_set.s) for weight_set in sets), default=0)):
        values = np.array([weight_set.s[layer] for weight_set in sets])
        shares.barh(rows_at, values, left=left, color=SERIES[layer % len(SERIES)], label=vectors.layer_name(layer))
        left += values
    shares.set_yticks(rows_at, [weight_set.name for weight_set in sets])
    shares.invert_yaxis()
    shares.set_xlabel("share s of each layer (sums to 1)")
    bars = gammas.barh(rows_at, [weight_set.gamma for weight_set in sets], color=FAINT)
    gammas.bar_label(bars, [f"{weight_set.gamma:.3g}" for weight_set in sets], padding=3, fontsize=8)
    gammas.set_yticks(rows_at, [""] * len(sets))
    gammas.invert_yaxis()
    gammas.margins(x=0.2)
    gammas.set_xlabel("γ")
    figure.legend(*shares.get_legend_handles_labels(), ncols=4, loc="outside upper left", fontsize=8)
    rows = [(weight_set.name, *(f"{value:.4f}" for value in weight_set.s), f"{weight_set.gamma:.4f}") for weight_set in sets]
    n_layers = max((len(weight_set.s) for weight_set in sets), default=0)
    return figure, [("set", *(vectors.layer_name(layer) for layer in range(n_layers)), "γ"), *rows]


@dataclass(frozen=True)
class Drawing:
    """How a picture is drawn, and how to read it."""

    title: str
    expected: str
    bad_sign: str
    draw: Callable[[StoreFigures], Drawn]
    applies: Callable[[StoreFigures], Any] = lambda _: True


def _has_rows(figures: StoreFigures) -> bool:
    return len(figures.vectors.row) > 1


def _has_states(figures: StoreFigures) -> bool:
    return _has_rows(figures) and figures.manifest.kind == "states"


# In the order of the report.
PICTURES: Mapping[str, Drawing] = {
    "speed": Drawing(
        "Tokens a second over time", "a level line once the model is loaded; gaps are pauses between runs",
        "a rate that falls as the job goes on, or long stretches at a fraction of it: a worker was lost, or storage is slow",
        _speed, lambda figures: len(figures.job.hours),
    ),
    "workers": Drawing(
        "Shards by worker", "every worker wrote about as many", "one that wrote far fewer: it started late, died, or is slower",
        _workers, lambda figures: figures.job.shards_by_worker,
    ),
    "lengths": Drawing(
        "Lengths of sentences", "one hump, for prose between 8 and 48 tokens",
        "much at 1 (a word a line: was the text meant as documents?) or above 256 (sentences were not split)", _lengths,
    ),
    "words": Drawing(
        "Commonest words", "articles, prepositions, commas and full stops", "words with punctuation attached (not tokenised), "
        "markup, or a word that no text of this kind repeats so often", _words, lambda figures: figures.text.commonest,
    ),
    "scripts": Drawing(
        "Scripts", "the script that the model was trained on, and \"none\" (digits, punctuation) at 10 to 20%",
        "a script that the model never saw: its vectors are arbitrary", _scripts, lambda figures: figures.text.scripts,
    ),
    "weights": Drawing(
        "s and γ of each weight set", "what the task learned: s above 0 for several layers",
        "one layer with all of s, or a γ far from those of other tasks on the same model", _weights,
        lambda figures: figures.manifest.mix,
    ),
    "norms": Drawing(
        "Norms by state", "bars apart from zero; states of one layer, forward and backward, alike",
        "a state at zero, one direction far from the other, or lines a hundred times as long as the bar", _norms, _has_rows,
    ),
    "positions": Drawing(
        "Norms by position in the sentence", "level from the second or third word on, and near that at the first",
        "a first word far off the rest: the start is cold (start state zero), or belongs to another model", _positions, _has_rows,
    ),
    "cosines": Drawing(
        "Cosine between the states of a token", "1 on the diagonal; forward and backward of one layer nearly unrelated",
        "two different states at 1: a layer was written twice", _cosines, _has_states,
    ),
    "anisotropy": Drawing(
        "Anisotropy", "above 0 and well below 1, for ELMo 0.05 to 0.5", "near 1: all vectors point one way, cosines say little",
        _anisotropy, _has_rows,
    ),
    "maps": Drawing(
        "Maps of a sample", "kinds of token in regions of their own, the clearer the lower the layer",
        "a single clump with a few points far away, or two components with nearly all of the variance", _maps, _has_rows,
    ),
}  # fmt: skip
