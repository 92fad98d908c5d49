"""A job on an output that is damaged or made to harm: it goes on or refuses; only what is named is asked to go."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.hostile.jobs import SmallJob, contents, faults_of
from tests.hostile.killing import kill_after

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _replaced_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _marker_outside(store: Path) -> None:
    path = next(iter(sorted((store / "_shards").glob("*.json"))))
    value = json.loads(path.read_text())
    value["objects"][0]["path"] = "../../outside"
    path.write_text(json.dumps(value))


DAMAGE: dict[str, tuple[Callable[[Path], object], tuple[Exit, ...]]] = {
    "a marker that is no JSON": (lambda s: (s / "_shards/00000.json").write_text("{"), (Exit.COMPLETE,)),
    "a marker that points outside": (_marker_outside, (Exit.COMPLETE,)),
    "a shard that is cut": (lambda s: (s / "states.zarr/states/c/0/0/0").write_bytes(b"cut"), (Exit.COMPLETE,)),
    "an empty plan": (lambda s: (s / "_work/plan.json").write_bytes(b""), (Exit.COMPLETE,)),
    "tasks that are none": (lambda s: (s / "_work/tasks.jsonl").write_bytes(b"[[[[\n"), (Exit.COMPLETE,)),
    "scratch that is none": (
        lambda s: [path.write_bytes(b"PAR1") for path in (s / "_work/parts").glob("*.parquet")], (Exit.COMPLETE, Exit.INCOMPLETE),
    ),
    "a start state that is none": (lambda s: (s / "start_state.safetensors").write_bytes(b"["), (Exit.COMPLETE,)),
    "a manifest that is no JSON": (lambda s: (s / "elmo_store.json").write_text('{"format_version": 1'), (Exit.REFUSED,)),
    "a folder in place of the manifest": (
        lambda s: _replaced_by_folder(s / "elmo_store.json"), (Exit.REFUSED, Exit.BAD_LOCATION),
    ),
    "a folder in place of a marker": (
        lambda s: _replaced_by_folder(s / "_shards/00000.json"), (Exit.COMPLETE, Exit.INCOMPLETE, Exit.BAD_LOCATION),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallJob, Path, dict[str, str]]:
    """A job, its output half-way, and what it must come to."""
    folder = tmp_path_factory.mktemp("damaged")
    job = SmallJob.make(folder / "input", n_files=2, n_lines=12)
    assert main(job.arguments(folder / "whole", "both")) == Exit.COMPLETE
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, [40], torn=True)
        with suppress(OSError):
            assert main(job.arguments(folder / "half", "both")) != Exit.COMPLETE
    assert list((folder / "half/_shards").glob("*.json"))
    return job, folder / "half", contents(folder / "whole")


@pytest.mark.parametrize("what", DAMAGE)
def test_a_job_on_a_damaged_output_names_what_it_wants_gone(
    begun: tuple[SmallJob, Path, dict[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    what: str,
) -> None:
    job, half, wanted = begun
    store = tmp_path / "store"
    shutil.copytree(half, store)
    (store / "thesis.txt").write_text("years of work")
    (tmp_path / "outside").write_text("not ours")
    damage, codes = DAMAGE[what]
    damage(store)
    capsys.readouterr()
    code = main(job.arguments(store, "both"))
    said = capsys.readouterr().err
    assert code in codes, said
    assert "Traceback" not in said
    if code == Exit.COMPLETE:
        assert contents(store) == wanted
        assert faults_of(str(store)) == []
    else:
        assert str(store) in said
    for sentence in re.split(r"(?<=[.:;])\s|\n", said):
        if re.search(
            r"\b(remove|delete|rm)\b", sentence
        ):  # what is to go stands there by its name, or is our store by --overwrite
            assert str(store) in sentence or "--overwrite" in sentence, said
    assert (store / "thesis.txt").read_text() == "years of work"
    assert (tmp_path / "outside").read_text() == "not ours"
