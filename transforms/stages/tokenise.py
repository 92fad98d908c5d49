"""Stage A: the input's tasks → scratch parts in the store, streamed in bounded memory, with a marker of what was done.

The marker of a task comes last and holds counts and checksums: whatever happens before it, the task counts as not done, and doing
it again puts the same bytes under the same names. `tokenise_tasks` spreads tasks over workers, or over processes of this machine.
"""

import hashlib
import json
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from io import BytesIO
from typing import Any

import apache_beam as beam
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.transforms.window import GlobalWindows

from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.storage.failures import is_transient, retry
from elmo_store.storage.json_values import convert
from elmo_store.storage.root import Root
from transforms.inputs.records import (
    InDocument,
    InputError,
    ReadSentence,
    ReadSettings,
    ReadTask,
    Record,
    ScratchPart,
    TaskResult,
    stored_url,
    together,
)
from transforms.readers import open_split
from transforms.runtime.results import Outcome, counted, note_bad_files
from transforms.runtime.wiring import Spread
from transforms.runtime.work import READ
from transforms.stages.skip import SkipKnown
from transforms.text import tokenizers

SCRATCH_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("within", pa.int32(), nullable=False),
        pa.field(
            "document_sentence", pa.int64(), nullable=False
        ),  # these three are an `InDocument`
        pa.field("document_start", pa.int64(), nullable=False),
        pa.field("document", pa.string(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field(
            "tokens", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False
        ),
    ]
)
_CELL_BYTES = (
    8  # what a token or a sentence costs beside its text, so that empty ones fill a part too
)
_WAITING = 4  # tasks that wait for a process, a process


def tokenise_tasks(
    root: Root,
    read: ReadSettings,
    input_storage_options: Mapping[str, Any] | None,
    *,
    processes: int,
) -> beam.PTransform:
    """Tasks of the input → scratch parts in the store; the index of each task.

    A task some of whose files can't be read leaves word of them (`note_bad_files`), so that the plan names them all.

    ``processes``: of each worker. More than 1 is for a runner that runs in one process of this machine: Python tokenises on
    one core a process, and the engine is not at work yet.
    """
    arguments = (root, read, input_storage_options)
    work = beam.Map(finish_task, *arguments)
    if processes > 1:
        work = beam.ParDo(_TokeniseInProcesses(processes, *arguments)).with_output_types(int)
    return "Spread tasks" >> Spread() | "Tokenise" >> work


class _TokeniseInProcesses(beam.DoFn):
    """Tasks go to processes as they come; a bundle ends when all of its tasks have."""

    def __init__(
        self, processes: int, root: Root, read: ReadSettings, options: Mapping[str, Any] | None
    ) -> None:
        self._arguments = (root, read, options)
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None

    def start_bundle(self) -> None:
        self._futures: list[Future[int]] = []

    def process(self, element: ReadTask) -> None:
        if self._pool is None:
            # Not forked: threads of the runner and of PyTorch would be cut off in the middle of what they hold.
            self._pool = ProcessPoolExecutor(
                self._processes, mp_context=multiprocessing.get_context("spawn")
            )
        self._futures.append(self._pool.submit(finish_task, element, *self._arguments))
        if len(self._futures) > _WAITING * self._processes:
            self._futures[-_WAITING * self._processes].result()

    def finish_bundle(self) -> Iterable[Any]:
        for future in self._futures:
            yield GlobalWindows.windowed_value_at_end_of_window(future.result())
        self.teardown()

    def teardown(self) -> None:
        if self._pool is not None:  # the stages after this one need the cores
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def finish_task(
    task: ReadTask, root: Root, settings: ReadSettings, storage_options: Mapping[str, Any] | None
) -> int:
    """Do ``task`` unless it is done already; returns its index."""
    if task_result(root, task, settings) is None:
        work = partial(tokenise_task, root, task, settings, storage_options)
        try:
            result = retry(
                work, local="://" not in stored_url(task.splits[0].url), transient=_is_transient
            )
            counts: Counter[str] = Counter()
            for part in result.parts:
                counts.update(tokens_read=part.n_tokens, records_rejected=part.n_rejected)
            counted(Outcome(counts=counts) + Outcome.retried(root))
        except InputError as error:
            note_bad_files(root, task.name, error)
    return task.index


def _is_transient(error: BaseException) -> bool:
    """Whether an input that could not be read may be readable the next time. What concerns the store was tried again already."""
    cause = error.__cause__
    return (
        isinstance(error, InputError)
        and not error.also
        and cause is not None
        and is_transient(cause)
    )


def scratch_paths(task: ReadTask, part: int) -> tuple[str, str]:
    """Scratch part ``part`` of a task and its rejects.

    The part: Parquet of `scratch_schema`, positions and ordinals counted within the split. The rejects:
    JSON lines of sentence (counted within the part), id, source, position, reason, raw.
    """
    name = f"{task.name}-{part:05d}"
    return f"{layout.WORK}/parts/{name}.parquet", f"{layout.WORK}/rejects/{name}.jsonl"


def scratch_schema(settings: ReadSettings) -> pa.Schema:
    """Columns of a scratch part: with the sentences' own text and fields where these are kept."""
    return pa.schema(
        [
            *SCRATCH_SCHEMA,
            *([layout.TEXT] if settings.keep_text else []),
            *(f.column for f in settings.fields),
        ]
    )


def task_marker(task: ReadTask) -> str:
    """The marker of a task that is done: a `TaskResult` as JSON."""
    return f"{READ}/{task.name}.json"


def marked_result(root: Root, task: ReadTask, settings: ReadSettings) -> TaskResult | None:
    """What the marker of ``task`` says; None unless it is of this very task, read in this way."""
    try:
        result = convert(root.get_json(task_marker(task)), TaskResult)
    except (StoreError, OSError, ValueError):
        return None
    same = result.task == task and result.settings == settings
    return (
        result
        if same and result.tokenizer == tokenizers.describe(settings, task.splits[0].format)
        else None
    )


def task_result(root: Root, task: ReadTask, settings: ReadSettings) -> TaskResult | None:
    """What `marked_result` says, if all its scratch parts are there."""
    result = marked_result(root, task, settings)
    if result is None:
        return None
    try:
        whole = all(root.size(part.path) == part.bytes for part in result.parts)
        whole = whole and all(root.exists(part.rejects) for part in result.parts if part.rejects)
    except (StoreError, OSError, ValueError):
        return None
    return result if whole else None


def tokenise_task(
    root: Root,
    task: ReadTask,
    settings: ReadSettings,
    storage_options: Mapping[str, Any] | None = None,
) -> TaskResult:
    """Read the splits of ``task`` into scratch parts and write its marker.

    A part is closed at ``part_tokens`` tokens, ``part_sentences`` sentences or ``part_bytes`` characters of text, whichever
    comes first (a sentence is never divided). ``storage_options`` are for the input. InputError if a file can't be read, with
    those of its other files that can't, once all are looked at.
    """
    parts: list[ScratchPart] = []
    part = _Part(settings)
    n_positions = n_ordinals = 0
    ends_in = InDocument(0)
    errors: list[InputError] = []
    skip = SkipKnown(root, settings)
    for split in task.splits:
        source, records = open_split(split, settings, storage_options, root)
        try:
            for record in skip.new(records):
                part.add(record, split.url)
                if part.is_full():
                    parts.append(part.write(root, *scratch_paths(task, len(parts))))
                    part = _Part(settings)
        except InputError as error:
            errors.append(error)
        n_positions, n_ordinals, ends_in = source.n_positions, source.n_ordinals, source.ends_in
    if errors:
        raise together(errors) from errors[0].__cause__
    if part.n_sentences:
        parts.append(part.write(root, *scratch_paths(task, len(parts))))
    if len(task.splits) > 1:
        n_positions, n_ordinals, ends_in = 0, 0, InDocument(0)
    tokenizer = tokenizers.describe(settings, task.splits[0].format)
    result = TaskResult(
        task, settings, tuple(parts), n_positions, n_ordinals, tokenizer, ends_in, skip.n_skipped
    )
    root.put_json(task_marker(task), msgspec.to_builtins(result))
    return result


class _Part:
    """A scratch part that is being filled."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings, self._limit = settings, settings.word_limit
        self._keeps_more = settings.keep_text or bool(settings.fields)
        self._rows: list[tuple[Any, ...]] = []
        self._rejects: list[str] = []
        self._n_tokens = self._n_words_cut = self._n_bytes = 0

    @property
    def n_sentences(self) -> int:
        return len(self._rows)

    def add(self, record: Record, source: str) -> None:
        """Append a record; a reject also as a sentence of zero tokens."""
        tokens: tuple[str, ...] = ()
        if isinstance(record, ReadSentence):
            tokens = record.tokens
            self._n_words_cut += self._limit.n_truncated(tokens)
        else:
            reject = {
                "sentence": self.n_sentences,
                "id": record.id,
                "source": source,
                "position": record.position,
            }
            reject |= {
                "ordinal": record.ordinal,
                "within": record.within,
                "reason": record.reason,
                "raw": record.raw,
            }
            # ASCII: no separator of any alphabet divides a line of these files.
            self._rejects.append(json.dumps(reject, ensure_ascii=True) + "\n")
            self._n_bytes += len(self._rejects[-1])
        kept = self._kept(record) if self._keeps_more else ()
        place = (record.id, source, record.position, record.ordinal, record.within)
        self._rows.append((*place, *record.document, len(tokens), tokens, *kept))
        self._n_tokens += len(tokens)
        self._n_bytes += sum(map(len, tokens)) + _CELL_BYTES * (1 + len(tokens))

    def _kept(self, record: Record) -> tuple[Any, ...]:
        """The text and the fields of a record, counted; null fields of a reject, and of a format that has none."""
        text, fields = (
            (record.text, record.fields) if isinstance(record, ReadSentence) else ("", ())
        )
        self._n_bytes += len(text) + sum(len(str(value)) for value in fields)
        return (
            *([text] if self._settings.keep_text else []),
            *(fields or [None] * len(self._settings.fields)),
        )

    def is_full(self) -> bool:
        settings = self._settings
        return (
            self._n_tokens >= settings.part_tokens
            or self.n_sentences >= settings.part_sentences
            or self._n_bytes >= settings.part_bytes
        )

    def write(self, root: Root, path: str, rejects_path: str) -> ScratchPart:
        """Put the part (and its rejects, if it has any) into the store."""
        schema = scratch_schema(self._settings)
        columns = dict(zip(schema.names, zip(*self._rows, strict=True), strict=True))
        table = pa.table(columns, schema=schema)
        sink = BytesIO()
        pq.write_table(table, sink, compression="zstd", row_group_size=max(table.num_rows, 1))
        data = sink.getvalue()
        root.put(path, data)
        if self._rejects:
            root.put(rejects_path, "".join(self._rejects).encode("ascii"))
        return ScratchPart(
            path=path,
            rejects=rejects_path if self._rejects else "",
            n_sentences=self.n_sentences,
            n_tokens=self._n_tokens,
            n_nonempty=sum(1 for n_tokens in columns["n_tokens"] if n_tokens),
            n_rejected=len(self._rejects),
            n_words_cut=self._n_words_cut,
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
