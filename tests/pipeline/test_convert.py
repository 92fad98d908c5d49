"""``elmo-store convert``, and stores of int8 as the commands make them: same bytes by every way, nothing lost on the way back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store.format import layout
from elmo_store.format.numbers import quantized
from pipeline.cli.exit_codes import Exit
from pipeline.jobs import derive_job
from pipeline.jobs.run import Running
from pipeline.main import main
from tests.pipeline.conftest import Command
from tests.pipeline.support import digests
from tests.store.deep import all_faults
from tests.store.support import make_store

SETS: dict[str, dict[str, Any]] = {
    "a": {"s": [0.5, 0.25, 0.25], "gamma": 1.0},
    "a_scale": {"s": [1, 0, 0], "gamma": 2.0},
}


def convert(source: Path, output: Path, *options: str) -> int:
    try:
        return main(["convert", str(source), "--output", str(output), "--quiet", *options])
    except SystemExit as end:  # argparse
        return int(end.code or 0)


@pytest.mark.slow
def test_embedded_and_converted_stores_of_int8_have_the_same_bytes(
    embed: Command, tiny_model: Path, tmp_path: Path
) -> None:
    assert embed(tmp_path / "float32", "--dtype", "float32") == Exit.COMPLETE
    assert embed(tmp_path / "int8", "--dtype", "int8", "--store", "both") == Exit.COMPLETE
    assert (
        convert(tmp_path / "float32", tmp_path / "converted", "--dtype", "int8", "--store", "both")
        == Exit.COMPLETE
    )
    assert digests(tmp_path / "converted") == digests(tmp_path / "int8")
    exact, store = elmo_store.open(tmp_path / "float32"), elmo_store.open(tmp_path / "int8")
    np.testing.assert_array_equal(store.read(), quantized(exact.read()).floats())
    assert store.manifest.required_features == ("int8-scale",)
    assert all_faults(elmo_store.open(tmp_path / "converted")) == []
    verify = [
        "verify",
        str(tmp_path / "converted"),
        "--recompute",
        "20",
        "--model",
        str(tiny_model),
    ]
    assert main(verify) == Exit.COMPLETE


def test_int8_goes_on_as_int8_and_back_to_floats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = make_store(str(tmp_path / "int8"), dtype="int8", store_forms=("zarr",))
    assert written.raw is not None
    assert (
        convert(tmp_path / "int8", tmp_path / "some", "--store", "parquet", "--states", "bwd2, x")
        == Exit.COMPLETE
    )
    some = elmo_store.open(tmp_path / "some")
    assert (some.states, some.manifest.forms, some.is_int8) == (("x", "bwd2"), ("parquet",), True)
    np.testing.assert_array_equal(some.read(raw=True).values, written.raw.values[:, [0, 4]])
    np.testing.assert_array_equal(some.read(raw=True).scale, written.raw.scale[:, [0, 4]])
    assert (
        convert(tmp_path / "some", tmp_path / "floats", "--dtype", "float32", "--store", "zarr")
        == Exit.COMPLETE
    )
    floats = elmo_store.open(tmp_path / "floats")
    assert (floats.is_int8, floats.manifest.required_features) == (False, ())
    np.testing.assert_array_equal(floats.read(), written.states[:, [0, 4]])
    assert [s.tokens for s in floats] == [tuple(tokens) for tokens in written.tokens]
    assert (tmp_path / "floats" / layout.rejects_part(2)).exists()
    capsys.readouterr()
    assert (
        convert(tmp_path / "int8", tmp_path / "floats", "--dtype", "float32", "--store", "zarr")
        == Exit.REFUSED
    )
    assert "converted_from" in capsys.readouterr().err
    assert convert(tmp_path / "int8", tmp_path / "other", "--states", "fwd3") == Exit.BAD_USAGE
    assert convert(tmp_path / "int8", tmp_path / "other", "--states", "") == Exit.BAD_USAGE
    assert "it has" not in (shown := capsys.readouterr().err)
    assert "--states fwd3" in shown
    assert convert(tmp_path / "int8", tmp_path / "int8") == Exit.BAD_USAGE
    assert convert(tmp_path / "nowhere", tmp_path / "other") == Exit.BAD_LOCATION


def test_the_rest_of_a_job_that_was_followed_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(str(tmp_path / "store"))
    run_to_end, attempts = derive_job.run_to_end, []

    def first_followed(running: Running, transform: Any) -> Exit | None:
        attempts.append(running)
        if len(attempts) > 1:
            return run_to_end(running, transform)
        running.holder.end()
        return None  # the job of a command that is gone left work

    monkeypatch.setattr(derive_job, "run_to_end", first_followed)
    assert convert(tmp_path / "store", tmp_path / "other", "--dtype", "float32") == Exit.COMPLETE
    assert len(attempts) == 2
    assert elmo_store.open(tmp_path / "other").manifest.complete


def test_mixes_of_int8_and_in_int8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = make_store(str(tmp_path / "int8"), dtype="int8", store_forms=("zarr",))
    weights = tmp_path / "w.json"
    weights.write_text(json.dumps({"a": SETS["a"]}), encoding="utf-8")
    mix = ["mix", str(tmp_path / "int8"), "--quiet", "--weights", str(weights), "--output"]
    assert main([*mix, str(tmp_path / "mixed")]) == Exit.COMPLETE
    mixed = elmo_store.open(tmp_path / "mixed")
    wanted = elmo_store.ScalarMix(s=SETS["a"]["s"], gamma=1.0)(states=written.states)
    np.testing.assert_array_equal(mixed.read()[:, 0], quantized(wanted[:, None]).floats()[:, 0])
    assert all_faults(mixed) == []
    assert convert(tmp_path / "mixed", tmp_path / "half", "--dtype", "float16") == Exit.COMPLETE
    half = elmo_store.open(tmp_path / "half")
    assert (half.manifest.kind, half.manifest.mix) == ("mix", mixed.manifest.mix)
    np.testing.assert_array_equal(half.read(), mixed.read().astype(np.float16))
    weights.write_text(json.dumps(SETS), encoding="utf-8")
    capsys.readouterr()
    assert main([*mix, str(tmp_path / "clash")]) == Exit.BAD_USAGE
    assert "'a_scale' would be the name of a scale too" in capsys.readouterr().err


def test_a_part_of_a_store_in_other_numbers(tmp_path: Path) -> None:
    """`Store.write` takes what convert takes."""
    written = make_store(str(tmp_path / "half"))
    small = (
        elmo_store.open(tmp_path / "half")
        .select([6, 3])
        .write(tmp_path / "small", dtype="int8", store_forms=("parquet",))
    )
    rows = np.concatenate([written.states[written.rows(6)], written.states[written.rows(3)]])
    raw = quantized(rows)
    np.testing.assert_array_equal(small.read(), raw.floats())
    again = small[:1].write(tmp_path / "again", store_forms=("zarr",))
    np.testing.assert_array_equal(again.read(raw=True).values, raw.values[: again.n_rows])
    wide = elmo_store.open(
        make_store(
            str(tmp_path / "wide"), dtype="float32", values=lambda n, s: np.full((n, s, 8), 1e6)
        ).root.url()
    )
    with pytest.raises(ValueError, match=r"row 0 of .* holds a number that float16 can't hold"):
        wide[:].write(tmp_path / "narrow", dtype="float16")
