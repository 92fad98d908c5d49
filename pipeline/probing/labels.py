"""Label files as users have them: token labels (CoNLL-U, or columns with a blank line after a sentence), and word senses.

Every error names the file, the line and the remedy. Files may be on any fsspec URL, and compressed (gzip, bzip2, xz, zstd, by
their names).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

import fsspec

LabelFormat = Literal["conllu", "tsv"]
CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")


class LabelError(ValueError):
    """A label file that can't be used, or that does not belong to its store."""


@dataclass(frozen=True)
class LabelledSentence:
    """The words of a sentence and a label for each; ``where`` is the file and line of its first word."""

    words: tuple[str, ...]
    labels: tuple[str, ...]
    where: str


@dataclass(frozen=True)
class SenseInstance:
    """An occurrence of a target word: the sentence's tokens, the target's index from 0, and its senses (one or more)."""

    id: str
    tokens: tuple[str, ...]
    head: int
    senses: frozenset[str]
    where: str


def label_format(url: str) -> LabelFormat:
    """By the file's name: ``.conllu`` or ``.conll`` with or without a compression is CoNLL-U, anything else columns."""
    return "conllu" if {".conllu", ".conll"} & set(PurePosixPath(url.lower()).suffixes) else "tsv"


def column_index(column: str, file_format: LabelFormat) -> int:
    """A column's place from 0: a number counted from 1, or, of CoNLL-U, a name. LabelError for anything else."""
    if column.isdecimal() and int(column) > 0:
        return int(column) - 1
    if file_format == "conllu" and column.lower() in CONLLU_COLUMNS:
        return CONLLU_COLUMNS.index(column.lower())
    named = f", or one of {', '.join(CONLLU_COLUMNS)}" if file_format == "conllu" else ""
    raise LabelError(f"no column {column!r}: give its number, counted from 1{named}")


def read_token_labels(url: str, column: str, file_format: LabelFormat | None = None) -> list[LabelledSentence]:
    """The labelled sentences of a file. Of CoNLL-U the syntactic words (integer ids), as ``embed`` reads it.

    Columns stand between tabs, or in lines without a tab between spaces; the first is the word.
    """
    file_format = file_format or label_format(url)
    place = column_index(column, file_format)
    sentences: list[LabelledSentence] = []
    words: list[str] = []
    labels: list[str] = []
    first = 0

    def end() -> None:
        if words:
            sentences.append(LabelledSentence(tuple(words), tuple(labels), f"{url}, line {first}"))
        words.clear()
        labels.clear()

    for number, line in _lines(url):
        if not line.strip():
            end()
            continue
        if file_format == "conllu" and line.startswith("#"):
            continue
        fields = line.split("\t") if "\t" in line else line.split()
        if file_format == "conllu" and not fields[0].isdecimal():
            if "-" in fields[0] or "." in fields[0]:
                continue  # a multi-word token, an empty node
            raise LabelError(f"{url}, line {number}: the id {fields[0]!r} is no number: not CoNLL-U; name the format")
        if place >= len(fields):
            raise LabelError(f"{url}, line {number}: {len(fields)} columns, column {place + 1} was asked for")
        if not words:
            first = number
        words.append(fields[1 if file_format == "conllu" else 0])
        labels.append(fields[place])
    end()
    if not sentences:
        raise LabelError(f"{url} holds no labelled sentence")
    return sentences


def read_senses(url: str) -> list[SenseInstance]:
    """Word-sense instances: columns id, sense (several joined by commas), index of the target token, tokens between spaces.

    A first line that begins with ``#`` is a header; further columns are passed over.
    """
    instances = []
    for number, line in _lines(url):
        if not line.strip() or (number == 1 and line.startswith("#")):
            continue
        where, fields = f"{url}, line {number}", line.split("\t")
        if len(fields) < 4:
            raise LabelError(f"{where}: {len(fields)} columns between tabs; id, sense, index and tokens are due")
        tokens = tuple(fields[3].split())
        if not fields[2].isdecimal() or int(fields[2]) >= len(tokens):
            raise LabelError(f"{where}: index {fields[2]!r} of the target in {len(tokens)} tokens; it counts from 0")
        senses = frozenset(sense for sense in fields[1].split(",") if sense)
        if not senses:
            raise LabelError(f"{where}: the sense is empty")
        instances.append(SenseInstance(fields[0], tokens, int(fields[2]), senses, where))
    if not instances:
        raise LabelError(f"{url} holds no word-sense instance")
    return instances


def _lines(url: str) -> Iterator[tuple[int, str]]:
    """The file's lines without their ends, numbered from 1."""
    number = 0
    try:
        with fsspec.open(url, "rt", encoding="utf-8", compression="infer", newline="\n") as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LabelError(f"{url}, after line {number}: not UTF-8 ({error.reason}): convert the file") from error
