"""The report as one HTML page: what was gathered, drawn and explained, in one file that asks the network for nothing.

Whatever comes from the text (words, records, names) is escaped; the page has no script.
"""

import html
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from elmo_store.figures import plots
from elmo_store.figures.gather import StoreFigures
from elmo_store.format.words import WordLimit
from pipeline.cli.terminal import quantity

_TURNING = frozenset(
    [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
)  # the direction of text
STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


def page(figures: StoreFigures) -> str:
    """The whole report. ImportError without Matplotlib."""
    name = figures.url.rstrip("/").rpartition("/")[2] or figures.url
    sections = [
        ("vectors", "The vectors", sampled(figures), ("similarity", "norms")),
        ("text", "The text", text(figures), ("lengths",)),
        ("refused", "Refused records", refused(figures), ()),
        ("job", "The job", job(figures), ()),
    ]
    nav = "\n".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, *_ in sections)
    body = "\n".join(
        f'<section id="{anchor}" aria-labelledby="h-{anchor}"><h2 id="h-{anchor}">{title}</h2>\n{words}\n'
        f"{pictures(figures, names)}</section>"
        for anchor, title, words, names in sections
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,"><title>{shown(name)}: report of a store</title><style>{STYLE}</style></head>
<body><a class="skip" href="#main">to the report</a>
<header><h1>{shown(name)}</h1><p>{headline(figures)}</p>{key_figures(figures)}</header>
<nav aria-label="sections">{nav}</nav>
<main id="main">
{body}
</main></body></html>
"""


def shown(value: Any) -> str:
    """``value`` as text of the page: escaped, direction and control characters written as their codes, in its own direction."""
    return f"<bdi>{html.escape(visible(str(value)))}</bdi>"


def visible(text: str) -> str:
    """``text`` with control characters, and those that turn the direction of text, as their codes; it is not escaped."""
    return "".join(
        f"‹U+{ord(c):04X}›" if ord(c) in _TURNING or unicodedata.category(c) == "Cc" else c
        for c in text
    )


def headline(figures: StoreFigures) -> str:
    manifest = figures.manifest
    what = "mixed vectors" if manifest.kind == "mix" else "states"
    return (
        f"A store of {len(manifest.states)} {what} a token, {manifest.channels} numbers each in {manifest.dtype}, "
        f"made with {shown(manifest.model.name)}."
    )


def key_figures(figures: StoreFigures) -> str:
    counts = figures.manifest.sizes
    numbers = {
        "tokens": f"{counts.tokens:,}",
        "sentences": f"{counts.sentences:,}",
        "records refused": f"{counts.rejected:,}",
        "truncated words": f"{counts.words_cut:,}",
        "shards": f"{counts.shards:,}",
    }
    return (
        '<dl class="key">'
        + "".join(f"<div><dt>{name}</dt><dd>{n}</dd></div>" for name, n in numbers.items())
        + "</dl>"
    )


def table(rows: Iterable[Sequence[Any]], head: Sequence[Any] = ()) -> str:
    """Rows of escaped cells; the first cell of each is its heading."""
    top = (
        "<thead><tr>"
        + "".join(f'<th scope="col">{shown(cell)}</th>' for cell in head)
        + "</tr></thead>"
        if head
        else ""
    )
    body = "".join(
        f'<tr><th scope="row">{shown(row[0])}</th>'
        + "".join(f"<td>{shown(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<table class="n">{top}<tbody>{body}</tbody></table>'


def pictures(figures: StoreFigures, names: Iterable[str]) -> str:
    """The pictures that the store has something for, each with how to read it and its numbers as a table."""
    drawn = []
    for name in names:
        drawing = plots.PICTURES[name]
        if not drawing.applies(figures):
            continue
        figure, (head, *rows) = plots.draw(name, figures)
        drawn.append(
            f"<figure><h3>{html.escape(drawing.title)}</h3>{plots.svg(name, figure)}"
            f"<figcaption><p><b>Expected:</b> {html.escape(drawing.expected)}.</p>"
            f"<p><b>A bad sign:</b> {html.escape(drawing.bad_sign)}.</p></figcaption>"
            f"<details><summary>the numbers</summary>{table(rows, head)}</details></figure>"
        )
    return "\n".join(drawn)


def job(figures: StoreFigures) -> str:
    manifest = figures.manifest
    form = " and ".join(manifest.forms)
    rows: list[tuple[Any, Any]] = [
        ("store", figures.url),
        ("kind", f"{manifest.kind}, {form}, {manifest.dtype}, compression {manifest.compression}"),
        ("model", f"{manifest.model.name} ({manifest.model.fingerprint})"),
        (
            "computed in",
            f"{manifest.precision}, every sentence from a {manifest.start_state.kind} start state",
        ),
        ("tokenizer", manifest.tokenizer),
        ("boundaries", "BOS and EOS have rows" if manifest.boundaries else "tokens only"),
        ("shards", f"{manifest.sizes.shards:,} of {manifest.shard_rows:,} rows"),
        ("software", ", ".join(f"{name} {version}" for name, version in manifest.software.items())),
    ]
    return table(rows)


def text(figures: StoreFigures) -> str:
    """Counts of the text, and of how much of it they are."""
    read, counts = figures.text, figures.manifest.sizes
    tokens, sentences = max(1, read.n_tokens), max(1, read.n_sentences)
    whole, limit = (
        figures.n_parts_read == counts.parts,
        WordLimit.of(figures.manifest.model.options),
    )

    def share(count: int, of: int, remark: str) -> str:
        return f"{count:,} ({count / of:.2%}); {remark}"

    rows = [
        ("sentences", f"{read.n_sentences:,}, {read.n_blank:,} of them blank or refused"),
        ("tokens", f"{read.n_tokens:,}, {read.n_distinct:,} distinct"),
        (
            "repeated sentences",
            share(read.n_repeated, sentences, "many mean that the corpus has duplicates"),
        ),
        (
            f"words truncated at {limit}",
            share(read.n_cut, tokens, "many mean text without spaces, or URLs"),
        ),
        (
            "tokens with broken characters",
            share(read.n_strange, tokens, "any means that text was read in a wrong encoding"),
        ),
        ("commonest words", ", ".join(f"{word} ({count:,})" for word, count in read.commonest)),
    ]
    extent = (
        "The whole text."
        if whole
        else f"A sample: {figures.n_parts_read:,} of {counts.parts:,} parts, evenly spaced."
    )
    return f"<p>{extent}</p>" + table(rows)


def refused(figures: StoreFigures) -> str:
    total = figures.manifest.sizes.rejected
    if not total:
        return "<p>No record was refused.</p>"
    rows = [
        (
            reason,
            f"{count:,}",
            "  ".join(f"{where}: {raw}" for where, raw in figures.refused_examples.get(reason, ())),
        )
        for reason, count in figures.refused.items()
    ]
    seen = sum(figures.refused.values())
    note = "" if seen == total else f" Reasons of {seen:,} of them, from a sample of the parts:"
    return (
        f"<p>{quantity(total, 'record')} refused; each is kept as a sentence without tokens.{note}</p>"
        + table(rows, ("reason", "records", "examples"))
    )


def sampled(figures: StoreFigures) -> str:
    """How many rows the pictures below show; of a store of mixes its weights."""
    n, total, mix = len(figures.vectors.row), figures.manifest.sizes.rows, figures.manifest.mix
    said = f"{'All' if n == total else 'A sample:'} {n:,} of {quantity(total, 'row')}, in blocks of consecutive ones."
    if n < 2:
        said = "The store has too few rows for pictures of its vectors."
    sets = (
        [
            (one.name, ", ".join(f"{s:.4f}" for s in one.s), f"{one.gamma:.4f}")
            for one in mix.weight_sets
        ]
        if mix
        else []
    )
    return f"<p>{said}</p>" + (table(sets, ("weight set", "s of each layer", "γ")) if sets else "")
