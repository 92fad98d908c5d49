"""What stage A speaks in: splits of the input, the tasks they make, records read from them, and what is known once it is done.

Everything here is small, frozen and picklable; msgspec writes descriptors as JSON and reads them back unchanged.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from posixpath import basename
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from elmo_store.format.fields import KeptField
from elmo_store.format.words import WordLimit

FIELD_FORMATS = (
    "jsonl",
    "json",
    "csv",
    "tsv",
    "parquet",
)  # records with named fields, whose strings are documents
PLAIN_FORMATS = ("text", "lines", "conll")  # that take any line for words
MIB = 1 << 20
ZIP, TAR = "zip", "tar"  # archives whose files can be read


class ArchivePath(NamedTuple):
    """Files in an archive, as ``zip://NAME::ARCHIVE`` or ``tar://NAME::ARCHIVE`` names them."""

    kind: str  # ZIP or TAR
    name: str  # of a file, a folder, or a glob; "" for the whole archive
    archive: str  # a path or URL

    @property
    def url(self) -> str:
        return f"{self.kind}://{self.name}::{self.archive}"


def split_archive_path(url: str) -> ArchivePath | None:
    """The parts of a URL that names files in an archive; None for any other location."""
    head, chained, archive = url.partition("::")
    kind, _, name = head.partition("://")
    return ArchivePath(kind, name.strip("/"), archive) if chained and kind in (ZIP, TAR) else None


def stored_url(url: str) -> str:
    """Where a storage has the bytes of ``url``: of a file in an archive, the archive itself."""
    member = split_archive_path(url)
    return url if member is None else stored_url(member.archive)


def file_name(url: str) -> str:
    """The name by which ids call a file, without its folders; of a file in an archive, its own."""
    member = split_archive_path(url)
    return basename(url if member is None else member.name)


class InputError(Exception):
    """An input as a whole can't be read: missing, unreadable, empty glob, corrupt compression, changed since it was planned.

    Single bad records never raise it; they are rejects. ``url`` names the input, ``reason`` what is wrong and the remedy;
    ``also`` are errors of other inputs that were found on the same occasion.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason
        self.also: tuple[InputError, ...] = ()

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


class DamagedInputError(InputError):
    """An input whose bytes are not what they should be from some place on; what comes before it was given."""


def together(errors: Sequence[InputError]) -> InputError:
    """The first of ``errors``, with all others."""
    first, *others = (each for error in errors for each in (error, *error.also))
    first.also = tuple(others)
    return first


@dataclass(frozen=True)
class ReadSettings:
    """How records are read and tokenised. Every field can change the bytes of the parts, so it belongs to the job's identity."""

    # Field with a string or a list of tokens ("" = text); of conll the word's column, from 1 ("" = by the file's beginning).
    text_field: str = ""
    id_field: str = ""  # field with the record's id, "" without one
    tokenizer: str = "auto"  # a name of transforms.text.tokenizers; auto = whitespace for lines, ptb for running text
    document: str = "auto"  # of text, and whether strings of fields are any; "auto" = lines or paragraphs, as the text looks
    keep_text: bool = False  # lines: a sentence's own text is kept beside its tokens
    fields: tuple[KeptField, ...] = ()  # of the records that bring any: what their sentences keep
    encoding: str = "utf-8"  # of every format but parquet
    skip_version: int = 0  # of the collection that the store is for: sentences that it has are left out; 0 = none are
    # "reject": what comes after the damage in a file is one reject. Not compared: what is read without damage is the same.
    on_bad_file: str = field(default="stop", compare=False)
    word_limit: WordLimit = field(
        default=WordLimit(), compare=False
    )  # of the model, whose fingerprint stands for it
    max_line_bytes: int = 16 * MIB  # a longer line (CoNLL-U: sentence) is refused, not held
    part_tokens: int = 131_072  # a scratch part is closed at so many tokens …
    part_sentences: int = 16_384  # … or so many sentences …
    part_bytes: int = (
        32 * MIB
    )  # … or so much text (characters of its tokens and rejects, and 8 more for each)

    @property
    def line_ends(self) -> str:
        """What the end of a line is in text and documents: "space", "break", or "auto" = as the text looks."""
        return {"line": "break", "paragraph": "space"}.get(self.document, "auto")

    @property
    def split_sentences(self) -> bool:
        """Whether a string of a field is a document of sentences."""
        return self.document != "sentence"


class FileIdentity(Struct, frozen=True):
    """Which version of a file was planned: its size in bytes and its ETag, or time of change where there is none."""

    size: int
    version: str


class Split(Struct, frozen=True):
    """What is read in one go: a file, a range of one, or standard input, whose bytes the launcher put into the store.

    ``url`` is the full name, which is also the sentence's ``source``. A range is of bytes (`transforms.inputs.boundaries` says
    which records belong to it), in Parquet of row groups.
    """

    index: int  # in input order
    url: str
    format: str  # as --input-format, never auto
    identity: FileIdentity
    guessed: bool = False  # the format was guessed from the name
    line_ends: str = "auto"  # "space" or "break" where it is decided for the whole file; "auto" = the reader decides
    start: int = 0
    stop: int = -1  # -1: it is no range
    piped: bool = False

    @property
    def is_range(self) -> bool:
        return self.stop >= 0


@dataclass(frozen=True)
class ReadTask:
    """What one worker reads and tokenises under one marker: a range, a file, or a run of small files. Pointers only."""

    index: int  # in input order
    splits: tuple[Split, ...]

    @property
    def name(self) -> str:
        """Of its marker and its scratch parts."""
        return f"{self.index:05d}"


class InDocument(NamedTuple):
    """Where a sentence stands in a document of several records."""

    number: int  # its own there, from 0 (from the split's beginning, where the document begins before it); -1: its record is it
    start: int = -1  # position within the split at which the document begins; -1 before it (the file, if none began in it)
    name: str = ""  # the document's own, "" without one


AT_FIRST, IN_RECORD = InDocument(0), InDocument(-1)


@dataclass(frozen=True)
class ReadSentence:
    """A sentence. ``position`` counts from 0 within the split (see the readers).

    Its id in the store is ``id``, where that is "" ``FILE:ORDINAL`` (ordinal -1: the position), and ``:WITHIN`` after it where
    within is 0 or more; ordinals and positions of ranges are counted on from range to range of a file when parts are numbered.
    """

    tokens: tuple[str, ...]
    id: str
    position: int
    ordinal: int = -1
    within: int = -1
    text: str = ""  # as it stands, where it is kept
    document: InDocument = IN_RECORD  # whose sentence is the number within
    fields: tuple[Any, ...] = ()  # a value of each of the settings' fields


@dataclass(frozen=True)
class Reject:
    """A record that can't be used, kept in its place as a sentence of zero tokens. ``raw``: its text, cut, valid UTF-8."""

    position: int
    reason: str
    raw: str
    id: str = ""
    ordinal: int = -1
    within: int = -1
    document: InDocument = IN_RECORD


Record = ReadSentence | Reject


def id_within(record: str, within: int) -> str:
    """The id of a sentence of ``record``, an id; ``within``: its number there, -1 where the record is the sentence."""
    return record if within < 0 else f"{record}:{within}"


@dataclass(frozen=True)
class ScratchPart:
    """What is known of one scratch part; its text stays in the store."""

    path: str  # relative to the store
    rejects: str  # path of its rejects (JSON lines), "" without any
    n_sentences: int  # rejects included: they are sentences of zero tokens
    n_tokens: int
    n_nonempty: int  # sentences that have at least one token
    n_rejected: int
    n_words_cut: int  # words longer than the biLM's characters hold
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TaskResult:
    """A task whose splits stand tokenised in scratch parts; as JSON it is the task's marker."""

    task: ReadTask
    settings: ReadSettings
    parts: tuple[ScratchPart, ...]
    n_positions: int  # what later ranges of the same file add to their positions (lines, rows)
    n_ordinals: int  # what they add to their ordinals (paragraphs, or sentences)
    tokenizer: str  # with versions, as transforms.text.tokenizers.describe says
    ends_in: InDocument = AT_FIRST  # what the next record of the same file would stand in
    n_skipped: int = 0  # sentences that the collection has


def input_fingerprint(splits: Sequence[Split]) -> str:
    """``sha256:…`` over names, formats, ranges and identities of all splits: equal if and only if the same input was planned."""
    digest = hashlib.sha256()
    for split in splits:
        digest.update(msgspec.json.encode(replace(split, guessed=False)) + b"\n")
    return "sha256:" + digest.hexdigest()


def describe_files(splits: Sequence[Split]) -> list[dict[str, Any]]:
    """One JSON object a file, in input order, for the manifest: url, format, whether it was guessed, bytes, version, pieces."""
    n_splits = Counter(split.url for split in splits)
    return [
        {
            "url": split.url,
            "format": split.format,
            "guessed": split.guessed,
            "bytes": split.identity.size,
            "version": split.identity.version,
            "pieces": n_splits[split.url],
        }
        for split in {split.url: split for split in splits}.values()
    ]
