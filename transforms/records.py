"""What stage A speaks in: pieces of the input, records read from them, and what is known about a piece once it is tokenised.

May import the standard library only. Everything here is small, frozen and picklable; descriptors go to JSON and back
unchanged.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

FORMATS = ("lines", "text", "jsonl", "conllu", "parquet")
DOCUMENTS = ("paragraph", "file")
MIB = 1 << 20


class InputError(Exception):
    """An input as a whole can't be read: missing, unreadable, empty glob, corrupt compression, changed since it was planned.

    Single bad records never raise it; they are rejects. ``url`` names the input, ``reason`` what is wrong and the remedy.
    """

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


@dataclass(frozen=True)
class ReadSettings:
    """How records are read and tokenised. Every field can change the bytes of the parts, so it belongs to the job's identity."""

    text_field: str = "text"  # JSONL and Parquet: field with a string or a list of tokens
    id_field: str = ""  # JSONL and Parquet: field with the sentence's id, "" without one
    tokenizer: str = "auto"  # a name of transforms.tokenizers; auto = whitespace for lines, ptb for running text
    document: str = "paragraph"  # text: what the ids count as a document, "paragraph" or "file"
    max_line_bytes: int = 16 * MIB  # a longer line (CoNLL-U: sentence) is refused, not held
    part_tokens: int = 131_072  # a scratch part is closed at so many tokens …
    part_sentences: int = 16_384  # … or so many sentences …
    part_bytes: int = 32 * MIB  # … or so much text (characters of its tokens and rejects, and 8 more for each)

    def __post_init__(self) -> None:
        if self.document not in DOCUMENTS:
            raise ValueError(f"document={self.document!r} is none of {', '.join(DOCUMENTS)}")
        if not self.text_field:
            raise ValueError("text_field is empty: name the field that holds the text, such as text or tokens")
        for name in ("max_line_bytes", "part_tokens", "part_sentences", "part_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} leaves room for nothing: give 1 or more")

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class FileIdentity:
    """Which version of a file was planned: its size in bytes and its ETag, or time of change where there is none."""

    size: int
    version: str


@dataclass(frozen=True)
class Piece:
    """Something one worker reads at one go: a file, or a range of it. Pointers only.

    ``start … stop`` are bytes for lines and jsonl (a line belongs to the range in which its first byte stands), row
    groups for parquet; ``stop`` None means to the end. ``url`` is the full name, which is also the sentence's ``source``.
    """

    index: int
    url: str
    format: str  # one of FORMATS, never auto
    identity: FileIdentity
    start: int = 0
    stop: int | None = None
    guessed: bool = False  # the format was guessed from the name

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Piece":
        """The inverse of ``to_dict``. KeyError or TypeError if fields are missing or unknown."""
        fields = dict(value)
        return cls(identity=FileIdentity(**fields.pop("identity")), **fields)


@dataclass(frozen=True)
class Sentence:
    """A sentence in its place. ``id`` "" means none of its own; ``position`` counts from 0 within the piece (see the readers)."""

    tokens: tuple[str, ...]
    id: str
    position: int


@dataclass(frozen=True)
class Reject:
    """A record that can't be used, kept in its place as a sentence of zero tokens. ``raw``: its text, cut, valid UTF-8."""

    position: int
    reason: str
    raw: str
    id: str = ""


Record = Sentence | Reject


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
class PieceResult:
    """A piece that stands tokenised in scratch parts; as JSON it is the piece's marker."""

    piece: Piece
    settings: ReadSettings
    parts: tuple[ScratchPart, ...]
    n_positions: int  # what later pieces of the same file add to their positions (lines, rows)
    bytes_read: int
    sha256: str  # of the bytes read, as stored (a whole file: the file's own); Parquet: of the values read
    tokenizer: str  # with versions, as transforms.tokenizers.describe says

    @property
    def n_sentences(self) -> int:
        """Sentences of all its parts."""
        return sum(part.n_sentences for part in self.parts)

    @property
    def n_tokens(self) -> int:
        """Tokens of all its parts."""
        return sum(part.n_tokens for part in self.parts)

    @property
    def n_rejected(self) -> int:
        """Refused records of all its parts."""
        return sum(part.n_rejected for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {**asdict(self), "parts": [asdict(part) for part in self.parts]}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "PieceResult":
        """The inverse of ``to_dict``. KeyError or TypeError if fields are missing or unknown."""
        fields = dict(value)
        return cls(
            piece=Piece.from_dict(fields.pop("piece")),
            settings=ReadSettings(**fields.pop("settings")),
            parts=tuple(ScratchPart(**part) for part in fields.pop("parts")),
            **fields,
        )


def input_fingerprint(pieces: list[Piece]) -> str:
    """``sha256:…`` over names, formats, ranges and identities of all pieces: equal if and only if the same input was planned."""
    text = json.dumps([replace(piece, guessed=False).to_dict() for piece in pieces], sort_keys=True, ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode("ascii", "strict")).hexdigest()


def describe_files(pieces: list[Piece]) -> list[dict[str, Any]]:
    """One JSON object a file, in input order, for the manifest: url, format, whether it was guessed, bytes, version, pieces."""
    files: dict[str, dict[str, Any]] = {}
    for piece in pieces:
        entry = files.setdefault(
            piece.url,
            {
                "url": piece.url,
                "format": piece.format,
                "guessed": piece.guessed,
                "bytes": piece.identity.size,
                "version": piece.identity.version,
                "pieces": 0,
            },
        )
        entry["pieces"] += 1
    return list(files.values())
