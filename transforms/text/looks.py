"""What the beginning of a text shows: whether line ends are breaks; JSON lines, or a tokenised sentence a line."""

import re
from collections.abc import Sequence
from itertools import pairwise

SAMPLE_BYTES = 1 << 18  # of a file's text, from its beginning, by which it is judged
_OBJECT = re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:')
_FEWEST = 2  # lines from which anything is concluded
# A sentence's mark that is a token, at the end of a line, perhaps with quotes and brackets after it.
_TOKEN_ENDED = re.compile(r"""\S\s+(?:[.!?…。！？]|\.\.\.)(?:\s+(?:''|["'”’)\]]|-RRB-))*$""")
_SHARE_ENDED = 0.5  # of the lines, at least: headlines have no mark
# A comma or a mark that hangs on its word, as in prose.
_ATTACHED = re.compile(r"""[^\W\d_]{2}(?:[,;:]\s|[.!?]["')\]”’]*$)""")
_SHARE_ATTACHED = 0.05  # at most: abbreviations
_INNER = re.compile(
    r"""\s[.!?]\s+(?:(?:``|''|["'])\s+)?[A-Z]"""
)  # a sentence that ends within a line
_SHARE_INNER = 0.2  # at most: tokenised paragraphs have more

_NARROWEST = 30  # characters; nobody wraps prose to less, lists of words and verse are as narrow
_WORDS = 4  # words of a line of prose, at the least on average
_SHARE = 0.6  # of line ends that the width explains, in wrapped text
_ENDED = (".", "!", "?", '."', '!"', '?"', ".'", "!'", "?'", ".)", ". '", '. "', ". ''", ".''", "…")


def begins_json_object(line: bytes) -> bool:
    """Whether a line, of which the end may be missing, begins as a JSON object with a member does."""
    return _OBJECT.match(line) is not None


def is_sentence_a_line(lines: Sequence[str]) -> bool:
    """Whether ``lines`` look like tokenised sentences, one a line, as `allennlp elmo` takes them; blank lines don't count."""
    filled = [line.strip() for line in lines if line.strip()]

    def share(pattern: re.Pattern[str]) -> float:
        return sum(1 for line in filled if pattern.search(line)) / len(filled)

    return (
        len(filled) >= _FEWEST
        and share(_TOKEN_ENDED) >= _SHARE_ENDED
        and share(_ATTACHED) <= _SHARE_ATTACHED
        and share(_INNER) <= _SHARE_INNER
    )


def line_ends(lines: Sequence[str]) -> str:
    """``"space"`` or ``"break"`` for the running text ``lines`` (without their ends; blank ones separate paragraphs).

    Prose that an editor wrapped breaks a line where the next word would not have fitted, and nowhere else: measured is the share
    of line ends after which the next line's first word would have gone beyond the text's width. Where half of them end like a
    sentence, they are breaks whatever their length. Text without two lines in a row gives "space".
    """
    pairs = [(a.strip(), b.strip()) for a, b in pairwise(lines) if a.strip() and b.strip()]
    if not pairs:
        return "space"
    lengths = sorted(len(line.strip()) for line in lines if line.strip())
    width = lengths[
        min(len(lengths) - 1, int(len(lengths) * 0.97))
    ]  # a few lines (addresses, tables) may be longer
    words = sum(line.count(" ") + 1 for line, _ in pairs) / len(pairs)
    ended = sum(1 for line, _ in pairs if line.endswith(_ENDED))
    if width < _NARROWEST or words < _WORDS or 2 * ended > len(pairs):
        return "break"
    full = sum(
        1 for line, following in pairs if len(line) + 1 + len(following.split(None, 1)[0]) > width
    )
    return "space" if full >= _SHARE * len(pairs) else "break"


def line_ends_of(text: bytes | bytearray) -> str:
    """`line_ends` of a text by the lines of its first `SAMPLE_BYTES` bytes; ``text`` has no fewer unless it is the whole."""
    lines = text[:SAMPLE_BYTES].decode("utf-8", "replace").split("\n")
    return line_ends(lines if len(text) < SAMPLE_BYTES else lines[:-1])
