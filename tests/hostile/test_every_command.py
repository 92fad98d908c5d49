"""Stores and records that somebody made to harm: every command reads them; nothing outside of its output changes."""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmo_store.exports.formats import FORMATS
from elmo_store.format import layout
from elmo_store.format.manifest import own_sha256
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.hostile.commands import tree_of
from tests.hostile.jobs import SmallJob, differences

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STORE, OUTPUT = "{sandbox}/store", ("--output", "{sandbox}/outputs/out", "--overwrite")
WRITES_STORE = ("report", "embed")
COMMANDS: dict[str, tuple[str, ...]] = {
    "verify": (STORE,), "info": (STORE,), "report": (STORE,),
    "convert": (STORE, *OUTPUT, "--dtype", "int8"), "mix": (STORE, "--weights", "{weights}", *OUTPUT),
    **{f"export {name}": (STORE, "--format", name, *OUTPUT) for name in FORMATS},
    "embed": ("{corpus}", "--output", STORE), "embed over it": ("{corpus}", "--output", STORE, "--overwrite"),
    "embed records": ("{sandbox}/records.jsonl", *OUTPUT),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stores `states` and `mix`, and what made them."""
    folder = tmp_path_factory.mktemp("hostile")
    job = SmallJob.make(folder, n_files=2, n_lines=20)
    sets = {"a": {"w": [0, 0, 0], "gamma": 1}, "b": {"w": [1, 0, 0], "gamma": 2}}
    (folder / "weights.json").write_text(json.dumps(sets), encoding="utf-8")
    assert main(job.arguments(folder / "states", "both")) == Exit.COMPLETE
    mix = [
        "mix",
        str(folder / "states"),
        "--weights",
        str(folder / "weights.json"),
        "--output",
        str(folder / "mix"),
    ]
    assert main(mix) == Exit.COMPLETE
    return folder


def _names(sandbox: Path) -> None:
    """States and mixes called as files elsewhere, signed as somebody would who knows how that is done."""
    root = Root(sandbox / "store")
    value: dict[str, Any] = root.get_json(layout.MANIFEST)
    value["states"][0], value["mix"]["weight_sets"][0]["name"] = (
        "../../outside/victim",
        f"{sandbox}/outside/victim",
    )
    root.put_json(layout.MANIFEST, value | {"sha256": own_sha256(value)})


def _marker(sandbox: Path) -> None:
    path = sandbox / "store" / layout.shard_marker(0)
    value = json.loads(path.read_text())
    value["objects"][0]["path"] = "../outside/victim"
    path.write_text(json.dumps(value))


def _link(sandbox: Path, rel: str, target: str) -> None:
    path = sandbox / "store" / rel
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(sandbox / target)


def _links_to_write_through(sandbox: Path) -> None:
    _link(sandbox, "indexes", "outside")
    _link(sandbox, "report.html", "outside/victim")


def _records(sandbox: Path) -> None:
    """Ids that are paths, and records of an export whose files are elsewhere."""
    ids = ["../../outside/victim", f"{sandbox}/outside/victim", "..", "a\\..\\b", "/"]
    (sandbox / "records.jsonl").write_text(
        "".join(json.dumps({"text": "The cat sat .", "id": id}) + "\n" for id in ids)
    )
    for name in ("out.export.json", "out/export.json"):
        (path := sandbox / "outputs" / name).parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"format": "npz", "files": ids[:2], "complete": True}))


HOSTILE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "names that are paths": ("mix", _names),
    "a marker's object elsewhere": ("states", _marker),
    "links where commands write": ("states", _links_to_write_through),
    "a link as sentences": ("states", lambda sandbox: _link(sandbox, layout.SENTENCES, "outside")),
    "a link as a shard": (
        "states",
        lambda sandbox: _link(sandbox, layout.zarr_states_shard(0), "outside/victim"),
    ),
    "ids and records that are paths": ("states", _records),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_no_command_touches_what_lies_outside(
    made: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, harm = HOSTILE[what]
    of_jobs = ("--model", str(made / "model.safetensors"), "--threads", "1", "--quiet")
    for number, (name, given) in enumerate(COMMANDS.items()):
        sandbox, command = tmp_path / str(number), name.split()[0]
        shutil.copytree(made / kind, sandbox / "store")
        for folder in ("outside", "outputs"):
            (sandbox / folder).mkdir()
        (sandbox / "outside" / "victim").write_text("years of work")
        harm(sandbox)
        before = tree_of(sandbox)
        places = {"sandbox": sandbox, "weights": made / "weights.json", "corpus": made / "corpus"}
        main(
            [
                command,
                *(text.format(**places) for text in given),
                *(of_jobs if command == "embed" else ()),
            ]
        )
        assert "Traceback" not in capsys.readouterr().err
        own = ("outputs", "store") if command in WRITES_STORE else ("outputs",)
        assert [
            changed
            for changed in differences(before, tree_of(sandbox))
            if changed.split("/")[0] not in own
        ] == [], name
        for archive in (sandbox / "outputs").rglob("*.tar"):
            with tarfile.open(archive) as members:
                assert not [
                    member
                    for member in members.getnames()
                    if member.startswith("/") or ".." in member.split("/")
                ]
        shutil.rmtree(sandbox)
