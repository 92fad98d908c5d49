"""The report as one HTML page: what was gathered, drawn and explained, in one file that asks the network for nothing.

Whatever comes from the text (words, records, names) is escaped; the page has no script.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmo_store.figures import plots, vectors
from elmo_store.figures.gather import StoreFigures
from elmo_store.format.words import WordLimit
from elmo_store.notebook import visible
from pipeline.cli.terminal import duration, quantity

N_NEIGHBOURS = 4

STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


def page(figures: StoreFigures) -> str:
    """The whole report. ImportError without Matplotlib, naming the extra."""
    name = figures.url.rstrip("/").rpartition("/")[2] or figures.url
    sections = [
        ("vectors", "The vectors", sampled(figures), ("similarity", "maps", "norms")),
        ("neighbours", "Nearest neighbours in context", neighbours(figures), ()),
        ("text", "The text", text(figures), ("lengths",)),
        *([("fields", "Kept fields", groups(figures), ())] if figures.groups else []),
        ("refused", "Refused records", refused(figures), ()),
        ("job", "The job", job(figures), ("speed",)),
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


def headline(figures: StoreFigures) -> str:
    manifest = figures.manifest
    what = "mixed vectors" if manifest.kind == "mix" else "states"
    return (
        f"A store of {len(manifest.states)} {what} a token, {manifest.channels} numbers each in {manifest.dtype}, "
        f"made with {shown(manifest.model.name)}."
    )


def key_figures(figures: StoreFigures) -> str:
    counts, job_seconds = figures.manifest.sizes, figures.job.span_seconds
    numbers = {
        "tokens": f"{counts.tokens:,}",
        "sentences": f"{counts.sentences:,}",
        "records refused": f"{counts.rejected:,}",
        "truncated words": f"{counts.words_cut:,}",
        "shards": f"{counts.shards:,}",
    }
    if job_seconds:
        numbers["first to last shard"] = duration(job_seconds)
    return '<dl class="key">' + "".join(f"<div><dt>{name}</dt><dd>{n}</dd></div>" for name, n in numbers.items()) + "</dl>"


def table(rows: Iterable[Sequence[Any]], head: Sequence[Any] = (), caption: str = "") -> str:
    """Rows of escaped cells; the first cell of each is its heading."""
    top = "<thead><tr>" + "".join(f'<th scope="col">{shown(cell)}</th>' for cell in head) + "</tr></thead>" if head else ""
    body = "".join(
        f'<tr><th scope="row">{shown(row[0])}</th>' + "".join(f"<td>{shown(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    label = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f'<table class="n">{label}{top}<tbody>{body}</tbody></table>'


def pictures(figures: StoreFigures, names: Iterable[str]) -> str:
    """The pictures that the store has something for, each with how to read it and its numbers as a table."""
    drawn = []
    for name in names:
        if not plots.PICTURES[name].applies(figures):
            continue
        picture = plots.draw(name, figures)
        numbers = table(picture.numbers[1:], picture.numbers[0])
        drawn.append(
            f"<figure><h3>{html.escape(picture.title)}</h3>{picture.svg()}"
            f"<figcaption><p><b>Expected:</b> {html.escape(picture.expected)}.</p>"
            f"<p><b>A bad sign:</b> {html.escape(picture.bad_sign)}.</p></figcaption>"
            f"<details><summary>the numbers</summary>{numbers}</details></figure>"
        )
    return "\n".join(drawn)


def job(figures: StoreFigures) -> str:
    manifest, span = figures.manifest, figures.job.span_seconds
    form = " and ".join(manifest.forms)
    rows: list[tuple[Any, Any]] = [
        ("store", figures.url),
        ("kind", f"{manifest.kind}, {form}, {manifest.dtype}, compression {manifest.compression}"),
        ("model", f"{manifest.model.name} ({manifest.model.fingerprint})"),
        ("computed in", f"{manifest.precision}, every sentence from a {manifest.start_state.kind} start state"),
        ("tokenizer", manifest.tokenizer),
        ("boundaries", "BOS and EOS have rows" if manifest.boundaries else "tokens only"),
        ("shards", f"{manifest.sizes.shards:,} of {manifest.shard_rows:,} rows; markers of {figures.n_markers_read:,} were read"),
    ]
    if span:
        rows.append(("from first to last shard", f"{duration(span)}, pauses included"))
    rows.append(("software", ", ".join(f"{name} {version}" for name, version in manifest.software.items())))
    return table(rows)


def text(figures: StoreFigures) -> str:
    """Counts of the text, and of how much of it they are."""
    read, counts = figures.text, figures.manifest.sizes
    tokens, sentences = max(1, read.n_tokens), max(1, read.n_sentences)
    whole, limit = figures.n_parts_read == counts.parts, WordLimit.of(figures.manifest.model.options)

    def share(count: int, of: int, remark: str) -> str:
        return f"{count:,} ({count / of:.2%}); {remark}"

    rows = [
        ("sentences", f"{read.n_sentences:,}, {read.n_blank:,} of them blank or refused"),
        ("tokens", f"{read.n_tokens:,}, {read.n_distinct:,} distinct"),
        ("repeated sentences", share(read.n_repeated, sentences, "many mean that the corpus has duplicates")),
        (f"words truncated at {limit}", share(read.n_cut, tokens, "many mean text without spaces, or URLs")),
        ("tokens with broken characters", share(read.n_strange, tokens, "any means that text was read in a wrong encoding")),
        ("commonest words", ", ".join(f"{word} ({count:,})" for word, count in read.commonest)),
    ]
    extent = "The whole text." if whole else f"A sample: {figures.n_parts_read:,} of {counts.parts:,} parts, evenly spaced."
    return f"<p>{extent}</p>" + table(rows)


def groups(figures: StoreFigures) -> str:
    """Sentences and tokens by the values of each field that divides them."""
    tables = []
    for one in figures.groups:
        rows = [(value, f"{n:,}", f"{tokens:,}", f"{tokens / max(1, n):.1f}") for value, n, tokens in one.groups]
        more = f"; {one.n_values - len(rows):,} more values" if one.n_values > len(rows) else ""
        caption = f"{visible(str(one.field))}, of {quantity(one.n_sentences, 'sentence')}{more}"
        tables.append(table(rows, ("value", "sentences", "tokens", "tokens a sentence"), caption))
    return "".join(tables)


def refused(figures: StoreFigures) -> str:
    total = figures.manifest.sizes.rejected
    if not total:
        return "<p>No record was refused.</p>"
    rows = [
        (reason, f"{count:,}", "  ".join(f"{where}: {raw}" for where, raw in figures.refused.examples.get(reason, ())))
        for reason, count in figures.refused.counts.items()
    ]
    seen = sum(figures.refused.counts.values())
    note = "" if seen == total else f" Reasons of {seen:,} of them, from a sample of the parts:"
    return f"<p>{quantity(total, 'record')} refused; each is kept as a sentence without tokens.{note}</p>" + table(
        rows, ("reason", "records", "examples")
    )


def sampled(figures: StoreFigures) -> str:
    """How many rows the pictures below show; of a store of mixes its weights."""
    n, total, mix = len(figures.vectors.row), figures.vectors.n_rows, figures.manifest.mix
    said = f"{'All' if n == total else 'A sample:'} {n:,} of {quantity(total, 'row')}, in blocks of consecutive ones."
    if n < 2:
        said = "The store has too few rows for pictures of its vectors."
    sets = [(one.name, ", ".join(f"{s:.4f}" for s in one.s), f"{one.gamma:.4f}") for one in mix.weight_sets] if mix else []
    return f"<p>{said}</p>" + (table(sets, ("weight set", "s of each layer", "γ")) if sets else "")


def neighbours(figures: StoreFigures) -> str:
    """For a few words, the nearest occurrences of any word, view by view."""
    sample = figures.vectors
    views = vectors.views_of(sample.states, figures.manifest.states, figures.manifest.kind)
    words = vectors.common_words(vectors.occurrences(sample.token))
    if not words:
        return "<p>No word occurs often enough in the sample.</p>"
    expected = (
        "<p><b>Expected:</b> in layer 0, where a word has one vector, words that are spelled alike; in higher layers the same "
        "word, or others, in the same role and sense. "
        "<b>A bad sign:</b> the same few neighbours for every word, or punctuation.</p>"
    )
    return expected + "".join(_neighbours_of(word, figures, views) for word in words)


def _neighbours_of(word: str, figures: StoreFigures, views: Mapping[str, vectors.Float]) -> str:
    sample = figures.vectors
    index = sample.token.index(word)
    same_sentence = np.asarray(sample.sentence == sample.sentence[index])
    first = np.zeros(len(sample.token), bool)
    first[[rows[0] for rows in vectors.rows_of_tokens(sample.token).values()]] = True
    same_word = np.array([token == word for token in sample.token])
    repeated = vectors.repeated_contexts([sample.context(row) for row in range(len(sample.row))])
    groups = []
    for k, (name, values) in enumerate(views.items()):
        one_vector = k == 0 and figures.manifest.kind == "states"  # of each word: others are shown, each of them once
        near = vectors.nearest(values, index, N_NEIGHBOURS, same_word | ~first if one_vector else same_sentence | repeated)
        rows = [f"<td>{cosine:z.3f}</td><td>{_in_context(figures, other)}</td>" for other, cosine in near]
        if rows:
            rows[0] = f'<th scope="rowgroup" rowspan="{len(rows)}">{shown(name)}</th>{rows[0]}'
        groups.append("<tbody>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</tbody>")
    head = '<thead><tr><th scope="col">view</th><th scope="col">cosine</th><th scope="col">occurrence</th></tr></thead>'
    return f'<div class="near"><h3>{_in_context(figures, index)}</h3><table>{head}{"".join(groups)}</table></div>'


def _in_context(figures: StoreFigures, index: int) -> str:
    before, word, after = figures.vectors.context(index)
    return f"{shown(before)} <mark>{shown(word)}</mark> {shown(after)}"
