"""The formats ``conllu`` and ``conll``: a word a line, blank lines between sentences; the words are taken as they are.

``conllu``: tokens are the FORM of lines with an integer ID, as structural probes count them; multi-word tokens (``1-2``) and
empty nodes (``1.1``) are passed over. The id is ``# sent_id``. Position = number of the sentence's first line, comments included,
from 0. ``conll``: columns between tabs or spaces, ``-DOCSTART-`` lines begin documents, ``# `` before a sentence is a comment.
Position = number of the first word line. A file whose first word line has the ten columns of CoNLL-U is read as that.

A sentence with a line that can't be used is refused whole. The other columns are values a token, for fields that are kept: those
of ``conllu`` go by their names there, ``head`` a number; those of ``conll`` by their numbers, from 1. A sentence's own comments
``# key = value`` are fields too, strings. ``# newdoc`` and ``-DOCSTART-`` begin documents.
"""

import re
from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Any

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import InDocument, InputError, ReadSettings, Reject
from transforms.readers.fields import Fields, RawRecord
from transforms.readers.lines import RAW_BYTES, Refused, cut_raw, lines_of, text_of

DOCUMENT = b"-DOCSTART-"
COLUMNS = (
    "id",
    "form",
    "lemma",
    "upos",
    "xpos",
    "feats",
    "head",
    "deprel",
    "deps",
    "misc",
)  # of CoNLL-U
N_COLUMNS = len(COLUMNS)
SENT_ID = "sent_id"
OWN_COMMENTS = frozenset((SENT_ID, "newdoc id", "text"))  # the store has ids, documents and tokens
_COMMENT = re.compile(
    r"#\s*([^\s=.,]+(?: id)?)\s*=\s*(.*?)\s*$"
)  # of a file, as global.columns, are those with a dot
_NEW_DOCUMENT = re.compile(r"#\s*newdoc(?:\s+id\s*=\s*(.*?))?\s*$")
_OTHER = re.compile(r"[0-9]+\.[0-9]+|[0-9]+-[0-9]+")


class _Block:
    """The lines of one sentence so far: its words, or the first thing that is wrong with it."""

    def __init__(self, position: int, column: int | None) -> None:
        """``column``: of the words, from 0; None for CoNLL-U."""
        self.position, self._column = position, column
        self.newdoc: str | None = None  # name of the document that it begins
        self._words: list[list[str]] = []  # their columns
        self._comments: dict[str, str] = {}
        self._has_words = False  # or what stands for some
        self._n_bytes = 0
        self._problem = ""
        self._raw: list[bytes] = []

    def add(self, line: bytes, number: int, max_bytes: int) -> None:
        """Take in one line that is not blank."""
        if self._n_bytes < RAW_BYTES:
            self._raw.append(line[:RAW_BYTES])
        self._n_bytes += len(line)
        try:
            if self._n_bytes > max_bytes:
                raise Refused(f"the sentence is longer than {max_bytes} bytes")
            text = text_of(line, max_bytes)
            columns = (
                self._conllu_word(text) if self._column is None else _columns(text, self._column)
            )
            if columns and not self._problem:
                self._words.append(columns)
        except Refused as error:
            self._problem = (
                self._problem or f"{error} (line {number - self.position + 1} of the sentence)"
            )
            self._words.clear()

    def _conllu_word(self, text: str) -> list[str]:
        """The columns of a word, none of a line without one. Refused if the line can't be used."""
        if text.startswith("#"):
            if comment := _COMMENT.match(text):
                self._comments[comment[1]] = comment[2]
            if begins := _NEW_DOCUMENT.match(text):
                self.newdoc = begins[1] or ""
            return []
        self._has_words = True
        columns = text.split("\t")
        if len(columns) != N_COLUMNS:
            raise Refused(f"{len(columns)} columns between tabs instead of {N_COLUMNS}")
        number, form = columns[0], columns[1]
        if _OTHER.fullmatch(number):
            return []
        due = len(self._words) + 1
        if number != str(due):
            raise Refused(f"ID {number!r} where {due} is due")
        if not form.strip():
            raise Refused("the FORM is empty")
        return columns

    def row(self, document: InDocument) -> RawRecord | Reject | None:
        """The sentence, or why it was refused; None for comments alone."""
        own_id, raw = self._comments.get(SENT_ID, ""), cut_raw(b"\n".join(self._raw))
        if self._words:
            words = Fields(
                "form" if self._column is None else str(self._column + 1), "", is_document=False
            )
            spelt = self._column is not None
            return RawRecord(
                self.position, self._values(), raw, own_id, document, fields=words, spelt=spelt
            )
        if not (self._problem or self._has_words or own_id):
            return None
        return Reject(
            self.position,
            self._problem or "the sentence has no words",
            raw,
            own_id,
            document=document,
        )

    def _values(self) -> dict[str, Any]:
        """Comments; the columns, a value a word: None for what a line does not have, and a head that is not said."""
        columns = [list(values) for values in zip_longest(*self._words)]
        if self._column is not None:
            return {str(number): values for number, values in enumerate(columns, 1)}
        values: dict[str, Any] = dict(zip(COLUMNS[1:], columns[1:], strict=True))
        heads = values["head"]
        values["head"] = [
            None if head == "_" else int(head) if head.isdecimal() and len(head) < 10 else head
            for head in heads
        ]
        return self._comments | values


def _columns(text: str, column: int) -> list[str]:
    columns = text.split("\t" if "\t" in text else " ")
    if column >= len(columns) or not columns[column].strip():
        raise Refused(f"no column {column + 1} in {len(columns)}")
    return columns


def conll_rows(source: ByteSource, settings: ReadSettings) -> Iterator[RawRecord | Reject]:
    """The sentences between blank lines: their comments and columns."""
    column, lines = _column_and_lines(source, settings)
    block: _Block | None = None
    for number, line in enumerate(chain(lines, [b""])):
        if column is None:
            ends, is_comment = not line.strip(b" \t"), False
        else:
            ends, is_comment = (
                not line.strip() or line.startswith(DOCUMENT),
                block is None and line.startswith(b"# "),
            )
        if ends:
            if block and block.newdoc is not None:
                source.ends_in = InDocument(0, block.position, block.newdoc)
            if block and (row := block.row(source.ends_in)):
                source.ends_in = source.ends_in._replace(number=source.ends_in.number + 1)
                yield row
            block = None
            if column is not None and line.startswith(DOCUMENT):
                source.ends_in = InDocument(0, number)
        elif not is_comment:
            block = block or _Block(number, column)
            block.add(line, number, settings.max_line_bytes)


def _column_and_lines(
    source: ByteSource, settings: ReadSettings
) -> tuple[int | None, Iterator[bytes]]:
    """The column of the words, from 0, None where the text is CoNLL-U; and all lines."""
    lines = lines_of(source, settings.max_line_bytes)
    if source.split.format == "conllu":
        return None, lines
    head: list[bytes] = []  # up to the first line of words
    for line in lines:
        head.append(line)
        if line.strip() and not line.startswith(b"#"):
            break
    column = settings.text_field or "1"
    if not settings.text_field and head and _is_conllu(head[-1]):
        return None, chain(head, lines)
    if not column.isdecimal() or column == "0":
        raise InputError(
            source.url,
            f"--text-field {column}: columns have no names here, give the word's number from 1",
        )
    return int(column) - 1, chain(head, lines)


def _is_conllu(line: bytes) -> bool:
    """Whether a line of words is one of CoNLL-U: ten columns, of which the first is a number."""
    columns = line.split(b"\t")
    return len(columns) == N_COLUMNS and columns[0][:1].isdigit()
