"""Stage C, beside the shards: scratch parts → final parts with global sentence numbers, first rows, positions and ids; then the
sorted tables of the hashes of ids and texts.

A part group is one task; doing it again gives the same bytes. Its ids and texts go to the scratch area as hashes, a file for each
run of tables. A run of tables is the other kind of task: it merges its file of every group, so that a sort of any size is done by
many workers, and no id travels between stages.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.format import ids, layout
from elmo_store.format.fields import sentences_schema
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.markers import (
    REPEATED_IDS,
    IdsMarker,
    PartGroupMarker,
    Stats,
    put_objects,
    write_marker,
)
from elmo_store.format.texts import cut_bytes, hash_tokens
from elmo_store.forms import zarr_form
from elmo_store.reading.sentences import encode_part
from elmo_store.storage.root import Root
from transforms.inputs.records import InDocument, file_name, id_within
from transforms.runtime.results import Outcome
from transforms.runtime.work import PLAN, id_hashes
from transforms.stages.plan import (
    Int64,
    PartGroup,
    PartPlan,
    document_of,
    id_runs,
    marker_of_plan,
    row_starts,
    sentence_rows,
)

Hashes = npt.NDArray[np.uint64]  # [n, 4]: ID or TEXT, high, low, sentence
ID, TEXT = np.uint64(0), np.uint64(1)


def number_parts(group: PartGroup, root: Root) -> Outcome:
    """Write the final parts (and rejects) of a group, its chunks of ``sentence_start``, its hashes; then the marker."""
    manifest = read_manifest(root)
    starts: list[Int64] = []
    hashes: list[Hashes] = [np.zeros((0, 4), np.uint64)]
    cut = cut_bytes(manifest.model.options)

    def objects() -> Iterator[tuple[str, bytes]]:
        for part in group.parts:
            table = number_table(_scratch_table(root, part), part, manifest)
            yield layout.sentences_part(part.range.part), encode_part(table)
            if part.scratch.rejects:
                yield (
                    layout.rejects_part(part.range.part),
                    number_rejects(root.get(part.scratch.rejects), part),
                )
            starts.append(table["first_row"].to_numpy())
            numbers = table["sentence"].to_numpy().astype(np.uint64)
            of_ids = ids.hashes(table["id"].to_pylist())
            of_texts = hash_tokens(table["tokens"].combine_chunks(), cut)
            for kind, pairs in ((ID, of_ids), (TEXT, of_texts)):
                hashes.append(np.column_stack([np.full(len(pairs), kind), pairs, numbers]))
        yield from _start_chunks(root, manifest, group, starts)

    records, stamps = put_objects(root, objects())
    runs, every = id_runs(manifest.sizes.sentences), np.concatenate(hashes)
    run_of_hash = ids.tables_of(every[:, 1], runs.bit_length() - 1)
    for run in range(runs):  # also where it has none
        root.put(id_hashes(run, group.number), every[run_of_hash == run].astype("<u8").tobytes())
    ranges = tuple(part.range for part in group.parts)
    write_marker(
        root, PartGroupMarker(group.number, ranges, records, identity(group, manifest), stamps)
    )
    return Outcome()


def identity(group: PartGroup, manifest: Manifest) -> str:
    """A hash of all that the final parts, the chunks of ``sentence_start`` and the ids of ``group`` follow from."""
    parts = []
    for part in (*group.parts, *group.after):
        scratch = part.scratch
        counts = [
            scratch.n_sentences,
            scratch.n_tokens,
            scratch.n_nonempty,
            scratch.n_rejected,
            scratch.n_words_cut,
        ]
        offsets = [part.position_offset, part.ordinal_offset, *part.document]
        first = [part.range.first_sentence, part.range.first_row]
        parts.append([scratch.path, scratch.rejects, *counts, *offsets, scratch.sha256, *first])
    numbers = [group.number, group.first_chunk, group.stop_chunk]
    text = json.dumps(
        [parts, numbers, manifest.boundaries, manifest.sizes.sentences, manifest.sizes.rows]
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _scratch_table(root: Root, part: PartPlan) -> pa.Table:
    """A scratch part. ValueError if it is not the one that was planned."""
    data = root.get(part.scratch.path)
    if hashlib.sha256(data).hexdigest() != part.scratch.sha256:
        raise ValueError(
            f"{root.url(part.scratch.path)} is not what its marker says (sha256 differs): remove "
            f"{root.url('_work')} and run the same command again"
        )
    return pq.read_table(BytesIO(data), use_threads=False)


def number_table(scratch: pa.Table, part: PartPlan, manifest: Manifest) -> pa.Table:
    """The final columns of one scratch table."""
    n_tokens = scratch["n_tokens"].to_numpy().astype(np.int64)
    position = scratch["position"].to_numpy().astype(np.int64) + part.position_offset
    first = part.range.first_sentence
    places = list(_places(scratch, position, part))
    columns = {
        "sentence": np.arange(first, first + len(n_tokens), dtype=np.int64),
        "id": [own for own, _, _ in places],
        "position": position,
        "first_row": row_starts(sentence_rows(n_tokens, manifest.boundaries), part.range.first_row),
        "document": [document for _, document, _ in places],
        "document_sentence": [number for _, _, number in places],
    }
    schema = sentences_schema(manifest.fields, text=layout.TEXT.name in scratch.column_names)
    return pa.table(
        [columns[name] if name in columns else scratch[name] for name in schema.names],
        schema=schema,
    )


def _places(scratch: pa.Table, positions: Any, part: PartPlan) -> Iterator[tuple[str, str, int]]:
    """The id of each sentence, its document, and its number in it."""
    names = ("document_sentence", "document_start", "document", "id", "source", "ordinal", "within")
    columns = (scratch[name].to_pylist() for name in names)
    for *stands, own, source, ordinal, within, position in zip(
        *columns, positions.tolist(), strict=True
    ):
        number = position if ordinal < 0 else ordinal + part.ordinal_offset
        document, document_sentence = sentence_id(own, source, number, -1), max(within, 0)
        if stands[0] >= 0:
            document, document_sentence = document_of(
                InDocument(*stands), source, part.position_offset, part.document
            )
        yield sentence_id(own, source, number, within), document, document_sentence


def sentence_id(own: str, source: str, number: int, within: int) -> str:
    """The record's own id, otherwise where it stands, ``FILE:NUMBER``; then ``:WITHIN``, its sentence, where that is not -1."""
    return id_within(own or f"{file_name(source)}:{number}", within)


def number_rejects(scratch: bytes, part: PartPlan) -> bytes:
    """Rejects with global sentence numbers and positions; ``scratch`` has one JSON object a line."""
    lines = []
    for line in scratch.decode().split("\n")[:-1]:  # splitlines would also split at U+2028
        reject = json.loads(line)
        local = reject.pop("sentence")
        reject["position"] += part.position_offset
        ordinal, within = reject.pop("ordinal"), reject.pop("within")
        number = reject["position"] if ordinal < 0 else ordinal + part.ordinal_offset
        reject["id"] = sentence_id(reject["id"], reject["source"], number, within)
        reject = {"sentence": part.range.first_sentence + local, **reject}
        lines.append(json.dumps(reject, ensure_ascii=False) + "\n")
    return "".join(lines).encode()


def _start_chunks(
    root: Root, manifest: Manifest, group: PartGroup, starts: list[Int64]
) -> Iterator[tuple[str, bytes]]:
    """The chunks of ``sentence_start`` that begin in this group; the last may need sentences of the parts behind it."""
    size, sizes = manifest.sentence_chunk, manifest.sizes
    after = []
    for part in group.after:
        lengths = _scratch_table(root, part)["n_tokens"].to_numpy().astype(np.int64)
        after.append(row_starts(sentence_rows(lengths, manifest.boundaries), part.range.first_row))
    entries = np.concatenate(
        [*starts, *after, np.array([sizes.rows], np.int64)]
    )  # the last counts at the corpus' end only
    first = group.parts[0].range.first_sentence if group.parts else 0
    for chunk in range(group.first_chunk, group.stop_chunk):
        stop = min((chunk + 1) * size, sizes.sentences + 1)
        yield zarr_form.encode_sentence_chunk(
            manifest, chunk, entries[chunk * size - first : stop - first]
        )


def runs_to_do(_: Iterable[Outcome], root: Root) -> Iterable[int]:
    """The runs of id tables, once all groups are numbered; none of a complete store."""
    return [] if read_manifest(root).complete else range(root.get_json(PLAN)["n_id_runs"])


def merge_ids(run: int, root: Root) -> Outcome:
    """Write the id and text tables of one run, then their marker; remove what they were made of.

    The one worker that removes the scratch area would have too much to do: there are up to 256 files a part group.
    FileNotFoundError if some of them are missing, unless a second copy of this task has just removed them.
    """
    plan = root.get_json(PLAN)
    n_sentences = read_manifest(root).sizes.sentences
    bits = layout.id_bits(n_sentences)
    tables_of_run = (1 << bits) // id_runs(n_sentences)
    sources = [id_hashes(run, group) for group in range(plan["n_part_groups"])]
    try:
        data = b"".join(root.get_many(sources))
    except FileNotFoundError:
        if marker_of_plan(root, IdsMarker, run, plan["id"]) is None:
            raise
        return Outcome()
    rows = np.frombuffer(data, "<u8").reshape(-1, 4).astype(np.uint64)
    of_ids, of_texts = (rows[rows[:, 0] == kind, 1:] for kind in (ID, TEXT))
    tables = range(run * tables_of_run, (run + 1) * tables_of_run)
    keys = ((own[:, :2], own[:, 2].astype(np.int64)) for own in (of_ids, of_texts))
    records, stamps = put_objects(root, ids.encode_lookups(keys, bits, tables))
    in_order = of_ids[np.lexsort((of_ids[:, 1], of_ids[:, 0])), :2]
    repeated = int((in_order[1:] == in_order[:-1]).all(axis=1).sum())
    stats: Stats = {**stamps, REPEATED_IDS: repeated}
    write_marker(root, IdsMarker(run, tables.start, len(tables), records, str(plan["id"]), stats))
    with suppress(
        FileNotFoundError
    ):  # a second copy of this task was faster; what it left goes with the scratch area
        root.remove(*sources)
    return Outcome()
