"""Exports without HDF5, read with the library that each is made for; refusing, and what the command says."""

import gc
import json
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import elmo_store
from elmo_store.errors import StoreError
from elmo_store.exports import FORMATS, Settings, export
from elmo_store.exports.place import ExportRefusedError
from elmo_store.exports.work import Work, vectors_of
from elmo_store.store import Store
from pipeline.main import main
from tests.exports.conftest import IDS, SENTENCES, layers, make
from tests.store.support import make_store

SMALL = 2 * 3 * 16 * 8  # bytes of files: eight tokens of three layers in float16


def test_npz_as_udpipe_reads_it(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path / "out.npz", "npz")
    elmo = []
    with np.load(tmp_path / "out.npz") as file:  # ud_dataset.py: the values in the file's order
        for i, (name, value) in enumerate(file.items()):
            assert name == f"arr_{i}"
            elmo.append(value)
    assert len(elmo) == 7
    assert all(
        one.dtype == np.float32 and np.array_equal(one, layers(store, i).mean(axis=0))
        for i, one in enumerate(elmo)
    )
    np.savez(tmp_path / "theirs.npz", *elmo)
    with (
        zipfile.ZipFile(tmp_path / "out.npz") as ours,
        zipfile.ZipFile(tmp_path / "theirs.npz") as theirs,
    ):
        assert [(one, ours.read(one)) for one in ours.namelist()] == [
            (one, theirs.read(one)) for one in theirs.namelist()
        ]
    with pytest.raises(StoreError, match="one vector per token"):
        export(store, tmp_path / "all.npz", "npz", layers="all")


def test_npz_of_a_store_of_mixes(mixed: Store, ner: Store, tmp_path: Path) -> None:
    export(ner, tmp_path / "out.npz", "npz")
    with np.load(tmp_path / "out.npz") as file:
        assert all(np.array_equal(file[f"arr_{i}"], mixed.sentence(i)["ner"]) for i in range(7))
    with pytest.raises(StoreError, match="ner, srl"):
        export(mixed, tmp_path / "all.npz", "npz")


def test_safetensors(store: Store, tmp_path: Path) -> None:
    from safetensors import safe_open

    report = export(store, tmp_path / "out", "safetensors", file_bytes=SMALL)
    assert len(report.files) > 2
    number = 0
    for name in sorted(report.files):
        with safe_open(
            tmp_path / "out" / name, "np"
        ) as file:  # checks that tensors lie without gaps
            metadata = file.metadata()
            starts, values = file.get_tensor("sentence_start"), file.get_slice("layers")
            text_start, text = (
                file.get_tensor("token_start"),
                file.get_tensor("token_bytes").tobytes(),
            )
            assert metadata["first_sentence"] == str(number)
            assert json.loads(metadata["names"]) == ["layer_0", "layer_1", "layer_2"]
            for first, stop in pairwise(starts):
                if first == stop:  # its slices can't be empty
                    assert not SENTENCES[number]
                    number += 1
                    continue
                rows = values[int(first) : int(stop)]
                assert rows.dtype == np.float16
                assert np.array_equal(
                    rows.astype(np.float32), layers(store, number).transpose(1, 0, 2)
                )
                tokens = [
                    text[text_start[i] : text_start[i + 1]].decode() for i in range(first, stop)
                ]
                assert tokens == SENTENCES[number]
                number += 1
    assert number == 7


def test_safetensors_in_torch(store: Store, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    export(store, tmp_path / "out", "safetensors", layers="top", dtype="float32")
    tensors = load_file(tmp_path / "out/vectors-00000-of-00001.safetensors")
    assert tensors["vectors"].dtype == torch.float32
    starts = tensors["sentence_start"].tolist()
    assert all(
        np.array_equal(tensors["vectors"][starts[i] : starts[i + 1]].numpy(), layers(store, i)[2])
        for i in range(7)
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hugging_face_datasets(store: Store, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    report = export(store, tmp_path / "out", "datasets", file_bytes=SMALL)
    assert {"dataset_info.json", "state.json"} < set(report.files)
    found = datasets.load_from_disk(str(tmp_path / "out"))
    assert found.column_names == ["sentence", "id", "tokens", "layer_0", "layer_1", "layer_2"]
    assert found["sentence"][:] == list(range(7))
    assert found["id"][:] == IDS
    assert found["tokens"][:] == SENTENCES
    assert str(found.features["layer_1"].feature.feature.dtype) == "float16"
    rows = found.with_format("numpy")
    for number in (0, 1, 3, 4, 5, 6):  # of no tokens it makes an array without width
        for layer in range(3):
            assert np.array_equal(
                np.asarray(rows[number][f"layer_{layer}"], np.float32), layers(store, number)[layer]
            )
    assert rows[2]["layer_0"].shape[0] == 0
    assert tuple(found.with_format("torch")[4]["layer_2"].shape) == (3, 16)
    kept = found.filter(lambda one: len(one["tokens"]) > 3).map(
        lambda one: {"n": len(one["tokens"])}
    )
    assert kept["n"][:] == [7, 5, 7]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_dataset_s_files_are_arrow_streams(store: Store, tmp_path: Path, dtype: str) -> None:
    duckdb, pl = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    report = export(
        store, tmp_path / "out", "datasets", layers="top", dtype=dtype, file_bytes=SMALL
    )
    paths = [tmp_path / "out" / name for name in report.files if name.endswith(".arrow")]
    assert len(paths) > 1
    with pytest.raises(pa.ArrowInvalid, match="Not an Arrow file"):
        pa.ipc.open_file(str(paths[0]))
    table = pa.concat_tables([pa.ipc.open_stream(str(path)).read_all() for path in paths])
    frame = pl.concat([pl.read_ipc_stream(path) for path in paths])
    for rows in (table.to_pylist(), frame.to_dicts()):
        assert [(row["sentence"], row["id"], row["tokens"]) for row in rows] == list(
            zip(range(7), IDS, SENTENCES, strict=True)
        )
        for number, row in enumerate(rows):
            found = np.asarray(row["layer_2"], np.float32).reshape(-1, 16)
            assert np.array_equal(found, layers(store, number)[2])
    with duckdb.connect() as connection:
        if dtype == "float16":  # which DuckDB has not
            with pytest.raises(duckdb.NotImplementedException, match="Arrow Type"):
                connection.register("vectors", table)
        else:
            connection.register("vectors", table)
            found = connection.sql("select layer_2 from vectors order by sentence").fetchall()
            assert [np.asarray(one, np.float32).reshape(-1, 16).tolist() for (one,) in found] == [
                layers(store, number)[2].tolist() for number in range(7)
            ]


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning"
)  # it leaves its files to the garbage collector
def test_webdataset(store: Store, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    report = export(store, tmp_path / "out", "webdataset", file_bytes=SMALL)
    shards = [str(tmp_path / "out" / name) for name in report.files]
    assert len(shards) > 2
    samples = list(
        wds.WebDataset(shards, shardshuffle=False).decode().to_tuple("__key__", "json", "npy")
    )
    gc.collect()
    assert [key for key, _, _ in samples] == [f"{i:09d}" for i in range(7)]
    for number, (_, facts, values) in enumerate(samples):
        assert facts == {"sentence": number, "id": IDS[number], "tokens": SENTENCES[number]}
        assert values.dtype == np.float16
        assert np.array_equal(values.astype(np.float32), layers(store, number))


def test_folders_of_mixes(mixed: Store, ner: Store, tmp_path: Path) -> None:
    from safetensors import safe_open

    export(mixed, tmp_path / "sets", "safetensors")
    with safe_open(tmp_path / "sets/vectors-00000-of-00001.safetensors", "np") as file:
        assert json.loads(file.metadata()["names"]) == ["ner", "srl"]
        assert np.array_equal(file.get_tensor("layers"), mixed.read())
    export(ner, tmp_path / "mix", "safetensors")
    with safe_open(tmp_path / "mix/vectors-00000-of-00001.safetensors", "np") as file:
        assert np.array_equal(file.get_tensor("vectors"), mixed.read(["ner"])[:, 0])


def test_what_is_not_a_finished_export_is_not_replaced(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine.hdf5").write_bytes(b"precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/notes.txt").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(
            ExportRefusedError, match=r"mine\.hdf5 exists, and no mine\.hdf5\.export\.json says"
        ):
            export(store, tmp_path / "mine.hdf5", "bilm", overwrite=overwrite)
        with pytest.raises(ExportRefusedError, match=r"notes\.txt exists"):
            export(store, tmp_path / "folder", "webdataset", overwrite=overwrite)
        with pytest.raises(IsADirectoryError, match="folder is a folder: name a file"):
            export(store, tmp_path / "folder", "bilm", overwrite=overwrite)
        with pytest.raises(NotADirectoryError, match=r"mine\.hdf5 is a file: name a folder"):
            export(store, tmp_path / "mine.hdf5", "webdataset", overwrite=overwrite)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.hdf5", "folder"}
    assert (tmp_path / "folder/notes.txt").read_text() == "precious"


def test_a_finished_export_is_replaced_on_request(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "webdataset")
    for kind in ("all", "top"):
        with pytest.raises(
            ExportRefusedError,
            match=r"a finished export is here: .* add `overwrite=True` to replace it",
        ):
            export(store, tmp_path / "out", "webdataset", layers=kind)
    export(store, tmp_path / "out", "webdataset", layers="top", overwrite=True, file_bytes=SMALL)
    export(store, tmp_path / "out", "safetensors", overwrite=True)
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == [
        "export.json",
        "vectors-00000-of-00001.safetensors",
    ]
    (tmp_path / "out/notes.txt").write_text("precious")
    with pytest.raises(ExportRefusedError, match=r"notes\.txt exists"):
        export(store, tmp_path / "out", "safetensors", overwrite=True)
    assert len(list((tmp_path / "out").iterdir())) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_every_format_of_an_empty_store(tmp_path: Path) -> None:
    empty = elmo_store.open(make_store(str(tmp_path / "empty"), lengths=(), parts=()).root.url())
    for name in FORMATS:
        report = export(empty, tmp_path / f"out-{name}", name)
        assert (report.sentences, report.tokens) == (0, 0)
        assert report.files


def test_files_hold_whole_sentences_and_all_of_them(tmp_path: Path) -> None:
    lengths = [(7 * i) % 11 for i in range(60)]
    store = elmo_store.open(
        make_store(str(tmp_path / "s"), lengths=lengths, parts=(30, 30)).root.url()
    )
    for n_rows in (1, 5, 11, 40, 1000):
        report = export(
            store, tmp_path / f"out{n_rows}", "webdataset", file_bytes=n_rows * 2 * 3 * 16
        )
        ranges = _ranges(store, n_rows)
        assert len(ranges) == len(report.files)
        assert [first for first, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
        assert ranges[-1][1] == 60
        assert all(sum(lengths[a:b]) <= n_rows or b - a == 1 for a, b in ranges)


def _ranges(store: Store, n_rows: int) -> list[tuple[int, int]]:
    settings = Settings("webdataset", "all", dtype="float16", file_bytes=n_rows * 2 * 3 * 16)
    files = Work(store._view, vectors_of(store._view, settings), settings).files
    return [(sentences.start, sentences.stop) for sentences in files.values()]


def test_on_an_object_store(store: Store, tmp_path: Path) -> None:
    import fsspec
    import h5py

    memory = fsspec.filesystem("memory")
    export(store, "memory://exports/out.hdf5", "allennlp")
    export(store, "memory://exports/folder", "webdataset")
    memory.get("/exports/out.hdf5", str(tmp_path / "out.hdf5"))
    with h5py.File(tmp_path / "out.hdf5", "r") as file:
        assert np.array_equal(file["4"][...], layers(store, 4))
    assert {name.rpartition("/")[2] for name in memory.ls("/exports/folder", detail=False)} == {
        "000000.tar",
        "export.json",
    }
    with pytest.raises(ExportRefusedError, match="a finished export"):
        export(store, "memory://exports/folder", "webdataset")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"format": "word2vec"}, "known are allennlp"),
        ({"format": "npz", "dtype": "float16"}, "is read as float32"),
        ({"format": "tfhub", "layers": "top"}, "of all layers"),
        ({"format": "datasets", "layers": "second"}, "known are all, top, average"),
        ({"format": "bilm", "layer_norm": True}, "are not for bilm: mix the store first"),
        ({"format": "bilm", "weights": "weights.json"}, "are not for bilm: mix the store first"),
    ],
)
def test_settings_that_can_not_be(
    store: Store, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(StoreError, match=says):
        export(store, tmp_path / "out", **settings)
    assert not list(tmp_path.iterdir())


def test_settings_that_a_mix_can_not_have(mixed: Store, tmp_path: Path) -> None:
    some = make_store(str(tmp_path / "some"), states=("x", "fwd1", "bwd1", "fwd2"))
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: export(mixed, tmp_path / "o", "bilm", layers="top"), "leave `layers='top'` out"),
        (lambda: export(mixed, tmp_path / "o", "tfhub"), "holds mixes"),
        (
            lambda: export(mixed, tmp_path / "o", "elmoformanylangs"),
            "one vector per token, .* has ner, srl: take one",
        ),
        (
            lambda: export(elmo_store.open(some.root.url()), tmp_path / "o", "bilm"),
            "no layers can be made",
        ),
    ]
    for call, says in wrong:
        with pytest.raises(StoreError, match=says):
            call()
    assert not (tmp_path / "o.export.json").exists()
    assert not (tmp_path / "o").exists()


def test_the_top_layer_of_a_store_that_has_no_other(tmp_path: Path) -> None:
    some = make(tmp_path / "some", states=("fwd2", "bwd2"))
    export(some, tmp_path / "out.npz", "npz", layers="top")
    with np.load(tmp_path / "out.npz") as file:
        for number in range(7):
            expected = some.sentence(number).read(("fwd2", "bwd2")).reshape(-1, 16)
            assert np.array_equal(file[f"arr_{number}"], expected.astype(np.float32))
    with pytest.raises(StoreError, match="no layers can be made"):
        export(some, tmp_path / "all.hdf5", "bilm")
    low = make(tmp_path / "low", states=("x", "fwd1", "bwd1"))  # of a model of two layers
    with pytest.raises(
        StoreError, match="x, fwd1, bwd1 no top layer can be made: embed the states fwd2,bwd2"
    ):
        export(low, tmp_path / "top.hdf5", "bilm", layers="top")


def test_the_command(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "export",
        store.url,
        "--format",
        "elmoformanylangs",
        "--output",
        str(tmp_path / "out"),
    ]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "7 sentences, 26 tokens in 3 files" in told
    assert "left out: 1 sentence (no words)" in told
    assert main(command) == 5
    assert "add --overwrite to replace it" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert (
        main(
            [
                "export",
                store.url,
                "--format",
                "bilm",
                "--output",
                str(tmp_path / "out.ly2.hdf5"),
                "--quiet",
            ]
        )
        == 5
    )
    assert main([*command, "--layers", "top", "--overwrite"]) == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.export.json", "out.ly2.hdf5"]
    assert (
        main(
            [
                "export",
                store.url,
                "--format",
                "bilm",
                "--output",
                str(tmp_path / "b"),
                "--dtype",
                "float16",
            ]
        )
        == 2
    )
    assert (
        main(
            ["export", str(tmp_path / "none"), "--format", "bilm", "--output", str(tmp_path / "b")]
        )
        == 3
    )
    assert (
        main(
            [
                "export",
                store.url,
                "--format",
                "npz",
                "--layers",
                "all",
                "--output",
                str(tmp_path / "b"),
            ]
        )
        == 2
    )
    assert not (tmp_path / "b").exists()


def test_what_float16_can_t_hold_is_refused(tmp_path: Path) -> None:
    large = make_store(
        str(tmp_path / "large"),
        dtype="float32",
        values=lambda rows, states: np.full((rows, states, 8), 1e6),
    )
    with pytest.raises(
        StoreError, match="too large for float16: export them with `dtype='float32'`"
    ):
        export(elmo_store.open(large.root.url()), tmp_path / "out", "safetensors", dtype="float16")
    assert not (tmp_path / "out").exists()
