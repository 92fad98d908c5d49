"""What a probe reads: label files as users have them, and a store's states in memory, checked against each other.

Every error names the file, the line and the remedy.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elmo_store.format.fields import TOKEN
from elmo_store.format.layout import n_layers
from elmo_store.store import Store
from elmo_store.store import open as open_store
from pipeline.cli.label_files import LabelError, lines_of

Array = npt.NDArray[Any]
LabelFormat = Literal["conllu", "tsv"]
LABELS_AT_ONCE = 1 << 16  # sentences
CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")


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
    """A column's index from 0: a number counted from 1, or, of CoNLL-U, a name. LabelError for anything else."""
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
    index = column_index(column, file_format)
    sentences = []
    for blank, lines in itertools.groupby(lines_of(url), key=lambda numbered: not numbered[1].strip()):
        tokens = [] if blank else [token for number, line in lines if (token := _token(url, number, line, index, file_format))]
        if tokens:
            numbers, words, labels = zip(*tokens, strict=True)
            sentences.append(LabelledSentence(words, labels, f"{url}, line {numbers[0]}"))
    if not sentences:
        raise LabelError(f"{url} holds no labelled sentence")
    return sentences


def _token(url: str, number: int, line: str, index: int, file_format: LabelFormat) -> tuple[int, str, str] | None:
    """The line's number, word and label; None for a comment, a multi-word token and an empty node of CoNLL-U."""
    of_conllu = file_format == "conllu"
    if of_conllu and line.startswith("#"):
        return None
    fields = line.split("\t") if "\t" in line else line.split()
    if of_conllu and not fields[0].isdecimal():
        if "-" in fields[0] or "." in fields[0]:
            return None
        raise LabelError(f"{url}, line {number}: the id {fields[0]!r} is no number: not CoNLL-U; name the format")
    if index >= len(fields):
        raise LabelError(f"{url}, line {number}: {len(fields)} columns, column {index + 1} was asked for")
    return number, fields[of_conllu], fields[index]


def kept_labels(store: Store, field: str) -> list[LabelledSentence]:
    """The sentences of a store that have tokens, labelled by a field of their tokens that it keeps."""
    of_tokens = [name for name, kept in store.fields.items() if kept.per == TOKEN]
    if field not in of_tokens:
        known = ", ".join(of_tokens) or "none"
        raise LabelError(f"{store.url} keeps no values of tokens called {field!r} (it has {known}): embed with --keep-fields")
    sentences = []
    for first in range(0, len(store), LABELS_AT_ONCE):
        stop = min(first + LABELS_AT_ONCE, len(store))
        values = store.sentences(first, stop, columns=[field])[field].to_pylist()
        for sentence, labels in zip(store.sentences(first, stop), values, strict=True):
            where = f"sentence {sentence.index} ({sentence.id}) of {store.url}"
            if not sentence.tokens:
                continue
            if labels is None or None in labels:
                raise LabelError(f"{where} has a token without a {field}: probe sentences that have all")
            sentences.append(LabelledSentence(sentence.tokens, tuple(map(str, labels)), where))
    if not sentences:
        raise LabelError(f"{store.url} holds no labelled sentence")
    return sentences


def read_senses(url: str) -> list[SenseInstance]:
    """Word-sense instances: columns id, sense (several joined by commas), index of the target token, tokens between spaces.

    A first line that begins with ``#`` is a header; further columns are passed over.
    """
    instances = []
    for number, line in lines_of(url):
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


@dataclass(frozen=True)
class TokenStates:
    """Sentences and the states of their tokens, those of BOS and EOS left out.

    They are held as the store has them, since each epoch reads all: 1.3 KB a token of 128 channels in float16, 5.1 KB of 512.

    Attributes:
        states: [tokens, 2L+1, p] in the store's dtype.
        offsets: int64 [sentences + 1]; tokens ``offsets[i] … offsets[i + 1]`` are those of sentence i.
        names: what a message calls each sentence: its number in the store and its id.
        url: the store.
        n_rejected: records that were refused when the store was made.
    """

    states: Array
    offsets: npt.NDArray[np.int64]
    names: tuple[str, ...]
    url: str
    n_rejected: int

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each sentence [sentences]."""
        return np.diff(self.offsets)


def load_states(store: Store) -> TokenStates:
    """The sentences of ``store`` that have tokens. LabelError for a store of mixes, which has no layers to choose from."""
    if store.manifest.kind != "states":
        origin = store.manifest.mix.source if store.manifest.mix else "unknown"
        raise LabelError(f"{store.url} is a store of mixes: probe the store it came from, {origin}")
    try:
        n_layers(store.states)  # the order x, fwd1, bwd1, … is what the layers are made of
    except ValueError as error:
        raise LabelError(f"{store.url}: {error}") from error
    edge = int(store.manifest.boundaries)
    states = np.empty((store.n_tokens, len(store.states), store.channels), store.dtype)
    offsets, names, at = [0], [], 0
    for batch in store.batches(256):
        for sentence, rows in batch:
            if not len(rows):
                continue
            tokens = rows[edge : len(rows) - edge]
            states[at : at + len(tokens)] = tokens
            at += len(tokens)
            offsets.append(at)
            names.append(f"sentence {sentence.index} ({sentence.id})")
    rejected = store.manifest.sizes.rejected
    return TokenStates(states[:at], np.asarray(offsets, np.int64), tuple(names), store.url, rejected)


def check_alignment(vectors: TokenStates, lengths: Sequence[int], wheres: Sequence[str]) -> None:
    """Sentence by sentence the same count of tokens, or a LabelError that names the first sentence that differs.

    Words are not compared: labels may keep escapes (``-LRB-``) that were mapped before embedding.
    """
    have = vectors.lengths()
    refused = (
        f"; {vectors.n_rejected} records were refused when the store was made, see its rejects/" if vectors.n_rejected else ""
    )
    for i, (tokens, labels) in enumerate(zip(have.tolist(), lengths, strict=False)):
        if tokens != labels:
            raise LabelError(
                f"{vectors.names[i]} of {vectors.url} has {tokens} tokens, its labels at {wheres[i]} are {labels}: labels and "
                f"store must come from the same sentences in the same order{refused}"
            )
    if len(have) != len(lengths):
        longer = vectors.names[len(lengths)] if len(have) > len(lengths) else wheres[len(have)]
        raise LabelError(
            f"{vectors.url} has {len(have)} sentences with tokens, the labels are of {len(lengths)}: {longer} has no "
            f"counterpart{refused}"
        )


@dataclass(frozen=True)
class Labelled:
    """A store's sentences with a label for each token, and of another column of the label file a string for each."""

    vectors: TokenStates
    sentences: Sequence[LabelledSentence]
    given: Sequence[Sequence[str]] | None = None


def load_labelled(
    store: str,
    labels: str | None,
    column: str | None = None,
    file_format: LabelFormat | None = None,
    given: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Labelled:
    """A store and its labels: of ``column`` (None = upos of CoNLL-U, 2 of columns), and of the column ``given``.

    ``labels``: their file; None where the columns are fields that the store keeps.
    """
    opened = open_store(store, storage_options=storage_options)
    if labels is None:
        sentences = kept_labels(opened, column or "upos")
        others = None if given is None else [s.labels for s in kept_labels(opened, given)]
        return Labelled(load_states(opened), sentences, others)
    file_format = file_format or label_format(labels)
    sentences = read_token_labels(labels, column or ("upos" if file_format == "conllu" else "2"), file_format)
    vectors = load_states(opened)
    check_alignment(vectors, [len(s.labels) for s in sentences], [s.where for s in sentences])
    others = None if given is None else [s.labels for s in read_token_labels(labels, given, file_format)]
    return Labelled(vectors, sentences, others)
