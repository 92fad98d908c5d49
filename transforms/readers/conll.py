"""The formats ``conllu`` and ``conll``: a word a line, blank lines between sentences; the words are taken as they are.

``conllu``: tokens are the FORM of lines with an integer ID, as structural probes count them; multi-word tokens (``1-2``) and
empty nodes (``1.1``) are passed over. The id is ``# sent_id``. Position = number of the sentence's first line, comments included,
from 0. ``conll``: columns between tabs or spaces, ``-DOCSTART-`` lines begin documents, ``# `` before a sentence is a comment.
Position = number of the first word line. A file whose first word line has the ten columns of CoNLL-U is read as that.

A sentence with a line that can't be used is refused whole.
"""

import re
from collections.abc import Iterator
from itertools import chain

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import InputError, ReadSettings, Record, Reject, Sentence
from transforms.readers.lines import RAW_BYTES, Line, LongLine, Refused, cut_raw, head_of, lines_of, text_of
from transforms.text.tokenizers import Tokenizer

DOCUMENT = b"-DOCSTART-"
N_COLUMNS = 10
_SENT_ID = re.compile(r"#\s*sent_id\s*=\s*(.*?)\s*$")
_WORD = re.compile(r"[1-9][0-9]*")
_OTHER = re.compile(r"[0-9]+\.[0-9]+|[0-9]+-[0-9]+")


class _Block:
    """The lines of one sentence so far: its words, or the first thing that is wrong with it."""

    def __init__(self, position: int, column: int | None) -> None:
        """``column``: of the words, from 0; None for CoNLL-U."""
        self._position, self._column = position, column
        self._words: list[str] = []
        self._sent_id = ""
        self._has_words = False  # or what stands for some
        self._n_bytes = 0
        self._problem = ""
        self._raw: list[bytes] = []

    def add(self, line: Line, number: int, max_bytes: int) -> None:
        """Take in one line that is not blank."""
        head = head_of(line)
        if self._n_bytes < RAW_BYTES:
            self._raw.append(head[:RAW_BYTES])
        self._n_bytes += len(head)
        try:
            if self._n_bytes > max_bytes:
                raise Refused(f"the sentence is longer than {max_bytes} bytes")
            text = text_of(line, number, max_bytes)
            if isinstance(text, Reject):
                raise Refused(text.reason)
            word = self._conllu_word(text) if self._column is None else _column_word(text, self._column)
            if word and not self._problem:
                self._words.append(word)
        except Refused as error:
            self._problem = self._problem or f"{error} (line {number}, counted from 0)"
            self._words.clear()

    def _conllu_word(self, text: str) -> str:
        """The word of a line, "" for a line without one. Refused if the line can't be used."""
        if text.startswith("#"):
            if named := _SENT_ID.match(text):
                self._sent_id = named[1]
            return ""
        self._has_words = True
        columns = text.split("\t")
        if len(columns) != N_COLUMNS:
            raise Refused(f"{len(columns)} columns between tabs instead of {N_COLUMNS}")
        number, form = columns[0], columns[1]
        if _OTHER.fullmatch(number):
            return ""
        due = len(self._words) + 1
        if not _WORD.fullmatch(number) or number != str(due):
            raise Refused(f"ID {number!r} where {due} is due")
        if not form.strip():
            raise Refused("the FORM is empty")
        return form

    def records(self) -> Iterator[Record]:
        """The sentence, or why it was refused; nothing for comments alone."""
        if self._words:
            yield Sentence(tuple(self._words), self._sent_id, self._position)
        elif self._problem or self._has_words or self._sent_id:
            reason = self._problem or "the sentence has no words"
            yield Reject(self._position, reason, cut_raw(b"\n".join(self._raw)), self._sent_id)


def _column_word(text: str, column: int) -> str:
    columns = text.split("\t" if "\t" in text else " ")
    if column >= len(columns) or not columns[column].strip():
        raise Refused(f"no column {column + 1} in {len(columns)}")
    return columns[column]


def read_conllu(source: ByteSource, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """One record a sentence. ``tokenizer`` is not used: the words are given."""
    return _sentences(lines_of(source, settings.max_line_bytes), None, settings)


def read_conll(source: ByteSource, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """One record a sentence. ``tokenizer`` is not used: the words are given."""
    lines = lines_of(source, settings.max_line_bytes)
    head: list[Line] = []  # up to the first line of words
    for line in lines:
        head.append(line)
        if isinstance(line, LongLine) or (line.strip() and not line.startswith(b"#")):
            break
    column = settings.text_field or "1"
    if not settings.text_field and head and isinstance(head[-1], bytes) and _is_conllu(head[-1]):
        yield from _sentences(chain(head, lines), None, settings)
    elif not column.isdecimal() or column == "0":
        raise InputError(source.url, f"--text-field {column}: columns have no names here, give the word's number from 1")
    else:
        yield from _sentences(chain(head, lines), int(column) - 1, settings)


def _is_conllu(line: bytes) -> bool:
    """Whether a line of words is one of CoNLL-U: ten columns, of which the first is a number."""
    columns = line.split(b"\t")
    return len(columns) == N_COLUMNS and columns[0][:1].isdigit()


def _sentences(lines: Iterator[Line], column: int | None, settings: ReadSettings) -> Iterator[Record]:
    """The records of blocks between blank lines; ``column`` as `_Block` has it."""
    block: _Block | None = None
    for number, line in enumerate(lines):
        head = head_of(line)
        if column is None:
            ends, is_comment = isinstance(line, bytes) and not line.strip(b" \t"), False
        else:
            ends, is_comment = not head.strip() or head.startswith(DOCUMENT), block is None and head.startswith(b"# ")
        if ends:
            if block:
                yield from block.records()
            block = None
        elif not is_comment:
            block = block or _Block(number, column)
            block.add(line, number, settings.max_line_bytes)
    if block:
        yield from block.records()
