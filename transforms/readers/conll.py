"""The format ``conll``: a word a line with its columns, as in CoNLL-2003; blank lines between sentences.

A file whose first word line has the ten columns of CoNLL-U is read as that. Otherwise columns are separated by tabs if the line
has one, else by spaces; the word is the first (``--text-field 2`` takes the second). ``-DOCSTART-`` lines begin documents and
are no words; a line that begins with ``# `` before the words of a sentence is a comment. Position = number of the sentence's
first line, from 0. A sentence with a line that lacks the column is refused whole.
"""

from collections.abc import Iterator

from transforms.inputs.byte_source import ByteSource
from transforms.inputs.records import InputError, Piece, ReadSettings, Record, Reject, Sentence
from transforms.readers.conllu import is_conllu, sentences_of
from transforms.readers.lines import RAW_BYTES, Line, LongLine, cut_raw, lines_of, text_of
from transforms.text.tokenizers import Tokenizer

DOCUMENT = "-DOCSTART-"


def read_conll(source: ByteSource, piece: Piece, settings: ReadSettings, tokenizer: Tokenizer) -> Iterator[Record]:
    """One record a sentence. ``tokenizer`` is not used: the words are given."""
    lines: Iterator[Line] = lines_of(source, settings.max_line_bytes)
    head: list[Line] = []
    for line in lines:
        head.append(line)
        if isinstance(line, LongLine) or (line.strip() and not line.startswith(b"#")):
            break
    found = bool(head) and not isinstance(head[-1], LongLine) and is_conllu(head[-1])

    def again() -> Iterator[Line]:
        yield from head
        yield from lines

    if found and not settings.text_field:
        yield from sentences_of(again(), settings)
        return
    column = settings.text_field or "1"
    if not column.isdecimal() or column == "0":
        raise InputError(piece.url, f"--text-field {column}: columns have no names here, give the word's number from 1")
    yield from _columns(again(), int(column) - 1, settings)


def _columns(lines: Iterator[Line], column: int, settings: ReadSettings) -> Iterator[Record]:
    words: list[str] = []
    raw: list[bytes] = []
    raw_bytes = 0  # of the sentence, kept or not
    problem = ""
    first = -1  # line of the sentence's first word, -1 between sentences
    number = -1

    def record() -> Iterator[Record]:
        if problem:
            yield Reject(first, problem, cut_raw(b"\n".join(raw)))
        elif words:
            yield Sentence(tuple(words), "", first)

    for number, line in enumerate(lines):
        data = line.head if isinstance(line, LongLine) else line
        if not data.strip() or data.startswith(DOCUMENT.encode()):
            yield from record()
            words, raw, raw_bytes, problem, first = [], [], 0, "", -1
            continue
        if first < 0 and data.startswith(b"# "):
            continue
        first = number if first < 0 else first
        if raw_bytes < RAW_BYTES:
            raw.append(data[:RAW_BYTES])
        raw_bytes += len(data)
        text = text_of(line, number, settings.max_line_bytes)
        if problem:
            continue
        if isinstance(text, Reject):
            problem = f"{text.reason} (line {number}, counted from 0)"
        elif raw_bytes > settings.max_line_bytes:
            problem, words = f"the sentence is longer than {settings.max_line_bytes} bytes", []
        else:
            columns = text.split("\t") if "\t" in text else text.split(" ")
            if column < len(columns) and columns[column].strip():
                words.append(columns[column])
            else:
                problem = f"no column {column + 1} in {len(columns)} (line {number}, counted from 0)"
    yield from record()
