"""The report's pictures. Draws with Matplotlib (extra ``plot``) what `figures` works out.

Colours are the theme's: in the SVG they are CSS variables with the light theme's value as a fallback, so that one picture
serves light, dark and paper.
"""

import html
import io
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo_store.figures import vectors
from elmo_store.figures.gather import StoreFigures
from elmo_store.figures.text import LENGTH_EDGES
from elmo_store.format.layout import have_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A colour as Matplotlib draws it → the CSS variable that stands for it. Series colours can be told apart by the colour-blind.
INK, FAINT, PAPER = "#1b1f24", "#8a94a0", "#fefefe"
SERIES = ("#0b6fb8", "#d1600f")
VARIABLES = {INK: "--ink", FAINT: "--faint", PAPER: "--paper"} | {
    colour: f"--series-{i}" for i, colour in enumerate(SERIES)
}
WIDTH = 7.2  # inches
FONT = "DejaVu Sans"  # Matplotlib's own; the page shows its reader's
LENGTHS_DRAWN = 0.99  # of the sentences


# Matplotlib's figure, and what is drawn as rows of a table, its head first: for those who can't see the picture.
Drawn = tuple["Figure", list[tuple[str, ...]]]


def draw(name: str, figures: StoreFigures) -> Drawn:
    """Draw one picture, which applies to the store. ImportError without Matplotlib."""
    with _style(name):
        return PICTURES[name].draw(figures)


def svg(name: str, figure: "Figure") -> str:
    """A picture as an SVG element, to stand in an HTML page: its ids begin with its name, its colours are variables."""
    sink = io.StringIO()
    with _style(name):
        figure.savefig(sink, format="svg", metadata={"Date": None})
    text = sink.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace(f"'{FONT}'", f"system-ui, '{FONT}'")
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable}, {colour})")
    title = html.escape(PICTURES[name].title)
    return text.replace("<svg ", f'<svg role="img" aria-label="{title}; its numbers follow." ', 1)


def _style(name: str) -> AbstractContextManager[None]:
    """The theme."""
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": FONT, "font.size": 9.5,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT,
        "xtick.color": INK, "ytick.color": INK, "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none",
        "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlesize": "medium", "axes.labelsize": "medium", "xtick.labelsize": "medium",
        "ytick.labelsize": "medium", "legend.fontsize": "medium", "legend.frameon": False,
        "text.parse_math": False,
    }  # fmt: skip
    return mpl.rc_context(settings)


def _axes(height: float = 2.6) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _lengths(figures: StoreFigures) -> Drawn:
    """Sentences for each length, bin by bin; the few that are longest have no room, and are told."""
    names = [
        str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(LENGTH_EDGES)
    ]
    names.append(f"{LENGTH_EDGES[-1]:,} +")
    counts, widths = figures.text.lengths, np.diff(LENGTH_EDGES)
    n_bins = min(
        len(widths), int(np.searchsorted(np.cumsum(counts), LENGTHS_DRAWN * counts.sum())) + 1
    )
    figure, axes = _axes()
    axes.stairs(
        counts[:n_bins] / widths[:n_bins], LENGTH_EDGES[: n_bins + 1], fill=True, color=SERIES[0]
    )
    axes.set_xlim(0, LENGTH_EDGES[n_bins])
    axes.set_xlabel(f"tokens in a sentence ({counts[n_bins:].sum():,} sentences are longer)")
    axes.set_ylabel("sentences of each length")
    return figure, [
        ("tokens", "sentences", "of each length"),
        *(
            (name, f"{count:,}", f"{count / width:,.1f}" if width else "")
            for name, count, width in zip(
                names, counts.tolist(), [*widths.tolist(), 0], strict=True
            )
            if count
        ),
    ]


def _norms(figures: StoreFigures) -> Drawn:
    names, quantiles = figures.manifest.states, vectors.norms_by_state(figures.vectors.states)
    figure, axes = _axes(height=0.9 + 0.3 * len(names))
    rows_at = np.arange(len(names))
    axes.hlines(rows_at, quantiles[:, 0], quantiles[:, 4], color=FAINT, linewidth=2)
    axes.hlines(rows_at, quantiles[:, 1], quantiles[:, 3], color=SERIES[0], linewidth=7)
    axes.plot(quantiles[:, 2], rows_at, "|", color=PAPER, markersize=9, markeredgewidth=2)
    axes.set_yticks(rows_at, names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)
    axes.set_xlabel(
        "norm of a vector: median (tick),\nmiddle half (bar), 5th to 95th percentile (line)"
    )
    rows = [
        (name, *(f"{value:.3g}" for value in row))
        for name, row in zip(names, quantiles, strict=True)
    ]
    return figure, [("state", "5%", "25%", "50%", "75%", "95%"), *rows]


def _similarity(figures: StoreFigures) -> Drawn:
    """Two measures of how far a layer is of its context, each less what any two vectors have in common."""
    sample, manifest = figures.vectors, figures.manifest
    kind = (
        manifest.kind if have_layers(manifest.states) else "mix"
    )  # of some states alone no layers can be made
    names, views = (
        vectors.layer_names(manifest.states, kind),
        vectors.layers_of(sample.states, kind).swapaxes(0, 1),
    )
    occurrences = list(vectors.occurrences(sample.token).values())
    rows = []
    for name, values in zip(names, views, strict=True):
        alike, within = (
            vectors.self_similarity(values, occurrences),
            vectors.intra_sentence_similarity(values, sample.sentence),
        )
        rows.append((name, vectors.anisotropy(values), alike, within))
    figure, axes = _axes()
    numbers = np.array([row[1:] for row in rows])  # [views, 3]
    for column, label in ((1, "word's occurrences"), (2, "word and sentence")):
        axes.plot(numbers[:, column] - numbers[:, 0], "-o", color=SERIES[column - 1], label=label)
    axes.set_xticks(np.arange(len(names)), names)
    axes.set_xlim(-0.3, len(names) - 0.7)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_ylabel("cosine minus anisotropy")
    figure.legend(loc="outside upper right", ncols=2)
    head = (
        "",
        "self-similarity",
        "within sentences",
        "anisotropy",
        "self-similarity minus it",
        "within sentences minus it",
    )
    table = [
        (
            name,
            *(
                f"{value:z.3f}"
                for value in (alike, within, any_two, alike - any_two, within - any_two)
            ),
        )
        for name, any_two, alike, within in rows
    ]
    return figure, [head, *table]


@dataclass(frozen=True)
class Drawing:
    """How a picture is drawn, and how to read it."""

    title: str  # what it is called
    expected: (
        str  # what is to be seen in a sound store. bad_sign: what would be a reason to look closer.
    )
    bad_sign: str
    draw: Callable[[StoreFigures], Drawn]
    least_rows: int = 2  # of the sample, that it needs

    def applies(self, figures: StoreFigures) -> bool:
        """Whether there is something to draw."""
        return len(figures.vectors.row) >= self.least_rows


# In the order of the report.
PICTURES: Mapping[str, Drawing] = {
    "lengths": Drawing(
        "Lengths of sentences", "one hump, for prose between 8 and 48 tokens",
        "much at 1 (a word a line: was the text meant as documents?) or above 256 (sentences were not split)", _lengths, 0,
    ),
    "similarity": Drawing(
        "Self-similarity and intra-sentence similarity, corrected for anisotropy",
        "in layer 0, where a word has one vector, 1 minus the anisotropy; lower in higher layers, which depend on the context",
        "higher layers as high as layer 0 (the context has no effect), or near 0 (the word has none)",
        _similarity,
    ),
    "norms": Drawing(
        "Norms by state", "bars above zero; states of one layer, forward and backward, alike",
        "a state at zero, one direction far from the other, or lines a hundred times as long as the bar", _norms,
    ),
}  # fmt: skip
