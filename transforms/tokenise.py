"""Stage A: one piece of the input → scratch parts in the store, streamed in bounded memory, with a marker of what was done.

May import apache_beam, elmo_store, model.characters, transforms.readers and transforms.records, pyarrow. The marker comes
last and holds counts and checksums: whatever happens before it, the piece counts as not done, and doing it again puts the
same bytes under the same names.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.pvalue import PCollection

from elmo_store.errors import StoreError
from elmo_store.storage import Root
from model.characters import n_words_cut
from transforms import tokenizers
from transforms.readers import open_piece
from transforms.readers.registry import ONE_RECORD_A_POSITION
from transforms.records import Piece, PieceResult, ReadSettings, Record, Reject, ScratchPart
from transforms.results import add
from transforms.work import PIECES

SCRATCH_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("tokens", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)
_CELL_BYTES = 8  # what a token or a sentence costs beside its text, so that empty ones fill a part too


class TokenisePieces(beam.PTransform[PCollection[Piece], PCollection[int]]):
    """Pieces of the input → scratch parts in the store, spread over the workers; the number of every piece that is done."""

    def __init__(self, root: Root, read: ReadSettings, input_storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._arguments = (root, read, input_storage_options)

    def expand(self, pieces: PCollection[Piece]) -> PCollection[int]:
        """Wire `tokenise_piece`, with its counters."""
        return (
            pieces
            | "Spread pieces" >> beam.Reshuffle()
            | "Tokenise" >> beam.Map(lambda piece, arguments: _counted(piece, *arguments), self._arguments).with_output_types(int)
        )


def _counted(piece: Piece, root: Root, read: ReadSettings, input_storage_options: Mapping[str, Any] | None) -> int:
    """Tokenise ``piece``, unless it is done, and count what was read; returns its number."""
    began = time.perf_counter()
    if piece_result(root, piece, read) is None:
        result = tokenise_piece(root, piece, read, input_storage_options)
        add("sentences_read", result.n_sentences)
        add("tokens_read", result.n_tokens)
        add("records_rejected", result.n_rejected)
        add("words_cut", sum(part.n_words_cut for part in result.parts))
        add("milliseconds_tokenising", 1000 * (time.perf_counter() - began))
    return piece.index


def scratch_part(piece: int, part: int) -> str:
    """Scratch part ``part`` of a piece: Parquet of `SCRATCH_SCHEMA`, positions counted within the piece."""
    return f"_work/parts/{piece:05d}-{part:05d}.parquet"


def scratch_rejects(piece: int, part: int) -> str:
    """The rejects of a scratch part: JSON lines of sentence (counted within the part), id, source, position, reason, raw."""
    return f"_work/rejects/{piece:05d}-{part:05d}.jsonl"


def piece_marker(piece: int) -> str:
    """The marker of a piece that is tokenised: a `PieceResult` as JSON."""
    return f"{PIECES}/{piece:05d}.json"


def piece_result(root: Root, piece: Piece, settings: ReadSettings) -> PieceResult | None:
    """What the marker of ``piece`` says; None unless it is of this very piece, read in this way, and all its parts are there."""
    try:
        result = PieceResult.from_dict(root.get_json(piece_marker(piece.index)))
        same = result.piece == piece and result.settings == settings
        same = same and result.tokenizer == tokenizers.describe(settings.tokenizer, piece.format)
        whole = same and all(root.size(part.path) == part.bytes for part in result.parts)
        whole = whole and all(root.exists(part.rejects) for part in result.parts if part.rejects)
    except (StoreError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return result if whole else None


def tokenise_piece(
    root: Root, piece: Piece, settings: ReadSettings, storage_options: Mapping[str, Any] | None = None
) -> PieceResult:
    """Read ``piece`` into scratch parts and write its marker, unless a valid one is there already.

    A part is closed at ``part_tokens`` tokens, ``part_sentences`` sentences or ``part_bytes`` characters of text, whichever
    comes first (a sentence is never divided). ``storage_options`` are for the input. InputError if the input as a whole
    can't be read.
    """
    done = piece_result(root, piece, settings)
    if done is not None:
        return done
    source, records = open_piece(piece, settings, storage_options)
    parts: list[ScratchPart] = []
    part = _Part(piece)
    n_records = 0
    for record in records:
        n_records += 1
        part.add(record)
        if part.is_full(settings):
            parts.append(part.write(root, len(parts)))
            part = _Part(piece)
    if part.n_sentences:
        parts.append(part.write(root, len(parts)))
    result = PieceResult(
        piece=piece,
        settings=settings,
        parts=tuple(parts),
        n_positions=n_records if piece.format in ONE_RECORD_A_POSITION else 0,
        bytes_read=source.bytes_read,
        sha256=source.sha256,
        tokenizer=tokenizers.describe(settings.tokenizer, piece.format),
    )
    root.put_json(piece_marker(piece.index), result.to_dict())
    return result


class _Part:
    """A scratch part that is being filled."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._ids: list[str] = []
        self._positions: list[int] = []
        self._tokens: list[tuple[str, ...]] = []
        self._rejects: list[str] = []
        self._n_tokens = self._n_words_cut = self._bytes = 0

    @property
    def n_sentences(self) -> int:
        """Sentences so far, rejects included."""
        return len(self._tokens)

    def add(self, record: Record) -> None:
        """Append a record; a reject also as a sentence of zero tokens."""
        tokens: tuple[str, ...] = ()
        if isinstance(record, Reject):
            reject = {"sentence": self.n_sentences, "id": record.id, "source": self._piece.url}
            reject |= {"position": record.position, "reason": record.reason, "raw": record.raw}
            # ASCII: no separator of any alphabet divides a line of these files.
            self._rejects.append(json.dumps(reject, ensure_ascii=True) + "\n")
            self._bytes += len(self._rejects[-1])
        else:
            tokens = record.tokens
            self._n_words_cut += n_words_cut(tokens)
        self._ids.append(record.id)
        self._positions.append(record.position)
        self._tokens.append(tokens)
        self._n_tokens += len(tokens)
        self._bytes += sum(map(len, tokens)) + _CELL_BYTES * (1 + len(tokens))

    def is_full(self, settings: ReadSettings) -> bool:
        """Whether the part is to be closed."""
        return (
            self._n_tokens >= settings.part_tokens
            or self.n_sentences >= settings.part_sentences
            or self._bytes >= settings.part_bytes
        )

    def write(self, root: Root, number: int) -> ScratchPart:
        """Put the part (and its rejects) into the store."""
        table = pa.table(
            {
                "id": self._ids,
                "source": [self._piece.url] * self.n_sentences,
                "position": self._positions,
                "n_tokens": [len(tokens) for tokens in self._tokens],
                "tokens": self._tokens,
            },
            schema=SCRATCH_SCHEMA,
        )
        sink = BytesIO()
        pq.write_table(table, sink, compression="zstd", row_group_size=max(self.n_sentences, 1))
        data = sink.getvalue()
        path, rejects = scratch_part(self._piece.index, number), ""
        root.put(path, data)
        if self._rejects:
            rejects = scratch_rejects(self._piece.index, number)
            root.put(rejects, "".join(self._rejects).encode("ascii"))
        return ScratchPart(
            path=path,
            rejects=rejects,
            n_sentences=self.n_sentences,
            n_tokens=self._n_tokens,
            n_nonempty=sum(1 for tokens in self._tokens if tokens),
            n_rejected=len(self._rejects),
            n_words_cut=self._n_words_cut,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
