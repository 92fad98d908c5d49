"""What the beginning of a file shows where its name says no more than text: JSON lines, or a tokenised sentence a line."""

import re
from collections.abc import Sequence

_OBJECT = re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:')
_FEWEST = 2  # lines from which anything is concluded
# A sentence's mark that is a token, at the end of a line, perhaps with quotes and brackets after it.
_ENDED = re.compile(r"""\S\s+(?:[.!?…。！？]|\.\.\.)(?:\s+(?:''|["'”’)\]]|-RRB-))*$""")
_SHARE_ENDED = 0.5  # of the lines, at least: headlines have no mark
# A comma or a mark that hangs on its word, as in prose.
_ATTACHED = re.compile(r"""[^\W\d_]{2}(?:[,;:]\s|[.!?]["')\]”’]*$)""")
_SHARE_ATTACHED = 0.05  # at most: abbreviations
_INNER = re.compile(r"""\s[.!?]\s+(?:(?:``|''|["'])\s+)?[A-Z]""")  # a sentence that ends within a line
_SHARE_INNER = 0.2  # at most: tokenised paragraphs have more


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
        and share(_ENDED) >= _SHARE_ENDED
        and share(_ATTACHED) <= _SHARE_ATTACHED
        and share(_INNER) <= _SHARE_INNER
    )
