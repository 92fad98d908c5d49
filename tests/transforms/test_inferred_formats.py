"""Files whose names say no more than text: JSON lines are refused by name, a tokenised sentence a line is found and told."""

import gzip
import io
import json
import logging
import sys
from pathlib import Path

import pytest

from pipeline.cli.exit_codes import CommandError
from pipeline.jobs.embed_input import opened_input
from pipeline.jobs.input_sample import say_inferred
from pipeline.jobs.spec import EmbedOptions
from tests.transforms.reading import read_split, records, tokens, write
from transforms.inputs.boundaries import unit_of
from transforms.inputs.records import InputError, ReadSettings
from transforms.stages.split import plan_splits
from transforms.text.looks import is_sentence_a_line

JSON_LINES = b'{"doc_key": "a", "sentences": [["b", "."]]}\n{"doc_key": "c", "sentences": []}\n'
# of AllenNLP's own tutorial, and what the Penn Treebank has: quotes, brackets, abbreviations, headlines
TOKENISED = """The cryptocurrency space is now figuring out to have the highest search on Google globally .
Bitcoin alone has a sixty percent share of global search .
He said : `` I do n't know , Mr. Smith . ''

STOCKS FALL AGAIN
( It was sold to I.B.M. in 1997 . )
Is it \u201c good \u201d ?
"""
PROSE = """The cat sat on the mat, and the dog ran away. It was late.

"Is it good?" he said: nobody knew.
Then, at last, they left.
"""
PARAGRAPHS = (
    " = Title = \n\n It was sold , and he left . Nobody knew . The dog ran away . \n"
    " He came back , too . Then it ended . \n"
)
FRENCH = "Bonjour !\nQuoi ?\nIl est venu.\nMais non !\n"
VERSE = "Tyger Tyger, burning bright,\nIn the forests of the night;\n"
WRAPPED = "The cat sat on the mat , and the dog\nran away . It was late , and he was\nsold to I.B.M. in 1997 .\n"


@pytest.mark.parametrize("name", ["a.txt", "a.tok", "a.conll", "a.jsonlines.bak", "a", "a.txt.gz"])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n \r\n"])
def test_json_lines_under_another_name_are_refused_by_name(
    tmp_path: Path, name: str, before: bytes
) -> None:
    data = before + JSON_LINES
    path = write(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)
    message = rf"{path}: it would be read as (text|lines|conll) by its name, but begins .*: read it with --input-format jsonl"
    with pytest.raises(InputError, match=message):
        plan_splits([str(path)])
    with pytest.raises(InputError, match=message):
        plan_splits([str(path)], range_bytes=20)
    assert tokens(records(path, "jsonl"))[-2:] == [["b", "."], []]
    assert records(path, "text")  # asked for


def test_all_files_of_json_lines_are_named_at_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.txt"):
        write(tmp_path / name, JSON_LINES if name != "c.txt" else PROSE.encode())
    with pytest.raises(InputError) as raised:
        plan_splits([str(tmp_path)])
    assert [error.url for error in (raised.value, *raised.value.also)] == [
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.txt"),
    ]


def test_a_line_longer_than_what_is_looked_at_is_known_by_its_beginning(tmp_path: Path) -> None:
    line = json.dumps({"doc_key": "a", "sentences": [["word"] * 200_000]}).encode()
    with pytest.raises(InputError, match="begins with a JSON object"):
        plan_splits([str(write(tmp_path / "a.txt", line))])


def test_json_within_a_text_is_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"Give this:\n" + JSON_LINES)
    ranges = plan_splits([str(path)], range_bytes=11)
    assert ranges[1].is_range
    assert [record for split in ranges for record in read_split(split, ReadSettings())]
    assert not any(split.format != "text" for split in ranges)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.txt.gz"])
def test_a_tokenised_sentence_a_line_is_read_so_and_told(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = TOKENISED.encode()
    path = write(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)
    (split,) = plan_splits([str(path)])
    assert not split.is_range
    assert (split.format, split.guessed) == ("lines", True)
    with opened_input(EmbedOptions((str(path),))) as source:
        say_inferred(source)
    told = capsys.readouterr().err
    assert ": read as a tokenised sentence per line (lines); " in told
    assert f"{name} begins: The | cryptocurrency | space" in told
    assert tokens(records(path)) == [line.split() for line in TOKENISED.splitlines()]
    cut = plan_splits([str(path)], range_bytes=100)
    assert {each.format for each in cut} == {"lines"}
    assert unit_of(cut[0].format, cut[0].line_ends) == "line"
    assert tokens([r for each in cut for r in read_split(each, ReadSettings())]) == tokens(
        records(path)
    )


def test_in_another_encoding_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", TOKENISED.encode("utf-16"))
    settings = ReadSettings(encoding="utf-16")
    assert [split.format for split in plan_splits([str(path)], settings=settings)] == ["lines"]
    write(path, ("\n" + JSON_LINES.decode()).encode("utf-16"))
    with pytest.raises(InputError, match="begins with a JSON object"):
        plan_splits([str(path)], settings=settings)


@pytest.mark.parametrize(
    "text", [PROSE, PARAGRAPHS, FRENCH, VERSE, WRAPPED, "One sentence .\n", "\n\n", ""]
)
def test_other_texts_stay_texts(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (split,) = plan_splits([str(write(tmp_path / "a.txt", text.encode()))])
    assert split.format == "text"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_samples_are_prose() -> None:
    paths = sorted((Path(__file__).parents[2] / "examples" / "sample").glob("*.txt"))
    assert paths
    assert not [
        path for path in paths if is_sentence_a_line(path.read_text(encoding="utf-8").split("\n"))
    ]


@pytest.mark.parametrize(
    "settings",
    [
        ReadSettings(document="file"),
        ReadSettings(document="line"),
        ReadSettings(tokenizer="ptb"),
    ],
)
def test_options_of_running_text_say_that_it_is_one(tmp_path: Path, settings: ReadSettings) -> None:
    path = write(tmp_path / "a.txt", TOKENISED.encode())
    assert [split.format for split in plan_splits([str(path)], settings=settings)] == ["text"]


def test_a_file_that_cant_be_read_is_left_for_the_reader(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", b"no gzip at all")
    (split,) = plan_splits([str(path)])
    with pytest.raises(InputError, match="first bytes"):
        list(read_split(split, ReadSettings()))


def test_standard_input_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def formats(data: bytes) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        with opened_input(EmbedOptions(("-",))) as source:
            say_inferred(source)
            return [split.format for split in source.splits]

    assert formats(PROSE.encode()) == ["text"]
    assert formats(TOKENISED.encode()) == ["lines"]
    assert "(standard input): read as a tokenised" in capsys.readouterr().err
    with pytest.raises(
        CommandError,
        match=r"^stdin: it would be read as text by its name, but begins with a JSON object",
    ):
        formats(JSON_LINES)
