"""The report as one HTML page: what was gathered, drawn and explained, in one file that asks the network for nothing.

May import elmo_store. Whatever comes from the text (words, records, names) is escaped; the page has no script.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from elmo_store import plot
from elmo_store.figures import vectors
from elmo_store.figures.gather import StoreFigures
from elmo_store.figures.text import visible
from pipeline.quantities import duration

N_NEIGHBOURS = 4

LIGHT = """--ink: #1b1f24; --faint: #66707a; --paper: #fefefe; --line: #d5dae0; --soft: #f2f4f7; --series-0: #0b6fb8;
  --series-1: #c2560a; --series-2: #128a63; --series-3: #b0508f; --series-4: #8a6d00; --series-5: #4a55c4; --series-6: #c23a3a"""
DARK = """--ink: #e8ebee; --faint: #a0a9b3; --paper: #16191d; --line: #3a4149; --soft: #21262c; --series-0: #5fb0ee;
  --series-1: #f29b5c; --series-2: #4cc79a; --series-3: #de8cc1; --series-4: #d3b445; --series-5: #9aa3ff; --series-6: #f08080"""
STYLE = f"""
:root {{ color-scheme: light dark; {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
@media print {{ :root {{ {LIGHT}; --ink: #000; --paper: #fff }}
  section > h2 {{ break-after: avoid }} figure, tr {{ break-inside: avoid }} nav, details {{ display: none }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 56rem; margin: 0 auto;
  padding: 1rem }}
h1 {{ font-size: 1.6rem; overflow-wrap: anywhere }} h2 {{ font-size: 1.2rem; margin-top: 2.2rem }}
h3 {{ font-size: 1rem; margin: 0 }} a {{ color: var(--series-0) }}
figure {{ margin: 1rem 0 2rem }} figure svg {{ width: 100%; height: auto }}
figcaption p {{ margin: .2rem 0; color: var(--faint); font-size: .9rem }} figcaption b {{ color: var(--ink); font-weight: 600 }}
table {{ border-collapse: collapse; font-size: .9rem; width: 100% }} caption {{ text-align: left; color: var(--faint) }}
th, td {{ text-align: left; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere }}
th {{ font-weight: 600 }} .n td {{ font-variant-numeric: tabular-nums }}
summary {{ color: var(--faint); font-size: .9rem; cursor: pointer }} bdi {{ unicode-bidi: isolate }}
mark {{ background: none; font-weight: 700; color: var(--series-0) }}
.skip {{ position: absolute; left: -99rem }} .skip:focus {{ left: 1rem }}
"""


def page(figures: StoreFigures) -> str:
    """The whole report. ImportError without Matplotlib, naming the extra."""
    name = figures.url.rstrip("/").rpartition("/")[2] or figures.url
    sections = [
        ("job", "The job", job(figures), ("speed", "workers")),
        ("text", "The text", text(figures), ("lengths", "words", "scripts")),
        ("refused", "Refused records", refused(figures), ()),
        ("vectors", "The vectors", sampled(figures), ("weights", "norms", "positions", "cosines", "anisotropy", "maps")),
        ("neighbours", "Nearest neighbours in context", neighbours(figures), ()),
    ]
    nav = " · ".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, *_ in sections)
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
<header><h1>{shown(name)}</h1><p>{headline(figures)}</p><nav aria-label="sections">{nav}</nav></header>
<main id="main">
{body}
</main></body></html>
"""


def shown(value: Any) -> str:
    """``value`` as text of the page: escaped, direction and control characters written as their codes, in its own direction."""
    return f"<bdi>{html.escape(visible(str(value)))}</bdi>"


def headline(figures: StoreFigures) -> str:
    """One sentence about the store."""
    manifest, counts = figures.manifest, figures.manifest.sizes
    what = "mixed vectors" if manifest.kind == "mix" else "states"
    return (
        f"{counts.tokens:,} tokens in {counts.sentences:,} sentences, {len(manifest.states)} {what} of {manifest.channels} "
        f"numbers each, made with {shown(manifest.model.name)}."
    )


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
    found = []
    for name in names:
        if not plot.PICTURES[name].applies(figures):
            continue
        one = plot.draw(name, figures)
        numbers = table(one.numbers[1:], one.numbers[0])
        found.append(
            f"<figure><h3>{html.escape(one.title)}</h3>{one.svg()}"
            f"<figcaption><p><b>Expected:</b> {html.escape(one.expected)}.</p>"
            f"<p><b>A bad sign:</b> {html.escape(one.bad_sign)}.</p></figcaption>"
            f"<details><summary>the numbers</summary>{numbers}</details></figure>"
        )
    return "\n".join(found)


def job(figures: StoreFigures) -> str:
    """Settings, versions, hours."""
    manifest, span = figures.manifest, figures.job.span_seconds
    rows: list[tuple[Any, Any]] = [
        ("store", figures.url),
        ("kind", f"{manifest.kind}, {' and '.join(manifest.forms)}, {manifest.dtype}, compression {manifest.compression}"),
        ("model", f"{manifest.model.name} ({manifest.model.fingerprint})"),
        ("computed in", f"{manifest.precision}, every sentence from a {manifest.start_state.kind} start state"),
        ("tokenizer", manifest.tokenizer),
        ("boundaries", "BOS and EOS have rows" if manifest.boundaries else "tokens only"),
        ("shards", f"{manifest.sizes.shards:,} of {manifest.shard_rows:,} rows; markers of {figures.n_markers_read:,} were read"),
    ]
    if span:
        rows.append(("from first to last shard", f"{duration(span)}, pauses included"))
    rows += [("software", ", ".join(f"{name} {version}" for name, version in manifest.software.items()))]
    return table(rows)


def text(figures: StoreFigures) -> str:
    """Counts of the text, and of how much of it they are."""
    found, counts = figures.text, figures.manifest.sizes
    tokens, sentences = max(1, found.n_tokens), max(1, found.n_sentences)
    whole = figures.n_parts_read == counts.parts

    def share(count: int, of: int, remark: str) -> str:
        return f"{count:,} ({count / of:.2%}); {remark}"

    rows = [
        ("sentences", f"{found.n_sentences:,}, {found.n_blank:,} of them blank or refused"),
        ("tokens", f"{found.n_tokens:,}, {found.n_distinct:,} distinct"),
        ("sentences that stood before", share(found.n_repeated, sentences, "many: a corpus with duplicates")),
        ("words cut at 48 bytes", share(found.n_cut, tokens, "many: text without spaces, or addresses")),
        ("tokens with broken characters", share(found.n_strange, tokens, "any: text that was read in a wrong encoding")),
        ("commonest words of English", share(found.n_english, tokens, "in English prose 30 to 50%, elsewhere near 0")),
    ]
    said = "The whole text." if whole else f"A sample: {figures.n_parts_read:,} of {counts.parts:,} parts, evenly spaced."
    return f"<p>{said}</p>" + table(rows)


def refused(figures: StoreFigures) -> str:
    """Reasons with examples."""
    found = figures.refused
    total = figures.manifest.sizes.rejected
    if not total:
        return "<p>No record was refused.</p>"
    rows = [
        (reason, f"{count:,}", "  ".join(f"{place}: {raw}" for place, raw in found.examples.get(reason, ())))
        for reason, count in found.counts.items()
    ]
    seen = sum(found.counts.values())
    note = "" if seen == total else f" Reasons of {seen:,} of them, from a sample of the parts:"
    return f"<p>{total:,} records were refused; each stands as a sentence without tokens.{note}</p>" + table(
        rows, ("reason", "records", "examples")
    )


def sampled(figures: StoreFigures) -> str:
    """Of how many rows the pictures below are."""
    n, total = len(figures.vectors.row), figures.vectors.n_rows
    if n < 2:
        return "<p>The store has too few rows for pictures of its vectors.</p>"
    return f"<p>{'All' if n == total else 'A sample:'} {n:,} of {total:,} rows, in blocks of consecutive ones.</p>"


def neighbours(figures: StoreFigures) -> str:
    """For a few words, the nearest occurrences of any word, view by view."""
    sample = figures.vectors
    words = vectors.telling_words(sample.token)
    if not words:
        return "<p>No word occurs often enough in the sample.</p>"
    views = vectors.views_of(sample.states, figures.manifest.states, figures.manifest.kind)
    expected = (
        "<p><b>Expected:</b> in layer 0 the same word everywhere; higher up words in a like role and sense. "
        "<b>A bad sign:</b> the same few neighbours for every word, or punctuation.</p>"
    )
    return expected + "".join(_neighbours_of(word, figures, views) for word in words)


def _neighbours_of(word: str, figures: StoreFigures, views: Mapping[str, vectors.Float]) -> str:
    sample = figures.vectors
    place = sample.token.index(word)
    same_sentence = sample.sentence == sample.sentence[place]
    rows = []
    for name, values in views.items():
        for found, cosine in vectors.nearest(values, place, N_NEIGHBOURS, np.asarray(same_sentence)):
            rows.append(f"<tr><td>{shown(name)}</td><td>{cosine:.3f}</td><td>{_in_context(figures, found)}</td></tr>")
    head = '<thead><tr><th scope="col">view</th><th scope="col">cosine</th><th scope="col">occurrence</th></tr></thead>'
    return f"<h3>{_in_context(figures, place)}</h3><table>{head}<tbody>{''.join(rows)}</tbody></table>"


def _in_context(figures: StoreFigures, place: int) -> str:
    before, word, after = figures.vectors.context(place)
    return f"{shown(before)} <mark>{shown(word)}</mark> {shown(after)}"
