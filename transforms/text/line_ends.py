"""Running text by its looks: whether the end of a line is a space (hard-wrapped prose) or a break (a sentence or word a line).

Pure; may import the standard library only. Prose that an editor wrapped breaks a line where the next word would not have
fitted, and nowhere else within a paragraph. So among lines that another one follows, those that end within a word of the
text's width tell the two apart: measured as the share of line ends after which the next line's first word would have gone
beyond the width. Where half of them end like a sentence, they are breaks whatever their length.
"""

from collections.abc import Sequence
from itertools import pairwise

SAMPLE_BYTES = 1 << 18  # of a file's text, from its beginning, by which it is judged
_NARROWEST = 30  # characters; nobody wraps prose to less, lists of words and verse are as narrow
_WORDS = 4  # words of a line of prose, at the least on average
_SHARE = 0.6  # of line ends that the width explains, in wrapped text
_ENDED = (".", "!", "?", '."', '!"', '?"', ".'", "!'", "?'", ".)", ". '", '. "', ". ''", ".''", "…")


def line_ends(lines: Sequence[str]) -> str:
    """``"space"`` or ``"break"`` for the running text ``lines`` (without their ends; blank ones separate paragraphs).

    Text without two lines in a row gives "space", for there is nothing to decide.
    """
    pairs = [(a.strip(), b.strip()) for a, b in pairwise(lines) if a.strip() and b.strip()]
    if not pairs:
        return "space"
    lengths = sorted(len(line.strip()) for line in lines if line.strip())
    width = lengths[min(len(lengths) - 1, int(len(lengths) * 0.97))]  # a few lines (addresses, tables) may be longer
    words = sum(line.count(" ") + 1 for line, _ in pairs) / len(pairs)
    ended = sum(1 for line, _ in pairs if line.endswith(_ENDED))
    if width < _NARROWEST or words < _WORDS or 2 * ended > len(pairs):
        return "break"
    full = sum(1 for line, following in pairs if len(line) + 1 + len(following.split(None, 1)[0]) > width)
    return "space" if full >= _SHARE * len(pairs) else "break"
