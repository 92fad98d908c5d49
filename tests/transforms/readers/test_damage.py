"""Damaged files with ``on_bad_file="reject"``: the records before the damage as they are, and one reject for the rest."""

import codecs
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.transforms.reading import write
from transforms.inputs.records import ReadSentence, ReadSettings, Record, Reject
from transforms.readers import open_split
from transforms.stages.number import sentence_id
from transforms.stages.split import plan_splits, read_tasks

REJECT = ReadSettings(on_bad_file="reject")
BY_FILE = ReadSettings(on_bad_file="reject", document="file")
WORDS = "\n".join(f"{i}\tword\t_\t_\t_\t_\t_\t_\t_\t_" for i in range(1, 8))
FILES: dict[str, tuple[str, ReadSettings]] = {  # name → text of a record, settings
    "lines.tok": ("sentence {} of a line\n", REJECT),
    "sentences.txt": ("It is sentence {} of them.\n", REJECT),
    "paragraphs.txt": ("It is {}. And what,\nin two lines.\n\n", REJECT),
    "wrapped.txt": (
        "It is {}. And it goes on. It was\nthat which nobody knew or knows, and so.\n",
        BY_FILE,
    ),
    "objects.jsonl": ('{{"text": "It is {}. Yes."}}\n', REJECT),
    "objects.json": ('{{"text": "It is {}. Yes."}}\n', REJECT),
    "array.json": ('{{"text": "It is {}. Yes."}}', REJECT),
    "rows.csv": ('"It is {}.\nYes.",1\n', REJECT),
    "rows.tsv": ("It is {}.\t1\n", REJECT),
    "words.conllu": ("# sent_id = s{}\n" + WORDS + "\n\n", REJECT),
    "words.conll": ("EU{} NNP\nrejects VBZ\n\n", REJECT),
}


def text_of(name: str, n: int = 400, mark: bytes = b"") -> bytes:
    """``n`` records, each with ``mark`` before it."""
    records = [mark.decode() + FILES[name][0].format(i) for i in range(n)]
    if name == "array.json":
        return f"[{', '.join(records)}]".encode()
    return "".join(
        [{"rows.csv": "text,n\n", "rows.tsv": "text\tn\n"}.get(name, ""), *records]
    ).encode()


def read(path: Path, settings: ReadSettings, range_bytes: int) -> list[tuple[str, int, Record]]:
    """The records of a file, each with its id and position; ``range_bytes``: of the splits it is cut into."""
    found, position, ordinal = [], 0, 0
    for task in read_tasks(plan_splits([str(path)], settings=settings, range_bytes=range_bytes)):
        source, records = open_split(task.splits[0], settings)
        for record in records:
            number = record.position + position if record.ordinal < 0 else record.ordinal + ordinal
            own_id = sentence_id(record.id, path.name, number, record.within)
            found.append((own_id, record.position + position, record))
        position, ordinal = position + source.n_positions, ordinal + source.n_ordinals
    return found


def shown(found: list[tuple[str, int, Record]]) -> list[tuple[str, int, tuple[str, ...]]]:
    return [
        (own_id, position, record.tokens)
        for own_id, position, record in found
        if isinstance(record, ReadSentence)
    ]


def reasons(found: list[tuple[str, int, Record]]) -> list[tuple[int, str, str]]:
    return [
        (position, record.reason, record.raw)
        for _, position, record in found
        if isinstance(record, Reject)
    ]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", FILES)
def test_a_byte_order_mark_within_a_file_is_read_the_same_wherever_the_file_is_cut(
    tmp_path: Path, name: str, suffix: str
) -> None:
    settings, data = ReadSettings(), text_of(name, 40, codecs.BOM_UTF8)
    whole = read(write(tmp_path / "whole" / name, data), settings, 1 << 20)
    path = write(tmp_path / f"cut/{name}{suffix}", gzip.compress(data) if suffix else data)
    for range_bytes in (10, 150):
        found = read(path, settings, range_bytes)
        assert shown(found) == [
            (one.replace(name, path.name), *rest) for one, *rest in shown(whole)
        ]
        assert name == "array.json" or reasons(found) == reasons(
            whole
        )  # that is no JSON from its first element on
    assert len(whole) >= 40 or name == "array.json"


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_what_comes_before_the_damage_is_kept(tmp_path: Path, name: str) -> None:
    text, settings = text_of(name), FILES[name][1]
    whole = read(write(tmp_path / "whole" / name, text), settings, 1 << 20)
    packed = gzip.compress(text)
    for kept in (0.5, 0.6, 0.7):
        path = write(tmp_path / str(kept) / f"{name}.gz", packed[: int(len(packed) * kept)])
        *found, (own_id, position, reject) = read(path, settings, 100)
        assert len(found) > len(whole) // 3
        assert shown(found) == [
            (one.replace(name, path.name), *rest) for one, *rest in shown(whole[: len(found)])
        ]
        assert isinstance(reject, Reject)
        assert "can't be read from here on: the gzip stream is cut short" in reject.reason
        assert found[-1][1] <= position <= whole[len(found)][1]
        assert own_id not in {one for one, *_ in found}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_damage_alone_is_one_reject(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / f"{name}.gz", gzip.compress(text_of(name))[:12])
    for range_bytes in (1 << 20, 1):
        ((_, position, reject),) = read(path, FILES[name][1], range_bytes)
        assert isinstance(reject, Reject)
        assert position == 0


def test_row_groups_after_a_damaged_one_keep_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = [json.dumps(i) * 40 for i in range(900)]
    pq.write_table(
        pa.table({"text": values}),
        path,
        row_group_size=300,
        compression="gzip",
        use_dictionary=False,
    )
    whole = read(path, REJECT, 1)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start + 60 : start + 400] = b"\xff" * 340
    path.write_bytes(data)
    found = read(path, REJECT, 1)
    assert [record for *_, record in found if isinstance(record, Reject)]
    assert shown(found) == shown([*whole[:300], *whole[600:]])
    assert len({own_id for own_id, *_ in found}) == len(found)
