"""The format ``conllu``: the syntactic words of CoNLL-U, with the sentences' own ids.

Tokens are the FORM of lines with an integer ID, as structural probes count them; lines of multi-word tokens (``1-2``) and empty
nodes (``1.1``) are passed over. The id is ``# sent_id``; without one it is made from file and position. Position = number of
the sentence's first line (its comments included), from 0. A sentence with a malformed line is refused whole. Blank lines end
sentences; a block of comments alone is no sentence.
"""

import re
from collections.abc import Iterator

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import Piece, ReadSettings, Record, Reject, Sentence
from transforms.readers.lines import RAW_BYTES, Line, LongLine, cut_raw, lines_of, text_of
from transforms.text.tokenizers import Tokenizer

N_COLUMNS = 10
_SENT_ID = re.compile(r"#\s*sent_id\s*=\s*(.*?)\s*$")
_WORD = re.compile(r"[1-9][0-9]*")
_OTHER = re.compile(r"[0-9]+\.[0-9]+|[0-9]+-[0-9]+")


class _Block:
    """The lines of one sentence so far: its words, or the first thing that is wrong with it."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.sent_id = ""
        self.words: list[str] = []
        self.problem = ""
        self.has_words = False
        self.bytes = 0
        self._raw: list[bytes] = []
        self._raw_bytes = 0

    def add(self, line: Line, number: int, max_bytes: int) -> None:
        """Take in one line that is not blank."""
        head = line.head if isinstance(line, LongLine) else line
        self.bytes += len(head)
        if self._raw_bytes < RAW_BYTES:
            self._raw.append(head[:RAW_BYTES])
            self._raw_bytes += len(head)
        text = text_of(line, number, max_bytes)
        problem = ""
        if isinstance(text, Reject):
            self.has_words = self.has_words or not head.startswith(b"#")
            problem = text.reason
        elif text.startswith("#"):
            found = _SENT_ID.match(text)
            if found:
                self.sent_id = found[1]
        else:
            self.has_words = True
            problem = self._word(text)
        if self.bytes > max_bytes:
            problem = f"the sentence is longer than {max_bytes} bytes"
            self.words.clear()
        if problem and not self.problem:
            self.problem = f"{problem} (line {number}, counted from 0)"

    def _word(self, text: str) -> str:
        if self.problem:
            return ""  # one is enough, and its words are of no use
        columns = text.split("\t")
        if len(columns) != N_COLUMNS:
            return f"{len(columns)} columns between tabs instead of {N_COLUMNS}"
        number, form = columns[0], columns[1]
        if _OTHER.fullmatch(number):
            return ""
        if not _WORD.fullmatch(number) or number != str(len(self.words) + 1):
            return f"ID {number!r} where {len(self.words) + 1} is due"
        if not form.strip():
            return "the FORM is empty"
        self.words.append(form)
        return ""

    def records(self) -> Iterator[Record]:
        """The sentence, or why it was refused; nothing for comments alone."""
        if self.problem:
            yield Reject(self.position, self.problem, cut_raw(b"\n".join(self._raw)), self.sent_id)
        elif self.words:
            yield Sentence(tuple(self.words), self.sent_id, self.position)
        elif self.has_words or self.sent_id:
            yield Reject(self.position, "the sentence has no words", cut_raw(b"\n".join(self._raw)), self.sent_id)


def read_conllu(source: ByteSource, piece: Piece, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """One record a sentence. ``tokenizer`` is not used: the words are given."""
    yield from sentences_of(lines_of(source, settings.max_line_bytes), settings)


def is_conllu(line: bytes) -> bool:
    """Whether a line of words is one of CoNLL-U: ten columns, of which the first is a number."""
    columns = line.split(b"\t")
    return len(columns) == N_COLUMNS and columns[0][:1].isdigit()


def sentences_of(lines: Iterator[Line], settings: ReadSettings) -> Iterator[Record]:
    """The sentences of the lines of a file."""
    block: _Block | None = None
    for number, line in enumerate(lines):
        if isinstance(line, bytes) and not line.strip(b" \t"):
            if block:
                yield from block.records()
            block = None
            continue
        block = block or _Block(number)
        block.add(line, number, settings.max_line_bytes)
    if block:
        yield from block.records()
