"""The whole job in this process: what it writes, what it skips, what it refuses, and how it fails."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store.errors import StoreIncompleteError
from elmo_store.format.layout import FORMS, zarr_states_shard
from elmo_store.format.markers import ShardMarker, read_marker
from elmo_store.storage.root import Root
from model.engine import products
from model.engine.embedder import Embedder
from model.files.weights import BiLMWeights
from model.warm import compute_warm
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.pipeline.conftest import Command, Made
from tests.pipeline.support import digests
from tests.store.sentence_readers import IGNORE_DASK, SENTENCE_READERS
from transforms.stages import embed as embed_stage


def expected_states(
    corpus: Path, model: Path, boundaries: bool
) -> tuple[list[list[str]], np.ndarray[Any, Any]]:
    """All sentences, and their states computed in one call without Beam, shards or store."""
    lines = [
        line
        for name in ("a.txt", "b.txt")
        for line in (corpus / name).read_text("utf-8").split("\n")[:-1]
    ]
    sentences = [line.split(" ") if line else [] for line in lines]
    weights = BiLMWeights.load_safetensors(model)
    engine = Embedder(weights, compute_warm(weights))
    return sentences, engine.embed(sentences, boundaries=boundaries)


@pytest.mark.parametrize(("form", "boundaries"), [("zarr", False), ("parquet", True)])
def test_the_store_holds_what_the_engine_says_of_each_sentence(
    embed: Command, corpus: Path, tiny_model: Path, tmp_path: Path, form: str, boundaries: bool
) -> None:
    out = tmp_path / "store"
    assert embed(out, "--store", form, *(["--boundaries"] if boundaries else [])) == Exit.COMPLETE
    sentences, states = expected_states(corpus, tiny_model, boundaries)
    store = elmo_store.open(str(out))
    assert store.n_sentences == len(sentences) == 60
    assert store.n_tokens == sum(map(len, sentences))
    np.testing.assert_array_equal(store.read(), states)
    assert [list(s.tokens) for s in store] == sentences
    assert not (out / "_work").exists()


@pytest.mark.slow
def test_some_of_the_states(
    embed: Command,
    corpus: Path,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "store"
    assert embed(out, "--store", "both", "--states", "bwd2,x") == Exit.COMPLETE
    assert (
        "store.sentence(0)['x']  # [tokens, 16]" in capsys.readouterr().out
    )  # no layers: no mix is offered
    _, states = expected_states(corpus, tiny_model, False)
    for form in FORMS:
        store = elmo_store.open(str(out), form=form)
        assert store.states == ("x", "bwd2")  # in the model's order
        np.testing.assert_array_equal(store.read(), states[:, [0, 4]])
    assert main(["report", str(out)]) == Exit.COMPLETE
    assert (
        main(["verify", str(out), "--recompute", "5", "--model", str(tiny_model)]) == Exit.COMPLETE
    )
    assert embed(out, "--store", "both", "--states", "x,bwd2") == Exit.COMPLETE  # the same job
    assert embed(out, "--store", "both") == Exit.REFUSED
    capsys.readouterr()
    assert main(["explore", str(out)]) == Exit.BAD_LOCATION
    assert (
        "of the states x, bwd2 alone no layers can be made: embed all states"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("states", ["x,fwd3", "x,x", ",", "layer1"])
def test_states_that_the_model_does_not_have_are_bad_usage(
    embed: Command, tmp_path: Path, states: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embed(tmp_path / "store", "--states", states) == Exit.BAD_USAGE
    assert "--states" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a processor with AMX."""
    monkeypatch.setattr(products, "has_amx", lambda: True)
    products.int8_problem.cache_clear()
    yield
    products.int8_problem.cache_clear()


@pytest.mark.usefixtures("amx")
def test_int8_is_refused_on_amx_before_anything_is_written(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embed(tmp_path / "store", "--precision", "int8") == Exit.BAD_USAGE
    said = capsys.readouterr().err
    assert "--precision int8: this processor has AMX" in said
    assert (
        "use --precision bfloat16. A job started in int8 resumes on a machine that has it, or starts again"
        in said
    )
    assert not (tmp_path / "store").exists()
    assert embed(tmp_path / "store", "--dry-run", "--precision", "int8") == Exit.BAD_USAGE


def test_ids_name_file_and_line(made: Made) -> None:
    store = elmo_store.open(str(made.zarr))
    assert store.sentence(0).id == "a.txt:0"
    assert store.sentence(41).id == "b.txt:1"
    assert store.sentence(id="b.txt:1").index == 41


def test_the_same_command_twice_writes_the_same_bytes(made: Made, tmp_path: Path) -> None:
    assert made.embed(tmp_path / "two", "--store", "both") == Exit.COMPLETE
    assert len(digests(made.both)) > 10
    assert digests(made.both) == digests(tmp_path / "two")


def test_bytes_do_not_depend_on_how_rows_are_cut_into_shards(made: Made, tmp_path: Path) -> None:
    assert elmo_store.open(str(made.zarr)).manifest.shard_rows == 64
    assert (
        made.embed(tmp_path / "two", "--shard-rows", "7", "--input-format", "lines")
        == Exit.COMPLETE
    )
    one, two = (elmo_store.open(str(path)).read() for path in (made.zarr, tmp_path / "two"))
    np.testing.assert_array_equal(one, two)


def test_a_complete_store_is_left_alone(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p: p.stat().st_mtime_ns for p in made.zarr.rglob("*") if p.is_file()}
    capsys.readouterr()
    assert made.embed(made.zarr) == Exit.COMPLETE
    assert "complete already" in capsys.readouterr().out
    assert before == {p: p.stat().st_mtime_ns for p in made.zarr.rglob("*") if p.is_file()}


def test_another_job_is_refused_with_both_sides_shown(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made.embed(made.zarr, "--dtype", "float32", "--boundaries") == Exit.REFUSED
    said = capsys.readouterr().err
    assert "dtype: 'float16' there, 'float32' asked for" in said
    assert "boundaries: False there, True asked for" in said


def test_a_changed_input_is_refused_by_the_file_s_name(
    embed: Command, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embed(tmp_path / "store") == Exit.COMPLETE
    (corpus / "b.txt").write_text("quite another text\n")
    assert embed(tmp_path / "store") == Exit.REFUSED
    assert "b.txt" in capsys.readouterr().err


def test_each_file_of_the_input_is_said_to_be_new_changed_or_missing(
    embed: Command, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("grows", "goes", "same"):
        (corpus / f"{name}.txt").write_text("a text\n")
    assert embed(tmp_path / "store") == Exit.COMPLETE
    (corpus / "grows.txt").write_text("a text, and more\n")
    (corpus / "goes.txt").unlink()
    (corpus / "comes.txt").write_text("another text\n")
    os.utime(corpus / "same.txt", (1_700_000_000, 1_700_000_000))
    capsys.readouterr()
    assert embed(tmp_path / "store") == Exit.REFUSED
    said = capsys.readouterr().err
    lines = [line.strip() for line in said.splitlines() if line.startswith("  ")]
    assert lines[:3] == [
        f"input: {corpus}/comes.txt is new",
        f"input: {corpus}/goes.txt is missing now",
        f"input: {corpus}/grows.txt has changed: 7 bytes before, 17 bytes now",
    ]
    assert re.fullmatch(
        rf"input: {corpus}/same.txt has changed: written 20.* before, written 2023-11-1\d .* now",
        lines[3],
    )
    assert len(lines) == 4
    assert "differs in 4 points" in said
    assert "None" not in said
    assert "sha256:" not in said
    assert (
        "Pass another --output, the same settings as before to continue it, or --overwrite" in said
    )


def test_overwrite_removes_a_store_and_nothing_else(
    made: Made, embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    shutil.copytree(made.zarr, out)
    assert embed(out, "--dtype", "float32", "--overwrite") == Exit.COMPLETE
    assert elmo_store.open(str(out)).manifest.dtype == "float32"
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    assert embed(mine, "--overwrite") == Exit.REFUSED
    assert "is not a store" in capsys.readouterr().err
    (mine / "elmo_store.json").write_text("{}")
    assert embed(mine, "--overwrite") == Exit.REFUSED
    assert (mine / "thesis.txt").read_text() == "years of work"


def test_a_missing_input_has_an_exit_code_of_its_own(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embed(tmp_path / "store", inputs=[str(tmp_path / "nowhere")]) == Exit.BAD_LOCATION
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_an_output_that_cannot_be_written_is_said_before_the_work(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert embed(tmp_path / "file" / "store") == Exit.BAD_LOCATION
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.parametrize("command", [["watch", "--once"], ["info"]])
def test_a_location_of_an_unknown_kind_is_a_bad_one(
    embed: Command, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.main import main

    assert embed("nosuch://place/store") == Exit.BAD_LOCATION
    assert main([*command, "nosuch://place/store"]) == Exit.BAD_LOCATION
    assert capsys.readouterr().err.count("fsspec knows no protocol nosuch") == 2


def test_an_unknown_model_is_bad_usage(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.main import main

    assert (
        main(["embed", str(corpus), "--output", str(tmp_path / "s"), "--model", "no-such"])
        == Exit.BAD_USAGE
    )
    assert "random-small" in capsys.readouterr().err


def test_a_corpus_without_tokens_gives_an_empty_store_and_says_why(
    embed: Command, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus / "a.txt").write_text("\n\n")
    (corpus / "b.txt").unlink()
    assert embed(tmp_path / "store", "--store", "both") == Exit.COMPLETE
    store = elmo_store.open(str(tmp_path / "store"))
    assert (store.n_sentences, store.n_tokens) == (2, 0)
    assert (
        "2 sentences, 0 tokens: nothing was there to embed, the input holds none"
        in capsys.readouterr().out
    )


def broken_writer(*shards: int) -> Callable[..., Any]:
    """``write_shard`` that fails for some shards, as a full disk would."""
    sound = embed_stage.write_shard

    def write(root: Any, manifest: Any, text: Any, states: Any, plan: str, stats: Any) -> Any:
        if text.shard in shards:
            raise OSError(28, "no space left on device")
        return sound(root, manifest, text, states, plan, stats)

    return write


@pytest.mark.slow
def test_a_failing_shard_fails_the_job_after_the_others_and_again_is_continue(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    with monkeypatch.context() as patch:
        patch.setattr(embed_stage, "write_shard", broken_writer(2))
        assert made.embed(out, "--store", "both") == Exit.INCOMPLETE
    said = capsys.readouterr().err
    assert "1 of " in said
    assert "no space left on device" in said
    assert "rerun the same command to resume" in said
    root = Root(out)
    n = json.loads((out / "elmo_store.json").read_text())["counts"]["shards"]
    assert [k for k in range(n) if read_marker(root, ShardMarker, k) is None] == [2]
    before = {k: (out / zarr_states_shard(k)).stat().st_mtime_ns for k in range(n) if k != 2}
    with pytest.raises(StoreIncompleteError):
        elmo_store.open(str(out))
    assert made.embed(out, "--store", "both") == Exit.COMPLETE
    assert before == {k: (out / zarr_states_shard(k)).stat().st_mtime_ns for k in before}
    assert digests(out) == digests(made.both)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    ["cut marker", "no marker", "foreign marker", "cut shard", "changed shard", "no shard"],
)
def test_what_is_damaged_is_done_again_and_nothing_else(
    made: Made, tmp_path: Path, damage: str
) -> None:
    out = tmp_path / "store"
    shutil.copytree(made.interrupted, out)
    marker, shard = out / "_shards/00001.json", out / zarr_states_shard(1)
    if damage == "cut marker":
        marker.write_bytes(marker.read_bytes()[:20])
    elif damage == "no marker":
        marker.unlink()
    elif damage == "foreign marker":
        shutil.copy(out / "_shards/00002.json", marker)
    elif damage == "cut shard":
        shard.write_bytes(shard.read_bytes()[:-5])
    elif damage == "changed shard":
        data = bytearray(shard.read_bytes())
        data[10] ^= 1
        shard.write_bytes(data)
    else:
        shard.unlink()
    before = {p: p.stat().st_mtime_ns for p in (out / "_shards").iterdir() if p != marker}
    assert made.embed(out) == Exit.COMPLETE
    assert before == {p: p.stat().st_mtime_ns for p in before}
    assert digests(out) == digests(made.zarr)


def test_a_lost_scratch_area_is_made_again_without_computing_anew(
    made: Made, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    shutil.copytree(made.interrupted, out)
    shutil.rmtree(out / "_work")
    before = {p: p.stat().st_mtime_ns for p in (out / "_shards").iterdir()}
    assert made.embed(out) == Exit.COMPLETE
    assert before == {p: p.stat().st_mtime_ns for p in before}


@pytest.fixture(scope="module")
def stores(made: Made, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Stores of the same sentences: whole, unfinished, resumed, and converted."""
    folder = tmp_path_factory.mktemp("folders")
    resumed, small = folder / "resumed", folder / "small"
    shutil.copytree(made.interrupted, resumed)
    assert made.embed(resumed) == Exit.COMPLETE
    assert (
        main(["convert", str(resumed), "--output", str(small), "--dtype", "int8", "--quiet"])
        == Exit.COMPLETE
    )
    return [made.both, made.zarr, made.interrupted, resumed, small]


@pytest.mark.slow
@IGNORE_DASK
@pytest.mark.parametrize("reader", SENTENCE_READERS)
def test_the_folder_of_sentences_is_their_table_whatever_befell_the_store(
    stores: list[Path], reader: str
) -> None:
    store = elmo_store.open(stores[0])
    sentences = [store.sentence(i) for i in range(store.n_sentences)]
    expected = [(i, one.id, one.first_row, list(one.tokens)) for i, one in enumerate(sentences)]
    read, paths = SENTENCE_READERS[reader]
    for folder in stores:
        for path in paths:
            table = read(str(folder / path)).select(["sentence", "id", "first_row", "tokens"])
            assert [
                (*row[:3], list(row[3])) for row in zip(*table.to_pydict().values(), strict=True)
            ] == expected


def test_start_states_differ_and_are_recorded_by_value_and_hash(made: Made, tmp_path: Path) -> None:
    assert made.embed(tmp_path / "zero", "--start-state", "zero") == Exit.COMPLETE
    warm, zero = (elmo_store.open(str(path)) for path in (made.zarr, tmp_path / "zero"))
    assert warm.manifest.start_state.kind == "warm"
    assert (tmp_path / "zero" / "start_state.safetensors").stat().st_size > 0
    assert warm.manifest.start_state.sha256 != zero.manifest.start_state.sha256
    assert not np.array_equal(warm.read("fwd1"), zero.read("fwd1"))
    np.testing.assert_array_equal(warm.read("x"), zero.read("x"))  # no recurrence in it


def test_a_changed_start_state_stops_the_workers(
    made: Made, tmp_path: Path, tiny_model: Path
) -> None:
    from model.start_state import StartState

    out = tmp_path / "store"
    shutil.copytree(made.interrupted, out)
    root = Root(out)
    weights = BiLMWeights.load_safetensors(tiny_model)
    root.put("start_state.safetensors", StartState.zero(weights.options).to_bytes())
    with pytest.raises(embed_stage.WorkerError, match="start_state"):
        embed_stage.load_start_state(root, compute_warm(weights).sha256)
    assert made.embed(out) == Exit.COMPLETE  # the launcher puts the right one back
    assert elmo_store.open(str(out)).manifest.start_state.sha256 == compute_warm(weights).sha256


def test_a_model_that_was_changed_in_the_store_stops_the_workers(
    tmp_path: Path, tiny_model: Path
) -> None:
    root = Root(tmp_path)
    root.put("_work/model.safetensors", tiny_model.read_bytes())
    with pytest.raises(embed_stage.WorkerError, match="was started with sha256:0000"):
        embed_stage.load_weights(root, "sha256:0000")
    fingerprint = BiLMWeights.load_safetensors(tiny_model).fingerprint
    assert embed_stage.load_weights(root, fingerprint).fingerprint == fingerprint


@pytest.mark.slow
def test_the_three_lines_of_python_in_the_summary_really_run(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embed(tmp_path / "quiet", "--quiet") == Exit.COMPLETE
    quiet = capsys.readouterr()
    assert (quiet.out, quiet.err) == ("", "")
    assert embed(tmp_path / "store") == Exit.COMPLETE
    said = capsys.readouterr().out
    lines = [
        line.strip()
        for line in said[
            said.index("next, in Python:") : said.index("or look at it:")
        ].splitlines()[1:]
    ]
    assert len(lines) == 3
    exec("\n".join(lines), {})
    assert "60 sentences" in said
    assert "tokens/s" in said
