"""The formats ``conllu`` and ``conll``: a word a line, blank lines between sentences; the words are taken as they are.

``conllu``: CoNLL-U, or CoNLL-U Plus, whose first line ``# global.columns`` names the columns. Tokens are the FORM of lines with
an integer ID, as structural probes count them; multi-word tokens (``1-2``) and empty nodes (``1.1``) are passed over. The id is
``# sent_id``. Position = number of the sentence's first line, comments included, from 0.

``conll``: columns between tabs, or between runs of spaces where a line has no tab. Lines with ``-DOCSTART-``, ``#begin document``
and ``#end document`` are between documents. Position = number of the first word line. The beginning of the file (`ConllLayout`)
says the rest: whether it is CoNLL-U, which column has the words, whether the first one numbers them, and how many columns a line
has. That decides what a line that begins with ``#`` is: with the file's columns it is a word, otherwise, before a sentence, a
comment. All ranges of a file go by the same beginning.

A sentence with a line that can't be used is rejected whole. The other columns are values a token, for fields that are kept: those
of ``conllu`` go by their names there, ``head`` a number; those of ``conll`` by their numbers, from 1. A sentence's own comments
``# key = value`` of ``conllu`` are fields too, strings. ``# newdoc`` begins documents.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, takewhile, zip_longest
from typing import Any, NamedTuple

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.decompress import Chunks
from transforms.inputs.records import InDocument, InputError, ReadSettings, Reject
from transforms.readers.fields import Fields, RawRecord
from transforms.readers.kept import TWICE
from transforms.readers.lines import (
    LONE_RETURN,
    RAW_BYTES,
    Refused,
    cut_raw,
    lines_of,
    text_of,
)

HEAD_BYTES = 1 << 16  # of a file's text, from its beginning, by which its layout is judged
DOCUMENT = b"-DOCSTART-"
BEGIN, END = b"#begin document", b"#end document"  # of CoNLL-2011 and CoNLL-2012 (OntoNotes)
ONTONOTES_WORD = 3  # index of the words' column there
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
SENT_ID = "sent_id"
OWN_COMMENTS = frozenset((SENT_ID, "newdoc id", "text"))  # the store has ids, documents and tokens
_COMMENT = re.compile(
    r"#\s*([^\s=.,]+(?: id)?)\s*=\s*(.*?)\s*$"
)  # of a file, as global.columns, are those with a dot
_NEW_DOCUMENT = re.compile(r"#\s*newdoc(?:\s+id\s*=\s*(.*?))?\s*$")
_GLOBAL_COLUMNS = re.compile(r"#\s*global\.columns\s*=\s*(.*?)\s*$")
_PLAIN_COMMENT = re.compile(r"# (?:\S+ = |newdoc\b|newpar\b)")  # as of CoNLL-U, in another layout
_BEGINS = re.compile(r"#begin document \((.*)\);?(?:\s+part\s+([0-9]+))?\s*$")
_OTHER = re.compile(r"[0-9]+\.[0-9]+|[0-9]+-[0-9]+")  # numbers of lines that are not a word


class ConllLayout(NamedTuple):
    """What the beginning of a file says of all its lines."""

    names: tuple[str, ...]  # of the columns, () where they have numbers only
    word: int  # index of the column with the words
    number: int = -1  # index of the column that numbers a sentence's words from 1, -1 without one
    separator: str = "\t"
    n_columns: int = 0  # of most lines; 0 if no line was seen
    seen: tuple[frozenset[str], ...] = ()  # values of each column


def layout_of(url: str, head: bytes, input_format: str, settings: ReadSettings) -> ConllLayout:
    """Return the layout of the file whose UTF-8 text begins with ``head``: `HEAD_BYTES` bytes, or all of it.

    InputError if the column of the words is not known.
    """
    *lines, last = head.decode("utf-8", "replace").split("\n")
    if len(head) < HEAD_BYTES or not lines:
        lines.append(last)
    lines = [line.rstrip("\r") for line in lines]
    asked = settings.text_field
    if input_format == "conllu" or not asked:
        first = next((line for line in lines if _is_word(line)), "").split("\t")
        before = takewhile(lambda line: not _is_word(line), lines)
        named = next(filter(None, map(_GLOBAL_COLUMNS.match, before)), None)
        names = named[1].lower().split() if named else []
        is_conllu = len(first) == len(COLUMNS) and first[0][:1].isdigit()
        if named and (len(names) == len(first) or not is_conllu):
            return _named(url, names)
        if input_format == "conllu" or is_conllu:
            return _named(url, COLUMNS)
    elif not asked.isdecimal() or asked == "0":
        raise InputError(
            url, f"--text-field {asked}: columns have no names here, pass the word's number from 1"
        )
    return _numbered(url, lines, int(asked) - 1 if asked else None)


def _named(url: str, names: Sequence[str]) -> ConllLayout:
    if "form" not in names or len(set(names)) < len(names):
        raise InputError(url, "its global.columns must have FORM, and no column twice")
    number = names.index("id") if "id" in names else -1
    return ConllLayout(tuple(names), names.index("form"), number, n_columns=len(names))


def _numbered(url: str, lines: Sequence[str], word: int | None) -> ConllLayout:
    """Return the layout of a file whose columns have no names. ``word``: index of the words' column, None if not given."""
    sentences = _sentences(lines)
    rows = [row for sentence in sentences for row in sentence]
    n_columns = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    is_table = n_columns > 1 and len(rows) > 1
    number = 0 if is_table and all(_counts(sentence, 0, 1) for sentence in sentences) else -1
    if word is None:
        is_ontonotes = n_columns > ONTONOTES_WORD and all(map(_is_ontonotes, sentences))
        word = ONTONOTES_WORD if is_ontonotes else number + 1
        values = [[row[word] for row in each if len(row) > word] for each in sentences]
        if is_table and all(value.isdecimal() for each in values for value in each):
            problem = "numbers only"
        elif (
            n_columns > 1
            and max(map(len, values), default=0) > 2
            and all(len(set(each)) == 1 for each in values)
        ):
            problem = "one value in all lines of a sentence"
        else:
            problem = ""
        if problem:
            raise InputError(
                url,
                f"its column {word + 1} has {problem}: pass the number of the column with the words "
                "with --text-field",
            )
    return ConllLayout(
        (),
        word,
        number,
        "\t" if any("\t" in line for line in lines if _is_word(line)) else " ",
        n_columns,
        tuple(frozenset(values) for values in zip_longest(*rows)),
    )


def _sentences(lines: Sequence[str]) -> list[list[list[str]]]:
    """Return the columns of the words of each sentence, without lines that begin with ``#``."""
    sentences: list[list[list[str]]] = [[]]
    for line in lines:
        if _is_word(line):
            sentences[-1].append(_columns(line))
        elif not line.startswith("#") and sentences[-1]:
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


def _is_word(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(("#", DOCUMENT.decode()))


def _counts(rows: Sequence[Sequence[str]], column: int, first: int) -> bool:
    """Return True if a column numbers the words of a sentence; lines of ranges and empty nodes have none."""
    numbers = [row[column] if column < len(row) else "" for row in rows]
    counted = [number for number in numbers if not _OTHER.fullmatch(number)]
    return counted == [str(number) for number in range(first, first + len(counted))]


def _is_ontonotes(rows: Sequence[Sequence[str]]) -> bool:
    """Return True if the words of a sentence stand after its document, the part and their numbers from 0."""
    documents = {row[0] for row in rows}
    parts = [row[1] for row in rows if len(row) > 1]
    return len(documents) == 1 and all(part.isdecimal() for part in parts) and _counts(rows, 2, 0)


def _columns(line: str) -> list[str]:
    """Return the columns of a line, between tabs or between runs of spaces."""
    if "\t" in line:
        return line.split("\t")
    return [column for column in line.split(" ") if column]


class _Block:
    """The lines of one sentence so far: its words, or the first thing that is wrong with it."""

    def __init__(self, position: int, layout: ConllLayout, n_columns: int = 0) -> None:
        """``n_columns``: of the first line that surely has a word, 0 if there is none."""
        self.position, self._layout, self._n_columns = position, layout, n_columns
        self.newdoc: str | None = None  # name of the document that it begins
        self._words: list[list[str]] = []  # their columns
        self._comments: dict[str, Any] = {}
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
            if "\r" in text:
                raise Refused(LONE_RETURN)
            columns = self._named_word(text) if self._layout.names else self._numbered_word(text)
            if columns and not self._problem:
                self._words.append(columns)
        except Refused as error:
            self._problem = (
                self._problem or f"{error} (line {number - self.position + 1} of the sentence)"
            )
            self._words.clear()

    def _named_word(self, text: str) -> list[str]:
        """The columns of a word, none of a line without one. Refused if the line can't be used."""
        if text.startswith("#"):
            if comment := _COMMENT.match(text):
                name = comment[1]
                if name == SENT_ID and name in self._comments:
                    raise Refused(f"{SENT_ID} is there twice")
                self._comments[name] = TWICE if name in self._comments else comment[2]
            if begins := _NEW_DOCUMENT.match(text):
                self.newdoc = begins[1] or ""
            return []
        columns = text.split("\t")
        n_columns = len(self._layout.names)
        if len(columns) != n_columns:
            self._has_words = True
            raise Refused(f"{len(columns)} columns between tabs instead of {n_columns}")
        if not self._is_due(columns):
            return []
        if not columns[self._layout.word].strip():
            raise Refused("the FORM is empty")
        return columns

    def _numbered_word(self, text: str) -> list[str]:
        """The columns of a word, none of a line without one. Refused if the line can't be used."""
        if text.startswith("#"):
            self._check_hash(text)
        columns = _columns(text)
        if not self._is_due(columns):
            return []
        word = self._layout.word
        if word >= len(columns) or not columns[word].strip():
            raise Refused(f"no column {word + 1} in {len(columns)}")
        return columns

    def _is_due(self, columns: Sequence[str]) -> bool:
        """Return False for the line of a range or an empty node. Refused if another word is due."""
        self._has_words = True
        if self._layout.number < 0:
            return True
        number = columns[self._layout.number]
        if _OTHER.fullmatch(number):
            return False
        due = len(self._words) + 1
        if number != str(due):
            raise Refused(f"ID {number!r} where {due} is due")
        return True

    def _check_hash(self, text: str) -> None:
        """Raise Refused unless a line that begins with ``#`` is a word: what else it may be is not clear."""
        layout, columns = self._layout, _hash_columns(text, self._layout)
        if len(columns) not in (layout.n_columns, self._n_columns):
            raise Refused(
                f"the line begins with # and has {len(columns)} columns instead of {layout.n_columns}"
            )
        for value, seen in zip(columns[1:], layout.seen[1:], strict=False):
            if value not in seen and value != value.upper():
                raise Refused("the line may be a comment or a word")

    def row(self, document: InDocument) -> RawRecord | Reject | None:
        """The sentence, or why it was refused; None for comments alone."""
        own_id, raw = self._comments.get(SENT_ID, ""), cut_raw(b"\n".join(self._raw))
        if self._words:
            names = self._layout.names
            word = "form" if names else str(self._layout.word + 1)
            words = Fields(word, "", is_document=False)
            return RawRecord(
                self.position,
                self._values(),
                raw,
                own_id,
                document,
                fields=words,
                spelt=not names,
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
        if not self._layout.names:
            return {str(number): values for number, values in enumerate(columns, 1)}
        values: dict[str, Any] = dict(zip(self._layout.names, columns, strict=True))
        values.pop("id", None)
        if "head" in values:
            values["head"] = [
                None if head == "_" else int(head) if head.isdecimal() and len(head) < 10 else head
                for head in values["head"]
            ]
        return self._comments | values


def _hash_columns(text: str, layout: ConllLayout) -> list[str]:
    """Return the columns of a line that begins with ``#``: its own spaces are none in a file with tabs, nor the reverse."""
    return [column for column in text.split(layout.separator) if column or layout.separator == "\t"]


def _is_comment(line: bytes, layout: ConllLayout, n_columns: int) -> bool:
    """Return True if a line before a sentence, which begins with ``#``, is a comment.

    ``n_columns``: of the sentence's first line that surely has a word, 0 without one.
    """
    text = line.decode("utf-8", "replace")
    if "\r" in text:
        return False
    if layout.number >= 0 or _PLAIN_COMMENT.match(text):
        return True
    if len(_hash_columns(text, layout)) in (layout.n_columns, n_columns):
        return False
    return text[1:2] in ("", " ", "\t")


def conll_rows(source: ByteSource, settings: ReadSettings) -> Iterator[RawRecord | Reject]:
    """The sentences between blank lines: their comments and columns."""
    chunks = Chunks(source.text())
    head = source.file_head(HEAD_BYTES) if source.split.is_range else chunks.peek(HEAD_BYTES)
    layout = layout_of(source.url, head, source.split.format, settings)
    max_bytes = settings.max_line_bytes
    hashes: list[tuple[int, bytes]] = []  # lines with # before the sentence, and their numbers
    block: _Block | None = None
    for number, line in enumerate(chain(lines_of(source, max_bytes, chunks), [b""])):
        line = line.rstrip(b"\r")
        is_between = not layout.names and _is_between_documents(line)
        if is_between or not line.strip(b" \t" if layout.names else None):
            block = block or _begun(hashes, layout, 0, max_bytes)
            hashes.clear()
            if block and block.newdoc is not None:
                source.ends_in = InDocument(0, block.position, block.newdoc)
            if block and (row := block.row(source.ends_in)):
                source.ends_in = source.ends_in._replace(number=source.ends_in.number + 1)
                yield row
            block = None
            if is_between:
                source.ends_in = InDocument(0, number, _document_name(line))
            continue
        if block is None and not layout.names:
            if line.startswith(b"#") and sum(len(held) for _, held in hashes) <= max_bytes:
                hashes.append((number, line))
                continue
            n_columns = len(_columns(line.decode("utf-8", "replace")))
            block = _begun(hashes, layout, n_columns, max_bytes)
        block = block or _Block(number, layout)
        block.add(line, number, max_bytes)


def _begun(
    hashes: Sequence[tuple[int, bytes]], layout: ConllLayout, n_columns: int, max_bytes: int
) -> _Block | None:
    """Return the sentence that begins with lines with ``#``, None if all of them are comments before it."""
    block: _Block | None = None
    for number, line in hashes:
        if block is None and not _is_comment(line, layout, n_columns):
            block = _Block(number, layout, n_columns)
        if block is not None:
            block.add(line, number, max_bytes)
    return block


def _is_between_documents(line: bytes) -> bool:
    return line.startswith((DOCUMENT, BEGIN, END)) and b"\r" not in line


def _document_name(line: bytes) -> str:
    """Return the name of the document that a line begins, "" if it has none: as in e2e-coref, with the number of its part."""
    if not line.startswith(BEGIN):
        return ""
    text = line.decode("utf-8", "backslashreplace")
    if named := _BEGINS.match(text):
        return named[1] + (f"_{int(named[2])}" if named[2] else "")
    return text.removeprefix(BEGIN.decode()).strip()
