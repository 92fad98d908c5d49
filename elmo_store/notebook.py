"""HTML tables that a store and a sentence show in a notebook; text is escaped, and can't turn the direction of a page."""

import html
import unicodedata
from collections.abc import Iterable

_TURNING = frozenset([*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C])


def table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names with texts."""
    left = "style='text-align:left'"
    body = "".join(
        f"<tr><th scope='row' {left}>{html.escape(name)}</th><td {left}><bdi>{html.escape(visible(value))}</bdi></td></tr>"
        for name, value in rows
    )
    return f"<table><caption style='text-align:left;font-weight:600'>{html.escape(title)}</caption><tbody>{body}</tbody></table>"


def visible(text: str) -> str:
    """``text`` with control characters, and those that turn the direction of text, as their codes; it is not escaped."""
    return "".join(f"‹U+{ord(c):04X}›" if ord(c) in _TURNING or unicodedata.category(c) == "Cc" else c for c in text)
