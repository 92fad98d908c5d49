"""`--tokenizer unicode --keep-text`, exported as `allennlp elmo` writes: sentence_to_index has each line as it stood."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import pyarrow.parquet as pq
import pytest

import elmo_store
from elmo_store.exports import export
from elmo_store.format.manifest import read_manifest, write_manifest
from elmo_store.storage.root import Root
from pipeline.main import main

LINES = [
    "The  cat\tsat .",
    " It\u00a0slept , \u2003 then\u2028left . ",
    "a\u3000b",
    "The cat sat .",
    "of 1\u202f000\x1cor \u200b so",
]


def allennlp_index(path: Path) -> tuple[dict[str, str], list[int]]:
    """`ElmoEmbedder.embed_file`: the index of stripped lines, the last of equal ones; tokens of each line by `split()`."""
    with path.open(encoding="utf-8") as file:
        sentences = [line.strip() for line in file]
    return {sentence: str(i) for i, sentence in enumerate(sentences)}, [
        len(sentence.split()) for sentence in sentences
    ]


def exported(store: elmo_store.Store, path: Path) -> tuple[dict[str, str], list[int]]:
    export(store, path, "allennlp")
    with h5py.File(path, "r") as file:
        index = json.loads(file["sentence_to_index"][0])
        return index, [file[str(i)].shape[1] for i in range(len(file) - 1)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lines") / "in.tok"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def kept(source: Path, tiny_model: Path) -> Path:
    """A store with the text of lines, beside which a record of JSON stands."""
    (source.parent / "z.jsonl").write_text('{"text": ["no", "line"]}\n')
    command = [
        "embed",
        str(source.parent),
        "--output",
        str(source.parent / "store"),
        "--model",
        str(tiny_model),
        "--quiet",
    ]
    assert main([*command, "--tokenizer", "unicode", "--keep-text", "--store", "both"]) == 0
    return source.parent / "store"


def test_the_index_is_of_lines_as_they_stood(source: Path, kept: Path, tmp_path: Path) -> None:
    index, lengths = allennlp_index(source)
    assert exported(elmo_store.open(kept), tmp_path / "out.hdf5") == (
        index | {"no line": "5"},
        [*lengths, 2],
    )


def test_the_text_is_a_column_beside_the_others_and_goes_on_into_other_stores(
    kept: Path, tmp_path: Path
) -> None:
    assert pq.read_table(kept / "sentences")["text"].to_pylist() == [*LINES, ""]
    assert main(["verify", str(kept)]) == 0
    assert (
        main(
            [
                "convert",
                str(kept),
                "--output",
                str(tmp_path / "other"),
                "--dtype",
                "float32",
                "--quiet",
            ]
        )
        == 0
    )
    assert pq.read_table(tmp_path / "other" / "sentences")["text"].to_pylist() == [*LINES, ""]


def test_without_it_nothing_is_kept_and_a_store_of_before_is_the_same_job(
    source: Path, tiny_model: Path, tmp_path: Path
) -> None:
    command = [
        "embed",
        str(source),
        "--output",
        str(tmp_path / "store"),
        "--model",
        str(tiny_model),
        "--quiet",
    ]
    assert main(command) == 0
    assert (
        "text" not in pq.read_schema(tmp_path / "store" / "sentences" / "part-00000.parquet").names
    )
    index, _ = exported(elmo_store.open(tmp_path / "store"), tmp_path / "out.hdf5")
    assert index["The cat sat ."] == "3"
    assert LINES[0] not in index  # its two spaces and its tab are lost
    root = Root(str(tmp_path / "store"))
    manifest = read_manifest(root)
    write_manifest(
        root,
        replace(
            manifest,
            job={name: value for name, value in manifest.job.items() if name != "keep_text"},
        ),
    )
    assert main(command) == 0
    assert main([*command, "--keep-text"]) == 5


def test_it_belongs_to_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert main(["embed", str(tmp_path / "a.jsonl"), "--dry-run", "--keep-text"]) == 2
    assert "--keep-text belongs to lines; the input is jsonl" in capsys.readouterr().err
