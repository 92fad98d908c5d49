"""One task of the input → scratch parts in the store, streamed in bounded memory, with a marker of what was done. No Beam here.

The marker comes last and holds counts and checksums: whatever happens before it, the task counts as not done, and doing it
again puts the same bytes under the same names.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.errors import StoreError
from elmo_store.storage.root import Root
from model.characters import n_truncated_words
from transforms.inputs.records import (
    DamagedInputError,
    InputError,
    ReadSettings,
    ReadTask,
    Record,
    Reject,
    ScratchPart,
    TaskResult,
    together,
)
from transforms.readers import cut_short, open_piece
from transforms.runtime.job_root import again, may_pass
from transforms.runtime.progress_files import read_progress
from transforms.runtime.work import READ, WORK
from transforms.text import tokenizers

SCRATCH_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("within", pa.int32(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("tokens", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
    ]
)
_CELL_BYTES = 8  # what a token or a sentence costs beside its text, so that empty ones fill a part too


def scratch_part(task: ReadTask, part: int) -> str:
    """Scratch part ``part`` of a task: Parquet of `SCRATCH_SCHEMA`, positions and ordinals counted within the piece."""
    return f"_work/parts/{task.name}-{part:05d}.parquet"


def scratch_rejects(task: ReadTask, part: int) -> str:
    """The rejects of a scratch part: JSON lines of sentence (counted within the part), id, source, place, reason, raw."""
    return f"_work/rejects/{task.name}-{part:05d}.jsonl"


def task_marker(task: ReadTask) -> str:
    """The marker of a task that is done: a `TaskResult` as JSON."""
    return f"{READ}/{task.name}.json"


def marked_result(root: Root, task: ReadTask, settings: ReadSettings) -> TaskResult | None:
    """What the marker of ``task`` says; None unless it is of this very task, read in this way."""
    try:
        result = TaskResult.from_dict(root.get_json(task_marker(task)))
    except (StoreError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    same = result.task == task and result.settings == settings and result.tokenizer == _tokenizer(task, settings)
    return result if same else None


def task_result(root: Root, task: ReadTask, settings: ReadSettings) -> TaskResult | None:
    """What `marked_result` says, if all its scratch parts are there."""
    result = marked_result(root, task, settings)
    try:
        whole = result is not None and all(root.size(part.path) == part.bytes for part in result.parts)
        whole = whole and result is not None and all(root.exists(part.rejects) for part in result.parts if part.rejects)
    except (StoreError, OSError, ValueError):
        return None
    return result if whole else None


def finished_task(
    task: ReadTask, root: Root, settings: ReadSettings, storage_options: Mapping[str, Any] | None = None
) -> tuple[TaskResult, float | None]:
    """The result of ``task``, done now if it was not, and the seconds that took; None if it was done already."""
    began = time.perf_counter()
    done = task_result(root, task, settings)
    if done is not None:
        read_progress(root).done(done)
        return done, None
    local = "://" not in task.pieces[0].url
    result = again(partial(tokenise_task, root, task, settings, storage_options), local=local, passing=_may_pass)
    return result, time.perf_counter() - began


def _may_pass(error: BaseException) -> bool:
    """Whether an input that could not be read may be readable the next time. What concerns the store was tried again already."""
    cause = error.__cause__
    return isinstance(error, InputError) and not error.also and cause is not None and may_pass(cause)


def tokenise_task(
    root: Root,
    task: ReadTask,
    settings: ReadSettings,
    storage_options: Mapping[str, Any] | None = None,
) -> TaskResult:
    """Read the pieces of ``task`` into scratch parts and write its marker.

    A part is closed at ``part_tokens`` tokens, ``part_sentences`` sentences or ``part_bytes`` characters of text, whichever
    comes first (a sentence is never divided). ``storage_options`` are for the input. InputError if a file can't be read, with
    those of its other files that can't, once all are looked at.
    """
    progress = read_progress(root)
    parts: list[ScratchPart] = []
    part = _Part(task)
    left = settings.max_sentences or -1
    n_positions = n_ordinals = bytes_read = 0
    digest = hashlib.sha256()
    errors: list[InputError] = []
    for piece in task.pieces:
        source, records = open_piece(piece, settings, storage_options, root)
        try:
            for record in _until_damage(records, settings):
                if left == 0:
                    break
                left -= 1
                part.add(record, piece.url)
                if part.is_full(settings):
                    parts.append(part.write(root, len(parts)))
                    part = _Part(task)
                    progress.reading(bytes_read + source.bytes_read)
        except InputError as error:
            errors.append(error)
            continue
        n_positions, n_ordinals = source.n_positions, source.n_ordinals
        bytes_read += source.bytes_read
        digest.update(source.sha256.encode())
        if left == 0:
            break
    if errors:
        raise together(errors) from errors[0].__cause__
    if part.n_sentences:
        parts.append(part.write(root, len(parts)))
    alone = len(task.pieces) == 1
    result = TaskResult(
        task=task,
        settings=settings,
        parts=tuple(parts),
        n_positions=n_positions if alone else 0,
        n_ordinals=n_ordinals if alone else 0,
        bytes_read=bytes_read,
        sha256=source.sha256 if alone else digest.hexdigest(),
        tokenizer=_tokenizer(task, settings),
    )
    root.put_json(task_marker(task), result.to_dict())
    progress.done(result)
    return result


def _until_damage(records: Iterator[Record], settings: ReadSettings) -> Iterator[Record]:
    """``records``; where a damaged file is to be rejected, a reject in place of all that comes after the damage."""
    position = -1
    try:
        for record in records:
            position = record.position
            yield record
    except DamagedInputError as error:
        if settings.on_bad_file != "reject":
            raise
        yield Reject(position + 1, cut_short(error.reason), "")


def first_sentences(root: Root, results: Iterable[TaskResult], n_sentences: int) -> Iterator[TaskResult]:
    """``results`` up to the first ``n_sentences`` sentences: the part in which the last of them stands is written anew, cut."""
    left = n_sentences
    for result in results:
        parts = []
        for part in result.parts:
            if not left:
                break
            part = part if part.n_sentences <= left else _cut(root, part, left)
            left -= part.n_sentences
            parts.append(part)
        yield replace(result, parts=tuple(parts))


def _cut(root: Root, part: ScratchPart, n_sentences: int) -> ScratchPart:
    table = pq.read_table(BytesIO(root.get(part.path))).slice(0, n_sentences)
    data = _encoded(table)
    rejects = part.rejects
    n_rejected = 0
    if rejects:
        lines = [
            line for line in root.get(rejects).decode("ascii").splitlines(True) if json.loads(line)["sentence"] < n_sentences
        ]
        n_rejected, rejects = len(lines), f"{WORK}/rejects/cut.jsonl" if lines else ""
        if lines:
            root.put(rejects, "".join(lines).encode("ascii"))
    path = f"{WORK}/parts/cut.parquet"
    root.put(path, data)
    lengths = table["n_tokens"].to_pylist()
    return ScratchPart(
        path=path,
        rejects=rejects,
        n_sentences=n_sentences,
        n_tokens=sum(lengths),
        n_nonempty=sum(1 for length in lengths if length),
        n_rejected=n_rejected,
        n_words_cut=sum(n_truncated_words(tokens) for tokens in table["tokens"].to_pylist()),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _encoded(table: pa.Table) -> bytes:
    sink = BytesIO()
    pq.write_table(table, sink, compression="zstd", row_group_size=max(table.num_rows, 1))
    return sink.getvalue()


def _tokenizer(task: ReadTask, settings: ReadSettings) -> str:
    return tokenizers.describe(settings.tokenizer, task.pieces[0].format, split_sentences=settings.split_sentences)


class _Part:
    """A scratch part that is being filled."""

    def __init__(self, task: ReadTask) -> None:
        self._task = task
        self._sources: list[str] = []
        self._ordinals: list[int] = []
        self._within: list[int] = []
        self._ids: list[str] = []
        self._positions: list[int] = []
        self._tokens: list[tuple[str, ...]] = []
        self._rejects: list[str] = []
        self._n_tokens = self._n_words_cut = self._bytes = 0

    @property
    def n_sentences(self) -> int:
        """Sentences so far, rejects included."""
        return len(self._tokens)

    def add(self, record: Record, source: str) -> None:
        """Append a record; a reject also as a sentence of zero tokens."""
        tokens: tuple[str, ...] = ()
        if isinstance(record, Reject):
            reject = {"sentence": self.n_sentences, "id": record.id, "source": source, "position": record.position}
            reject |= {"ordinal": record.ordinal, "within": record.within, "reason": record.reason, "raw": record.raw}
            # ASCII: no separator of any alphabet divides a line of these files.
            self._rejects.append(json.dumps(reject, ensure_ascii=True) + "\n")
            self._bytes += len(self._rejects[-1])
        else:
            tokens = record.tokens
            self._n_words_cut += n_truncated_words(tokens)
        self._ids.append(record.id)
        self._sources.append(source)
        self._positions.append(record.position)
        self._ordinals.append(record.ordinal)
        self._within.append(record.within)
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
                "source": self._sources,
                "position": self._positions,
                "ordinal": self._ordinals,
                "within": self._within,
                "n_tokens": [len(tokens) for tokens in self._tokens],
                "tokens": self._tokens,
            },
            schema=SCRATCH_SCHEMA,
        )
        data = _encoded(table)
        path, rejects = scratch_part(self._task, number), ""
        root.put(path, data)
        if self._rejects:
            rejects = scratch_rejects(self._task, number)
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
