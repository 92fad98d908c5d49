"""Stores and records that somebody made to harm: every command reads them; nothing outside of its output changes."""

import json
import shutil
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import elmo_store
from benchmarks.chaos.commands import tree_of
from benchmarks.chaos.job import Command, Outcomes, SmallJob, differences
from elmo_store.errors import StoreError
from elmo_store.exports.formats import FORMATS
from elmo_store.format import layout
from elmo_store.format.manifest import own_sha256
from elmo_store.storage.root import Root


def hostile(folder: Path, names: Sequence[str] = ()) -> Outcomes:
    """Every hostile thing to every command; ``names``: some things only."""
    job = SmallJob.make(folder / "input", n_files=2, n_lines=20)
    weights = folder / "input" / "weights.json"
    weights.write_text(json.dumps({"a": {"w": [0, 0, 0], "gamma": 1}, "b": {"w": [1, 0, 0], "gamma": 2}}))
    Command(job.arguments(folder / "states", "both"), folder / "log").succeed()
    mix = ["mix", str(folder / "states"), "--weights", str(weights), "--output", str(folder / "mix")]
    Command(mix, folder / "log").succeed()
    outcomes = Outcomes("hostile", ("commands", "complete", "refused", "traceback"))
    for name in names or HOSTILE:
        kind, harm = HOSTILE[name]
        for number, arguments in enumerate(_commands(job, weights)):
            sandbox = folder / "sandbox"
            shutil.copytree(folder / kind, sandbox / "store")
            (sandbox / "outside").mkdir()
            (sandbox / "outside" / "victim").write_text("years of work")
            (sandbox / "outputs").mkdir()
            harm(sandbox)
            before = tree_of(sandbox)
            command = Command([text.replace("{sandbox}", str(sandbox)) for text in arguments], folder / f"log {name} {number}")
            code = command.wait()
            with suppress(StoreError, OSError):
                store = elmo_store.open(str(sandbox / "store"))
                store.read(rows=slice(0, 8))
            outcome = "traceback" if "Traceback" in command.output() else "refused" if code else "complete"
            changed = _outside(before, tree_of(sandbox), sandbox, own=arguments)
            wrong = f"{' '.join(arguments)}: {outcome}, changed outside: {changed}\n{command.output()[-1500:]}"
            outcomes.count(name, ("commands", outcome), wrong if changed or outcome == "traceback" else "")
            shutil.rmtree(sandbox)
    return outcomes


def _commands(job: SmallJob, weights: Path) -> list[list[str]]:
    store, output = "{sandbox}/store", ["--output", "{sandbox}/outputs/out", "--overwrite"]
    return [
        ["verify", store, "--deep"], ["info", store], ["report", store], ["index", store], ["index", store, "--by", "text"],
        ["convert", store, *output, "--dtype", "int8"], ["mix", store, "--weights", str(weights), *output],
        *(["export", store, "--format", name, *output] for name in FORMATS),
        job.arguments(store, "both"), job.arguments(store, "both", "--overwrite"),
        ["embed", "{sandbox}/records.jsonl", *output, "--model", str(job.folder / "model.safetensors"), "--threads", "1"],
    ]  # fmt: skip


def _outside(before: dict[str, str], after: dict[str, str], sandbox: Path, own: list[str]) -> list[str]:
    """What changed but the command's own output; names in archives that would be unpacked elsewhere."""
    writes_store = own[0] in ("report", "index", "embed")
    allowed = ("outputs", "store") if writes_store else ("outputs",)
    names = [name for name in differences(before, after) if name.split("/")[0] not in allowed]
    for archive in (sandbox / "outputs").rglob("*.tar"):
        with tarfile.open(archive) as members:
            names += [name for name in members.getnames() if name.startswith("/") or ".." in name.split("/")]
    return sorted(names)[:5]


def _signed(sandbox: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest as somebody would who knows how it is signed."""
    root = Root(sandbox / "store")
    value = root.get_json(layout.MANIFEST)
    change(value)
    root.put_json(layout.MANIFEST, value | {"sha256": own_sha256(value)})


def _names(sandbox: Path, name: str) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["states"][0] = name
        manifest["mix"]["weight_sets"][0]["name"] = name

    _signed(sandbox, change)


def _marker(sandbox: Path, name: str) -> None:
    path = sandbox / "store" / layout.shard_marker(0)
    value = json.loads(path.read_text())
    value["objects"][0]["path"] = name
    path.write_text(json.dumps(value))


def _link(sandbox: Path, rel: str, target: str) -> None:
    path = sandbox / "store" / rel
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(sandbox / target)


def _export_record(sandbox: Path) -> None:
    files = ["../outside/victim", str(sandbox / "outside" / "victim")]
    for name in ("out.export.json", "out/export.json"):
        path = sandbox / "outputs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"format": "npz", "files": files, "complete": True}))


def _records(sandbox: Path) -> None:
    ids = ["../../outside/victim", f"{sandbox}/outside/victim", "..", "a\\..\\b", "/"]
    lines = [json.dumps({"text": "The cat sat .", "id": id}) for id in ids]
    (sandbox / "records.jsonl").write_text("\n".join(lines) + "\n")


def _scratch(sandbox: Path) -> None:
    _signed(sandbox, lambda manifest: manifest.update(complete=False))
    scratch = sandbox / "store" / layout.WORK
    (scratch / "parts").mkdir(parents=True)
    (scratch / "plan.json").write_text(json.dumps({"parts": ["../../outside/victim"], "run": "../../outside", "n_shards": 1}))
    (scratch / "start.json").write_text(json.dumps({"run": "../../outside", "n_pieces": 1}))
    (scratch / "link").symlink_to(sandbox / "outside")


def _bomb(sandbox: Path) -> None:
    from numcodecs.zstd import Zstd  # type: ignore[import-untyped]

    path = sandbox / "store" / layout.zarr_states_shard(0)
    path.write_bytes(bytes(Zstd(level=1).encode(bytes(256 << 20))) + path.read_bytes()[-1024:])


# name: (the store that is changed, how it is changed)
HOSTILE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "names of states with ..": ("mix", lambda sandbox: _names(sandbox, "../../outside/victim")),
    "names of states that are paths": ("mix", lambda sandbox: _names(sandbox, f"{sandbox}/outside/victim")),
    "a manifest's object at ..": ("states", lambda p: _signed(p, lambda m: m["objects"][0].update(path="../outside/victim"))),
    "a marker's object at ..": ("states", lambda sandbox: _marker(sandbox, "../outside/victim")),
    "a marker's object at a path": ("states", lambda sandbox: _marker(sandbox, f"{sandbox}/outside/victim")),
    "a link as sentences": ("states", lambda sandbox: _link(sandbox, layout.SENTENCES, "outside")),
    "a link as the index": ("states", lambda sandbox: _link(sandbox, "indexes", "outside")),
    "a link as the report": ("states", lambda sandbox: _link(sandbox, "report.html", "outside/victim")),
    "a link as a shard": ("states", lambda sandbox: _link(sandbox, layout.zarr_states_shard(0), "outside/victim")),
    "an export's record with .. and paths": ("states", _export_record),
    "ids with .. and paths": ("states", _records),
    "scratch that points outside": ("states", _scratch),
    "a shard that is a bomb": ("states", _bomb),
}
