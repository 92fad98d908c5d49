"""``elmo-store verify``: its report, its exit codes, and vectors that are computed again."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from elmo_store.format import layout
from elmo_store.format.manifest import read_manifest
from elmo_store.storage.root import Root
from model.engine.products import int8_problem
from pipeline.cli.exit_codes import Exit
from pipeline.jobs import recompute
from pipeline.main import main
from tests.pipeline.conftest import Made
from tests.store.support import make_store

Command = Callable[..., int]


def recomputed(shown: str) -> list[int]:
    """How many sentences were computed again, and how many of them had the same bytes."""
    (counts,) = re.findall(
        r"^recomputed: (\d+) sentences, (\d+) with the same bytes", shown, re.MULTILINE
    )
    return list(map(int, counts))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--boundaries", "--store", "both", "--dtype", "float32", "--checksum", "crc32c"),
        ("--dtype", "int8"),
    ],
)
def test_a_sound_store(
    embed: Command,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
) -> None:
    assert embed(tmp_path / "store", *options) == Exit.COMPLETE
    capsys.readouterr()
    more = ["--recompute", "20", "--model", str(tiny_model)]
    assert main(["verify", str(tmp_path / "store"), *more]) == Exit.COMPLETE
    shown = capsys.readouterr().out
    assert re.fullmatch("sound: .*; 60 sentences in .*; 0 faults", shown.splitlines()[0])
    sentences, same_bytes = recomputed(shown)
    assert sentences == same_bytes > 10
    assert main(["verify", str(tmp_path / "store")]) == Exit.COMPLETE
    assert "sound: " in capsys.readouterr().out


@pytest.mark.skipif(int8_problem() is not None, reason="this processor does not multiply in 8 bits")
def test_a_store_computed_in_8_bits_is_computed_so_again(
    embed: Command,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert embed(tmp_path / "store", "--precision", "int8") == Exit.COMPLETE
    check = ["verify", str(tmp_path / "store"), "--recompute", "20", "--model", str(tiny_model)]
    capsys.readouterr()
    assert main(check) == Exit.COMPLETE
    sentences, same_bytes = recomputed(capsys.readouterr().out)
    assert same_bytes == sentences > 10
    monkeypatch.setattr(recompute, "int8_problem", lambda: "another processor")
    assert main(check) == Exit.COMPLETE
    sentences, same_bytes = recomputed(capsys.readouterr().out)
    assert same_bytes < sentences


def test_vectors_are_computed_again_where_the_compiled_cell_is_not(
    made: Made,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("model.engine.cell.kernel_module", lambda *_: "it is not installed")
    assert (
        main(["verify", str(made.zarr), "--recompute", "20", "--model", str(tiny_model)])
        == Exit.COMPLETE
    )
    assert "recomputed: " in capsys.readouterr().out


def test_a_quick_look_says_what_it_compared_how(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, copy, touched = tmp_path / "store", tmp_path / "copy", tmp_path / "touched"
    assert embed(store) == Exit.COMPLETE
    shutil.copytree(store, copy, copy_function=shutil.copy)  # without the times
    shutil.copytree(store, touched)  # with them
    (touched / layout.zarr_states_shard(0)).touch()

    def quick(folder: Path, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        return main(["verify", str(folder), "--quick", *options]), capsys.readouterr().out

    code, shown = quick(store)
    assert code == Exit.COMPLETE
    n_small = len(read_manifest(Root(store)).objects)  # which have no stamp
    assert f", {n_small} by their bytes; " in shown
    code, shown = quick(touched)  # the same bytes: another time is no damage
    assert (code, f", {n_small + 1} by their bytes; " in shown) == (Exit.COMPLETE, True)
    path = touched / layout.zarr_states_shard(0)
    path.write_bytes(bytes(len(path.read_bytes())))
    code, shown = quick(touched)
    assert (code, "states/c/0/0/0 has CRC-32C" in shown) == (Exit.DAMAGED, True)
    code, shown = quick(copy)
    assert (code, "; 0 compared by size and ETag or time" in shown) == (Exit.COMPLETE, True)
    for path in (copy / layout.zarr_states_shard(0), copy / layout.sentences_part(0)):
        path.write_bytes(path.read_bytes()[:-1])
        assert f"{path} has " in quick(copy)[1]
    (copy / layout.zarr_states_shard(1)).unlink()
    assert "states/c/1/0/0 is missing" in quick(copy)[1]
    assert quick(store, "--recompute", "1")[0] == Exit.BAD_USAGE


@pytest.mark.parametrize(
    "rel",
    [
        layout.START_STATE,
        layout.INPUTS,
        layout.SENTENCE_INDEX,
        f"{layout.ZARR}/zarr.json",
        f"{layout.ZARR}/states/zarr.json",
    ],
)
def test_a_quick_look_compares_the_bytes_of_metadata(
    rel: str, made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    shutil.copytree(made.zarr, store)
    status = (store / rel).stat()
    (store / rel).write_bytes(bytes(status.st_size))
    os.utime(store / rel, ns=(status.st_atime_ns, status.st_mtime_ns))

    code = main(["verify", str(store), "--quick"])

    assert code == Exit.DAMAGED
    assert f"{rel} has CRC-32C" in capsys.readouterr().out


@pytest.mark.slow
def test_a_damaged_store(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert embed(tmp_path / "store") == Exit.COMPLETE
    root = Root(tmp_path / "store")
    data = bytearray(root.get(layout.zarr_states_shard(0)))
    data[7] ^= 0x40
    root.put(layout.zarr_states_shard(0), bytes(data))
    root.put(layout.shard_marker(1), b"[]")
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "store")]) == Exit.DAMAGED
    shown = capsys.readouterr().out
    assert "states/c/0/0/0 has CRC-32C" in shown
    assert "_shards/00001.json is not a marker" in shown
    root.put(layout.MANIFEST, root.get(layout.MANIFEST).replace(b'"warm"', b'"zero"'))
    assert main(["verify", str(tmp_path / "store")]) == Exit.DAMAGED
    assert "it was changed or damaged" in capsys.readouterr().out


def test_vectors_of_another_start_are_found(
    made: Made, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made.embed(tmp_path / "store", "--start-state", "zero") == Exit.COMPLETE
    zero, warm = Root(tmp_path / "store"), Root(made.zarr)
    for shard in range(2):
        zero.put(layout.zarr_states_shard(shard), warm.get(layout.zarr_states_shard(shard)))
    capsys.readouterr()
    assert (
        main(["verify", str(tmp_path / "store"), "--recompute", "60", "--model", str(tiny_model)])
        == Exit.DAMAGED
    )
    assert "differs by" in capsys.readouterr().out


def test_what_can_not_be_verified(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path / "nothing")]) == Exit.BAD_LOCATION
    make_store(str(tmp_path / "store"))  # of a model that is nowhere
    assert main(["verify", str(tmp_path / "store"), "--recompute", "1"]) == Exit.BAD_USAGE
    assert "say where it is with --model" in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_start_state_that_is_no_more_is_among_the_faults(
    harm: str, made: Made, tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    shutil.copytree(made.zarr, store)
    if harm == "missing":
        (store / "start_state.safetensors").unlink()
    else:
        (store / "start_state.safetensors").write_bytes(b"nothing")
    assert (
        main(["verify", str(store), "--recompute", "5", "--model", str(tiny_model)]) == Exit.DAMAGED
    )
    shown = capsys.readouterr()
    assert "start_state.safetensors" in shown.out
    assert shown.err == ""
