"""What a sample says of an input before the work: its size, its inferred formats, words without spaces, no sentence at all."""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import elmo_store
from elmo_store.format.words import WordLimit
from pipeline.cli.exit_codes import Exit
from pipeline.jobs.embed_input import opened_input
from pipeline.jobs.input_sample import estimate
from pipeline.jobs.spec import EmbedOptions
from pipeline.main import main
from tests.pipeline.conftest import Command

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
JAPANESE = "私は銀行に行きました。"


@cache
def sentences(n: int) -> list[list[str]]:
    """Sentences of 1 to 40 words; every 9th is short, so that none is like the one before it."""
    choose = random.Random(7)
    words = ["".join(choose.choices("abcdefghij", k=choose.randint(1, 9))) for _ in range(5000)]
    return [
        [*choose.choices(words, k=1 if i % 9 == 0 else choose.randint(5, 40)), "."]
        for i in range(n)
    ]


def table(texts: list[str], separator: str) -> str:
    rows = io.StringIO()
    writer = csv.writer(rows, delimiter=separator, lineterminator="\n")
    writer.writerows([["text"], *([text] for text in texts)])
    return rows.getvalue()


def encoded(kind: str, n: int) -> bytes:
    """A file of ``kind`` with `sentences`."""
    texts = [" ".join(sentence) for sentence in sentences(n)]
    if kind == "parquet":
        file = io.BytesIO()
        pq.write_table(pa.table({"text": texts}), file, row_group_size=2000)
        return file.getvalue()
    rows = [json.dumps({"text": text}) for text in texts]
    words = [text.replace(" ", "\tX\n") + "\tX\n" for text in texts]
    numbered = [
        "".join(f"{i}\t{word}{8 * chr(9)}_\n" for i, word in enumerate(text.split(), 1))
        for text in texts
    ]
    return {
        "lines": "\n".join(texts) + "\n",
        "text": "\n".join(texts) + "\n",
        "jsonl": "\n".join(rows) + "\n",
        "json": f"[{', '.join(rows)}]",
        "csv": table(texts, ","),
        "tsv": table(texts, "\t"),
        "conll": "\n".join(words),
        "conllu": "\n".join(numbered),
    }[kind].encode()


def estimated_tokens(*paths: Path, **options: object) -> int:
    with opened_input(EmbedOptions(tuple(map(str, paths)), **options)) as source:  # type: ignore[arg-type]
        return estimate(source, WordLimit()).n_tokens


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        pytest.param(kind, suffix, marks=pytest.mark.slow if suffix or kind == "text" else [])
        for kind in ("lines", "text", "jsonl", "json", "csv", "tsv", "conll", "conllu", "parquet")
        for suffix in (COMPRESSORS if kind != "parquet" else [""])
    ],
)
def test_an_estimate_is_within_a_tenth_of_the_truth(tmp_path: Path, kind: str, suffix: str) -> None:
    n = 8_000
    (tmp_path / f"a{suffix}").write_bytes(COMPRESSORS[suffix](encoded(kind, n)))
    tokenizer = None if kind.startswith("conll") else "whitespace"
    found = estimated_tokens(tmp_path / f"a{suffix}", input_format=kind, tokenizer=tokenizer)
    assert found == pytest.approx(sum(map(len, sentences(n))), rel=0.1)


def test_an_estimate_of_a_small_file_is_exact(tmp_path: Path) -> None:
    for suffix, compress in COMPRESSORS.items():
        (tmp_path / f"a.tok{suffix}").write_bytes(compress(encoded("lines", 900)))
    assert estimated_tokens(tmp_path) == len(COMPRESSORS) * sum(map(len, sentences(900)))


def test_an_estimate_of_many_kinds_takes_each_by_itself(tmp_path: Path) -> None:
    (tmp_path / "a.tok.gz").write_bytes(gzip.compress(encoded("lines", 12_000)))
    (tmp_path / "b.tok").write_bytes(encoded("lines", 12_000))
    (tmp_path / "c.parquet").write_bytes(encoded("parquet", 3000))
    for i in range(40):
        (tmp_path / f"{i}.conllu").write_bytes(encoded("conllu", 20))
    truth = sum(sum(map(len, sentences(n))) for n in (12_000, 12_000, 3000))
    truth += 40 * sum(map(len, sentences(20)))
    assert estimated_tokens(tmp_path, tokenizer="whitespace") == pytest.approx(truth, rel=0.1)


def test_an_estimate_reads_on_where_a_record_is_longer_than_a_sample(tmp_path: Path) -> None:
    words = ["word"] * 200_000
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": words}) + "\n" + '{"text": ["a"]}\n')
    assert estimated_tokens(tmp_path) == pytest.approx(200_001, rel=0.1)


def test_an_estimate_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.tok"
    path.write_bytes(encoded("lines", 12_000).decode().encode("utf-16"))
    truth = sum(map(len, sentences(12_000)))
    assert estimated_tokens(path, encoding="utf-16") == pytest.approx(truth, rel=0.1)


def test_boundaries_of_empty_sentences_are_not_estimated(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.tok").write_text("a\n" + "\n" * 20)
    command = ["embed", str(tmp_path / "a.tok"), "--model", str(tiny_model), "--dry-run"]
    assert main([*command, "--boundaries", "--shard-rows", "1"]) == Exit.COMPLETE
    assert "  shards    about 3\n" in capsys.readouterr().out


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Make some bytes what comes from standard input."""

    def pipe(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    return pipe


def lines_after(beginning: str, shown: str) -> list[str]:
    """The lines from the one with this beginning on: the engine may have warned before."""
    lines = shown.splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith(beginning)) :]


AUTO = ("--input-format", "auto", "--shard-rows", "64")


def test_formats_that_names_do_not_say_are_told_with_first_tokens(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(3):
        (folder / f"part-{i}.ann").write_text(f"T{i} Protein 0 5 of a very long line of words\n")
    (folder / "README").write_text("Read me .\nI am tokenised .\n")
    (folder / "a.txt").write_text("A text.\n")
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"This is\tgood .\nSo is this .\n"))
    assert embed(tmp_path / "store", *AUTO, inputs=[f"{folder}/*"]) == Exit.COMPLETE
    assert lines_after("The names of", capsys.readouterr().err)[:4] == [
        "The names of these files do not say their format (change it with --input-format):",
        "  1 file without an ending: read as a tokenised sentence per line (lines); README begins: "
        "Read | me | .",
        "  1 file *.txt.gz: read as a tokenised sentence per line (lines); b.txt.gz begins: "
        "This | is | good | .",
        "  3 files *.ann: read as running text (text); part-0.ann begins: "
        "T0 | Protein | 0 | 5 | of | a | very | long | …",
    ]


def test_names_with_numbers_are_one_kind_and_few_kinds_are_told(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(30):
        (folder / f"news.en-{i:05d}-of-00100").write_text("One more.\n")
    for ending in "abcdefgh":
        (folder / f"x.{ending}").write_text("One more.\n")
    assert embed(tmp_path / "store", *AUTO, "--dry-run", inputs=[f"{folder}/*"]) == Exit.COMPLETE
    told = lines_after("The names of", capsys.readouterr().err)
    assert told[1].startswith("  30 files *.en-*-of-*: read as running text (text); news.en-00000-")
    assert told[6:7] == ["  and 4 other kinds of names"]


def test_standard_input_is_told_as_what_it_is_read(
    embed: Command,
    piped: Callable[[bytes], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    piped(b"So it is .\nOr not .\n")
    assert embed(tmp_path / "a", *AUTO, inputs=["-"]) == Exit.COMPLETE
    assert (
        "1 file (standard input): read as a tokenised sentence per line" in capsys.readouterr().err
    )
    piped(b"So it is .\n")
    assert embed(tmp_path / "b", *AUTO, "--quiet", inputs=["-"]) == Exit.COMPLETE
    assert "read as" not in capsys.readouterr().err


def test_formats_that_are_said_are_not_told(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.ann").write_text("T1 Protein\n")
    (tmp_path / "a.txt").write_text("A text.\n")
    assert embed(tmp_path / "a", inputs=[str(tmp_path / "a.ann")]) == Exit.COMPLETE
    assert embed(tmp_path / "b", *AUTO, inputs=[str(tmp_path / "a.txt")]) == Exit.COMPLETE
    assert "read as" not in capsys.readouterr().err


@pytest.mark.parametrize("text", [JAPANESE * 3, f"{JAPANESE}\n", "a" * 49 + " and b\n"])
def test_a_text_without_spaces_is_warned_of_before_the_work(
    embed: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    store = tmp_path / "store"
    assert embed(store, *AUTO, "--dry-run", inputs=[str(tmp_path / "a.txt")]) == Exit.COMPLETE
    assert "the text probably has no spaces between words" in caplog.text
    assert not store.exists()


def test_the_summary_says_that_many_words_were_cut(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text(JAPANESE * 3, encoding="utf-8")
    assert embed(tmp_path / "store", inputs=[str(tmp_path / "a.txt")]) == Exit.COMPLETE
    assert "1 words truncated at 48 bytes: the text probably has no" in capsys.readouterr().out


def test_few_long_words_are_not_warned_of(
    embed: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("word " * 40 + "https://" + "a" * 60 + ".\n")
    assert embed(tmp_path / "store", *AUTO, inputs=[str(tmp_path / "a.txt")]) == Exit.COMPLETE
    assert "no spaces" not in caplog.text


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", b""), ("a.txt", b" \n\n \n"), ("a.tok", b""), ("a.jsonl", b""), ("a.json", b"[]"), ("a.csv", b"text\n"),
        ("a.conllu", b"\n\n"), ("a.txt.gz", gzip.compress(b"", mtime=0)), ("a.parquet", encoded("parquet", 0)),
    ],
)  # fmt: skip
def test_an_input_without_a_sentence_is_refused_before_anything_is_written(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, data: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    for options in (AUTO, (*AUTO, "--dry-run")):
        assert embed(tmp_path / "store", *options, inputs=[str(path)]) == Exit.BAD_LOCATION
        shown = capsys.readouterr()
        assert f"{path}: no input file has a sentence" in shown.err
        assert not shown.out
    assert not (tmp_path / "store").exists()


def test_empty_standard_input_is_refused(
    embed: Command,
    piped: Callable[[bytes], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    piped(b"")
    assert embed(tmp_path / "store", *AUTO, inputs=["-"]) == Exit.BAD_LOCATION
    assert "standard input is empty" in capsys.readouterr().err


def test_many_files_without_a_sentence_are_refused_once_all_are_read(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(9):
        (folder / f"{i}.txt").write_text(" \n\n")
    assert embed(tmp_path / "store", *AUTO, inputs=[str(folder)]) == Exit.BAD_LOCATION
    shown = capsys.readouterr()
    assert "no input file has a sentence" in shown.err
    assert "complete" not in shown.out


def test_empty_files_among_others_are_named(
    embed: Command, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (corpus / "c.txt").touch()
    assert embed(tmp_path / "store") == Exit.COMPLETE
    assert f"1 of 3 input files is empty: {corpus}/c.txt" in caplog.text


def test_a_store_without_tokens_is_not_advertised(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("\n\n")
    assert embed(tmp_path / "store", inputs=[str(tmp_path / "a.txt")]) == Exit.COMPLETE
    assert elmo_store.open(tmp_path / "store").n_sentences == 2
    shown = capsys.readouterr()
    assert "nothing was there to embed" in shown.out
    assert "elmo_store.open" not in shown.out
    assert "explore" not in shown.out


def test_a_missing_text_field_is_told_by_a_dry_run(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("body\n" + "some words\n" * 40_000)
    path = str(tmp_path / "a.csv")
    assert embed(tmp_path / "s", *AUTO, "--dry-run", inputs=[path]) == Exit.BAD_LOCATION
    assert "it has no field 'text', but 'body'" in capsys.readouterr().err
