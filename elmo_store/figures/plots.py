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
from elmo_store.figures.gather import StoreFigures, evenly, gather
from elmo_store.figures.text import LENGTH_EDGES
from elmo_store.format.fields import TOKEN
from elmo_store.format.layout import have_layers
from elmo_store.notebook import visible
from elmo_store.reading.store import StoreReader

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A colour as Matplotlib draws it → the CSS variable that stands for it. Series colours can be told apart by the colour-blind.
INK, FAINT, PAPER = "#1b1f24", "#8a94a0", "#fefefe"
SERIES = ("#0b6fb8", "#d1600f", "#128a63", "#b0508f", "#8a6d00", "#4a55c4", "#c23a3a")
VARIABLES = {INK: "--ink", FAINT: "--faint", PAPER: "--paper"} | {colour: f"--series-{i}" for i, colour in enumerate(SERIES)}
WIDTH, NARROW = 7.2, 3.6  # inches: on a screen or on paper, on a phone
ALT_ROWS = 12  # of a picture's numbers, in its label
LENGTHS_DRAWN = 0.99  # of the sentences
MOST_FIELDS = 6  # of numbers, that are drawn
LEAST_CALLS = 10  # of the engine, that make a line
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

    def svg(self, width: float = WIDTH) -> str:
        """The picture as an SVG element of so many inches, to stand in an HTML page.

        Its ids begin with its name and width, its colours are variables, its label says its numbers.
        """
        sink = io.StringIO()
        with _style(self.name):
            self.figure.set_figwidth(width)  # what is in it is laid out as it is saved
            self.figure.savefig(sink, format="svg", metadata={"Date": None})
            self.figure.set_figwidth(WIDTH)
        text = sink.getvalue()
        text = text[text.index("<svg") :]
        prefix = f"{self.name}-{10 * width:.0f}"
        text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
        text = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', text)
        text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        for colour, variable in VARIABLES.items():
            text = text.replace(colour, f"var({variable}, {colour})")
        label = f'role="img" aria-label="{html.escape(self.alt)}"'
        return text.replace("<svg ", f"<svg {label} ", 1)

    @property
    def alt(self) -> str:
        """What the picture says, in words: its title and its numbers, some of them where there are many."""
        head, *rows = self.numbers
        said = [f"{visible(row[0])}: " + ", ".join(map(" ".join, zip(head[1:], row[1:], strict=True))) for row in rows]
        few = "; ".join(said[i] for i in evenly(len(said), ALT_ROWS))
        return f"{self.title}. {few}" + (f"; {len(said)} rows in all, in the table." if len(said) > ALT_ROWS else ".")

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
        "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlesize": "medium", "axes.labelsize": "medium", "xtick.labelsize": "medium",
        "ytick.labelsize": "medium", "legend.fontsize": "medium", "legend.frameon": False,
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


def _legend(figure: "Figure", axes: "Axes", where: Any, **options: Any) -> None:
    """What the things in ``axes`` are called, where there are two or more to tell apart; in as many lines as a phone needs."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = 3 if sum(map(len, labels)) < 32 else 2 if sum(map(len, labels)) < 34 else 1
        figure.legend(handles, labels, ncols=columns, loc=where, **options)


Drawn = tuple["Figure", list[tuple[str, ...]]]


def _speed(figures: StoreFigures) -> Drawn:
    job = figures.job
    figure, (axes,) = _axes()
    hours = float(job.hours[-1])
    unit, factor = ("hours", 1) if hours > 3 else ("minutes", 60) if hours > 0.05 else ("seconds", 3600)
    times = job.hours * factor
    axes.plot(times, job.tokens_per_second, color=SERIES[0])
    axes.set_xlim(0, times[-1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{unit} since the first shard was started")
    axes.set_ylabel("tokens a second")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    rows = [(f"{time:.1f}", f"{rate:,.0f}") for time, rate in zip(times, job.tokens_per_second, strict=True)]
    return figure, [(unit, "tokens a second, all workers"), *rows]


def _bars(names: list[str], values: list[float], label: str, form: str = "{:,.0f}") -> Drawn:
    figure, (axes,) = _axes(height=0.5 + 0.19 * len(names))
    rows = np.arange(len(names))
    bars = axes.barh(rows, values, color=SERIES[0], height=0.7)
    axes.bar_label(bars, [form.format(value) for value in values], padding=3)
    axes.set_yticks(rows, [visible(name[:LABEL]) for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
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
    """Sentences for each length, bin by bin; the few that are longest have no room, and are told."""
    names = [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(LENGTH_EDGES)]
    names.append(f"{LENGTH_EDGES[-1]:,} +")
    counts, widths = figures.text.lengths, np.diff(LENGTH_EDGES)
    n_bins = min(len(widths), int(np.searchsorted(np.cumsum(counts), LENGTHS_DRAWN * counts.sum())) + 1)
    figure, (axes,) = _axes()
    axes.stairs(counts[:n_bins] / widths[:n_bins], LENGTH_EDGES[: n_bins + 1], fill=True, color=SERIES[0])
    axes.set_xlim(0, LENGTH_EDGES[n_bins])
    axes.set_xlabel(f"tokens in a sentence ({counts[n_bins:].sum():,} sentences are longer)")
    axes.set_ylabel("sentences of each length")
    return figure, [
        ("tokens", "sentences", "of each length"),
        *(
            (name, f"{count:,}", f"{count / width:,.1f}" if width else "")
            for name, count, width in zip(names, counts.tolist(), [*widths.tolist(), 0], strict=True)
            if count
        ),
    ]


def _numbers(figures: StoreFigures) -> Drawn:
    """A histogram of each field, one below the other."""
    from matplotlib.figure import Figure

    shown = figures.numbers[:MOST_FIELDS]
    figure = Figure(figsize=(WIDTH, 1.8 * len(shown)), layout="constrained")
    rows = []
    for axes, one in zip(figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown, strict=True):
        axes.stairs(one.counts, one.edges, fill=True, color=SERIES[0])
        axes.set_xlabel(visible(one.field.name[:LABEL]))
        axes.set_ylabel("tokens" if one.field.per == TOKEN else "sentences")
        bins = zip(pairwise(one.edges), one.counts, strict=True)
        rows += [(f"{one.field.name}: {low:g} to {high:g}", f"{count:,}") for (low, high), count in bins if count]
    return figure, [("field and range", "sentences or tokens"), *rows]


def _words(figures: StoreFigures) -> Drawn:
    return _bars([word for word, _ in figures.text.commonest], [float(count) for _, count in figures.text.commonest], "tokens")


def _scripts(figures: StoreFigures) -> Drawn:
    total = max(1, sum(figures.text.scripts.values()))
    shares = {name: 100 * count / total for name, count in figures.text.scripts.items()}
    shown = [name for name, share in shares.items() if share >= 0.005][:12]
    return _bars(shown, [shares[name] for name in shown], "% of tokens", "{:.2f}")


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
    axes.set_xlabel("norm of a vector: median (tick),\nmiddle half (bar), 5th to 95th percentile (line)")
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
    _legend(figure, axes, "outside upper right")
    there = np.flatnonzero(np.isfinite(next(iter(means.values()))))
    rows = [(str(i), *(f"{values[i]:.3g}" for values in means.values())) for i in there.tolist()]
    return figure, [("place", *means), *rows]


def _similarity(figures: StoreFigures) -> Drawn:
    """Two measures of how far a layer is of its context, each less what any two vectors have in common."""
    sample, views = figures.vectors, _views(figures)
    occurrences = list(vectors.occurrences(sample.token).values())
    rows = []
    for name, values in views.items():
        alike, within = vectors.self_similarity(values, occurrences), vectors.intra_sentence_similarity(values, sample.sentence)
        rows.append((name, vectors.anisotropy(values), alike, within))
    figure, (axes,) = _axes()
    numbers = np.array([row[1:] for row in rows])  # [views, 3]
    for column, label in ((1, "word's occurrences"), (2, "word and sentence")):
        axes.plot(numbers[:, column] - numbers[:, 0], "-o", color=SERIES[column - 1], label=label)
    axes.set_xticks(np.arange(len(views)), list(views))
    axes.set_xlim(-0.3, len(views) - 0.7)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_ylabel("cosine minus anisotropy")
    _legend(figure, axes, "outside upper right")
    head = ("", "self-similarity", "within sentences", "anisotropy", "self-similarity minus it", "within sentences minus it")
    table = [
        (name, *(f"{value:z.3f}" for value in (alike, within, any_two, alike - any_two, within - any_two)))
        for name, any_two, alike, within in rows
    ]
    return figure, [head, *table]


def _cka(figures: StoreFigures) -> Drawn:
    from matplotlib.colors import LinearSegmentedColormap

    names, members = list(figures.manifest.states), np.eye(len(figures.manifest.states))
    if figures.manifest.kind == "states" and have_layers(names):
        n_layers = (len(names) + 1) // 2
        layers = [[1.0 if (state + 1) // 2 == layer else 0.0 for state in range(len(names))] for layer in range(1, n_layers)]
        members = np.concatenate([members, layers])  # layer 0 is x
        names += [vectors.layer_name(layer) for layer in range(1, n_layers)]
    similarity = vectors.linear_cka(figures.vectors.states, members)
    figure, (axes,) = _axes(height=1.0 + 0.36 * len(names))
    shades = LinearSegmentedColormap.from_list("cka", ["#f1f1f1", "#2f7fc1"])
    axes.imshow(similarity, vmin=0, vmax=1, cmap=shades, aspect="auto")
    for i, j in np.ndindex(similarity.shape):
        axes.text(j, i, f"{similarity[i, j]:z.2f}", ha="center", va="center", color="#111111")
    axes.set_xticks(np.arange(len(names)), names, rotation=90)
    axes.set_yticks(np.arange(len(names)), names)
    rows = [(name, *(f"{value:z.2f}" for value in row)) for name, row in zip(names, similarity, strict=True)]
    return figure, [("", *names), *rows]


def _anisotropy(figures: StoreFigures) -> Drawn:
    """The mean cosine of each state with what a few dimensions add to it, beside their share of the variance."""
    names, few = list(figures.manifest.states), f"{vectors.DOMINANT} dimensions"
    shares = np.array([vectors.dominance(figures.vectors.states[:, i].astype(np.float32)) for i in range(len(names))])
    figure, (cosines, variance) = _axes(2, height=0.9 + 0.26 * len(names))
    rows_at = np.arange(len(names))
    cosines.barh(rows_at, shares[:, 0], color=FAINT, label="mean cosine of all pairs")
    cosines.barh(rows_at, shares[:, 1], color=SERIES[1], height=0.4, label=f"contributed by the top {few}")
    variance.barh(rows_at, 100 * shares[:, 2], color=SERIES[1], height=0.4)
    cosines.set_xlabel("mean cosine")
    variance.set_xlabel("% of the variance")
    cosines.set_yticks(rows_at, names)
    variance.set_yticks(rows_at, [""] * len(names))
    for axes in (cosines, variance):
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=4)
    _legend(figure, cosines, "outside upper left")
    rows = [(name, f"{a:z.3f}", f"{b:z.3f}", f"{100 * c:.1f}%") for name, (a, b, c) in zip(names, shares, strict=True)]
    return figure, [("", "mean cosine of all pairs", f"contributed by the top {few}", f"variance in the top {few}"), *rows]


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
        axes.set_title(f"{name}\n{100 * sum(plane.explained):.0f}% of variance")
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.set_xticks([])
        axes.set_yticks([])
        rows.append((name, *(f"{100 * share:.1f}%" for share in plane.explained)))
    _legend(figure, panels[0], "outside lower center", markerscale=2)
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
    shares.set_ylim(len(sets) - 0.5, -0.5)
    shares.set_xlabel("share s of each layer (sums to 1)")
    bars = gammas.barh(rows_at, [weight_set.gamma for weight_set in sets], color=FAINT)
    gammas.bar_label(bars, [f"{weight_set.gamma:.3g}" for weight_set in sets], padding=3)
    gammas.set_yticks(rows_at, [""] * len(sets))
    gammas.set_ylim(len(sets) - 0.5, -0.5)
    gammas.margins(x=0.2)
    gammas.set_xlabel("γ")
    _legend(figure, shares, "outside upper left")
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
        _speed, lambda figures: figures.job.calls >= LEAST_CALLS,
    ),
    "workers": Drawing(
        "Shards by worker", "every worker wrote about as many", "one that wrote far fewer: it started late, died, or is slower",
        _workers, lambda figures: len(figures.job.shards_by_worker) > 1,
    ),
    "lengths": Drawing(
        "Lengths of sentences", "one hump, for prose between 8 and 48 tokens",
        "much at 1 (a word a line: was the text meant as documents?) or above 256 (sentences were not split)", _lengths,
    ),
    "numbers": Drawing(
        "Numbers in kept fields", "the range and shape that your data has", "values at one end only, or far outside of the rest",
        _numbers, lambda figures: figures.numbers,
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
    "similarity": Drawing(
        "Self-similarity and intra-sentence similarity, corrected for anisotropy",
        "in layer 0, where a word has one vector, 1 minus the anisotropy; lower in higher layers, which depend on the context",
        "higher layers as high as layer 0 (the context has no effect), or near 0 (the word has none)",
        _similarity, _has_rows,
    ),
    "cka": Drawing(
        "Linear CKA between states and layers", "1 on the diagonal; neighbouring layers of one direction most alike",
        "two different ones at 1: a layer was written twice; near 0 throughout: a layer is noise", _cka, _has_states,
    ),
    "anisotropy": Drawing(
        "Anisotropy and dominant dimensions",
        "mean cosines well below 1 (0.05 to 0.5 for ELMo), to which many dimensions contribute",
        "near 1, or most of the cosine or variance from a few dimensions: cosines say little", _anisotropy, _has_rows,
    ),
    "maps": Drawing(
        "Maps of a sample", "kinds of token in regions of their own, the clearer the lower the layer",
        "a single clump with a few points far away, or two components with nearly all of the variance", _maps, _has_rows,
    ),
    "norms": Drawing(
        "Norms by state", "bars above zero; states of one layer, forward and backward, alike",
        "a state at zero, one direction far from the other, or lines a hundred times as long as the bar", _norms, _has_rows,
    ),
    "positions": Drawing(
        "Norms by position in the sentence", "level from the second or third word on, and near that at the first",
        "a first word far off the rest: the start is cold (start state zero), or belongs to another model", _positions, _has_rows,
    ),
}  # fmt: skip
