"""How a store, a sentence and a mix show themselves in a notebook: small HTML tables, as xarray's.

Nothing is read but what opening has read; text is escaped, and characters that turn directions are shown by their codes.
"""

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from elmo_store.figures.text import visible

if TYPE_CHECKING:
    from elmo_store.mixing.scalar_mix import ScalarMix
    from elmo_store.reading.rows import Sentence
    from elmo_store.reading.store import Store

MOST_TOKENS = 200  # of a sentence, that are shown


def store_html(store: "Store") -> str:
    """A store: where it is, how much it holds, how it was made."""
    manifest = store.manifest
    counts = manifest.counts
    rows: list[tuple[str, Any]] = [("where", store.url)]
    if counts is not None:
        rows.append(("text", f"{counts.sentences:,} sentences, {counts.tokens:,} tokens, {counts.rejected:,} refused"))
    rows += [
        (
            "what",
            f"{' × '.join([f'{counts.rows:,}' if counts else '?', str(len(store.states)), str(store.channels)])} {store.dtype}",
        ),
        ("states", ", ".join(store.states)),
        ("model", f"{manifest.model.name}, {manifest.start_state.kind} start state"),
        ("forms", ", ".join(manifest.forms)),
        ("next", 'store[0] · store.sentence(id=…) · store["' + store.states[0] + '"][0:100] · store.plot.norms()'),
    ]
    return _box(f"elmo_store.Store ({manifest.kind}, {'complete' if manifest.complete else 'incomplete'})", rows)


def sentence_html(sentence: "Sentence") -> str:
    """A sentence: its number, id, source and words."""
    words = sentence.tokens
    more = f" … and {len(words) - MOST_TOKENS:,} more" if len(words) > MOST_TOKENS else ""
    first, stop = sentence.span
    rows = [
        ("id", sentence.id),
        ("source", f"{sentence.source}, {sentence.position}"),
        ("rows", f"{first:,} to {stop - 1:,}" if stop > first else "none"),
        ("tokens", " ".join(words[:MOST_TOKENS]) + more),
    ]
    return _box(f"elmo_store.Sentence {sentence.index:,} ({len(words):,} tokens)", rows)


def mix_html(mix: "ScalarMix") -> str:
    """A mix: s with bars, γ, layer norm."""
    rows = "".join(
        f"<tr><th scope='row'>s of layer {layer}</th>"
        f"<td>{share:.4f} <meter min='0' max='1' value='{share:.4f}'></meter></td></tr>"
        for layer, share in enumerate(mix.s)
    )
    return _table("elmo_store.ScalarMix", rows + _rows([("γ", f"{mix.gamma:.4g}"), ("layer norm", mix.layer_norm)]))


def _box(title: str, rows: Iterable[Sequence[Any]]) -> str:
    return _table(title, _rows(rows))


def _rows(rows: Iterable[Sequence[Any]]) -> str:
    return "".join(
        f"<tr><th scope='row' style='text-align:left'>{html.escape(str(name))}</th>"
        f"<td style='text-align:left'><bdi>{html.escape(visible(str(value)))}</bdi></td></tr>"
        for name, value in rows
    )


def _table(title: str, body: str) -> str:
    return f"<table><caption style='text-align:left;font-weight:600'>{html.escape(title)}</caption><tbody>{body}</tbody></table>"
