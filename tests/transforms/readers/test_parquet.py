"""The format parquet: strings, token lists, ids, nulls, row groups as splits, damage."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.transforms.reading import read_split, records, rejects, tokens, write
from transforms.inputs.records import InputError, ReadSentence, ReadSettings, Reject
from transforms.readers import open_split
from transforms.stages.split import plan_splits


def table(path: Path, columns: dict[str, pa.Array], row_group_size: int = 1000) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def test_strings_with_integer_ids(tmp_path: Path) -> None:
    path = table(
        tmp_path / "a.parquet",
        {"key": pa.array([7, None, 9]), "text": pa.array(["I don't.", "b", None])},
    )
    assert records(path, settings=ReadSettings(id_field="key")) == [
        ReadSentence(("I", "do", "n't", "."), "7", 0, within=0),
        Reject(1, "id field 'key' is null, not a string or an integer", "b"),
        Reject(2, "field 'text' is null, not a string or a list of strings", "None", "9"),
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.large_string()),
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_token_lists(tmp_path: Path, kind: pa.DataType) -> None:
    values = [["a", "b c"], [], None, ["a", None], ["", "a"], ["z"]]
    path = table(tmp_path / "a.pq", {"tokens": pa.array(values, kind)})
    found = records(path, settings=ReadSettings(text_field="tokens"))
    assert tokens(found) == [["a", "b c"], [], [], [], [], ["z"]]
    assert [(reject.position, reject.reason) for reject in rejects(found)] == [
        (2, "field 'tokens' is null, not a string or a list of strings"),
        (3, "token 1 of field 'tokens' is null, not a string"),
        (4, "token 0 of field 'tokens' is an empty string"),
    ]


def invalid(kind: pa.DataType) -> pa.Array:
    return pa.array([b"good", b"b\xffd", b"end"], pa.binary()).view(kind)


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_values_that_are_not_utf8_are_refused_alone(tmp_path: Path, kind: pa.DataType) -> None:
    column = invalid(kind)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), column)
    path = table(tmp_path / "a.parquet", {"text": column, "tokens": lists})
    for field in ("text", "tokens"):
        found = records(path, settings=ReadSettings(text_field=field))
        assert tokens(found) == [["good"], [], ["end"]]
        (reject,) = rejects(found)
        assert reject.position == 1
        assert reject.reason == f"invalid UTF-8 at byte 1 of field {field!r} (0xff)"


def test_a_refused_value_beside_an_integer_id(tmp_path: Path) -> None:
    columns = {"key": pa.array([7, 8, 9]), "text": invalid(pa.string())}
    path = table(tmp_path / "a.parquet", columns)
    (reject,) = rejects(records(path, settings=ReadSettings(id_field="key")))
    assert (reject.id, reject.raw) == ("8", "b\\xffd")


def test_row_groups_are_splits_and_change_nothing(tmp_path: Path) -> None:
    path = table(
        tmp_path / "a.parquet",
        {"text": pa.array([f"word {i} " * 20 for i in range(1500)])},
        row_group_size=200,
    )
    whole = records(path)
    splits = plan_splits([str(path)], range_bytes=6_000)
    assert len(splits) > 2
    groups = [split for split in splits if split.is_range]
    assert len(groups) == len(splits)
    assert [split.start for split in groups[1:]] == [split.stop for split in groups[:-1]]
    ranged = []
    for split in splits:
        source, found = open_split(split, ReadSettings())
        own = list(found)
        assert [record.position for record in own] == list(range(len(own)))
        assert source.bytes_read > 0
        ranged += own
    assert tokens(ranged) == tokens(whole)


def test_files_without_rows_or_bytes(tmp_path: Path) -> None:
    assert records(table(tmp_path / "a.parquet", {"text": pa.array([], pa.string())})) == []
    assert records(write(tmp_path / "b.parquet", b"")) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ReadSettings(), r"has no field 'text', but 'body', 'n': name one with --text-field"),
        (
            ReadSettings(text_field="body", id_field="id"),
            r"has no field 'id', .*: name one with --id-field",
        ),
    ],
)
def test_fields_are_checked_before_any_work(
    tmp_path: Path, settings: ReadSettings, message: str
) -> None:
    path = table(tmp_path / "a.parquet", {"body": pa.array(["a"]), "n": pa.array([1.0])})
    with pytest.raises(InputError, match=message):
        plan_splits([str(path)], "parquet", settings)


def test_damage_is_an_input_error(tmp_path: Path) -> None:
    path = table(
        tmp_path / "a.parquet", {"text": pa.array([f"{i * 7919 % 1000003}" for i in range(50_000)])}
    )
    data = bytearray(path.read_bytes())
    with pytest.raises(InputError, match="can't be read as Parquet"):
        plan_splits([str(write(tmp_path / "cut.parquet", bytes(data[:-20])))])
    data[100:4000] = bytes(3900)
    (split,) = plan_splits([str(write(tmp_path / "hole.parquet", bytes(data)))])
    with pytest.raises(InputError, match="can't be read as Parquet"):
        list(read_split(split, ReadSettings()))
