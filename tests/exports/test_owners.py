"""Whose an export is: killed, overtaken, torn, and beside records and files that others made."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import elmo_store
from elmo_store.errors import LeaseHeldError, LeaseLostError, OverlapError
from elmo_store.exports import FORMATS, export
from elmo_store.exports.outputs import ExportRefusedError
from elmo_store.exports.writing import Writing
from elmo_store.storage import lease
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root
from elmo_store.store import Store
from pipeline.main import main

SMALL = 2 * 3 * 16 * 8  # bytes of files: eight tokens of three layers in float16
KINDS = ("npz", "allennlp", "elmoformanylangs", "webdataset")


def contents(root: Root) -> dict[str, bytes]:
    """Name → bytes of everything below ``root``, half-written files too."""
    base = root.path() + "/"
    return {path.removeprefix(base): root.filesystem.cat_file(path) for path in root.filesystem.find(root.path())}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_a_kill_at_any_file_leaves_nothing_and_changes_nothing(store: Store, tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "tests.exports.killed_export", store.url, str(tmp_path), name, str(2 * SMALL)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["operations"] > 10
    assert found["wrong"] == [], done.stderr


def test_sentences_left_out_are_known_after_a_kill_before_the_end(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = export(store, tmp_path / "alone/out", "elmoformanylangs")
    assert sum(whole.left_out.values()) == 2
    with monkeypatch.context() as patch:
        patch.setattr(Writing, "finish", _killed)
        with pytest.raises(KeyboardInterrupt):
            export(store, tmp_path / "both/out", "elmoformanylangs")
    assert export(store, tmp_path / "both/out", "elmoformanylangs").left_out == whole.left_out
    assert contents(Root(tmp_path / "both")) == contents(Root(tmp_path / "alone"))


@pytest.mark.parametrize(("name", "output"), [("npz", "out.npz"), ("safetensors", "out"), ("elmoformanylangs", "out")])
@pytest.mark.parametrize("folder", ["store", "link", "store/sentences"])
def test_an_export_does_not_lie_in_its_store(store: Store, tmp_path: Path, name: str, output: str, folder: str) -> None:
    shutil.copytree(store.url, tmp_path / "store")
    (tmp_path / "link").symlink_to("store")
    before = contents(Root(tmp_path / "store"))
    copy = elmo_store.open(tmp_path / "store")
    with pytest.raises(OverlapError, match=r"the output .* lies inside the store"):
        export(copy, tmp_path / folder / output, name)
    with pytest.raises(OverlapError, match=r"the output .* lies inside the store"):
        copy.slice(0, 2).write(tmp_path / folder / "view")
    assert contents(Root(tmp_path / "store")) == before


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever replaces a lease waits as long as looks of its former owner hold: here not for long."""
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.1)


@pytest.fixture(params=["disk", "object store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """Where exports go."""
    return Root(tmp_path / "exports" if request.param == "disk" else f"memory://{tmp_path.name}/exports")


def _overtaken(start: Callable[[Callable[[], None]], Any], second: Callable[[], Any]) -> BaseException | None:
    """The error of ``start``, which waits at the first call of what it is given until ``second`` has run to its end."""
    reached, go_on, errors = threading.Event(), threading.Event(), list[BaseException]()

    def wait() -> None:
        if not reached.is_set():
            reached.set()
            assert go_on.wait(60)

    def first() -> None:
        try:
            start(wait)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert reached.wait(60)
        second()
    finally:
        go_on.set()
        thread.join()
    return errors[0] if errors else None


@pytest.mark.parametrize("name", KINDS)
def test_a_run_that_was_overtaken_fails_by_name_and_damages_nothing(store: Store, folder: Root, name: str) -> None:
    """SIGSTOP in the middle, another export with other settings to its end, SIGCONT."""
    options: dict[str, Any] = {"file_bytes": SMALL}
    export(store, folder.url("alone/out"), name, layers="top", **options)
    wanted = contents(Root(folder.url("alone")))

    def second() -> None:
        with pytest.raises(LeaseHeldError, match="process"):
            export(store, folder.url("both/out"), name, layers="top", overwrite=True, **options)
        export(store, folder.url("both/out"), name, layers="top", overwrite=True, take_over=True, **options)

    layers = "average" if name == "npz" else "all"
    error = _overtaken(
        lambda wait: export(store, folder.url("both/out"), name, layers=layers, on_progress=lambda _: wait(), **options), second
    )
    assert isinstance(error, LeaseLostError), repr(error)
    assert "may not write" in str(error)
    assert contents(Root(folder.url("both"))) == wanted


@pytest.mark.parametrize("sets", [("average", "all"), ("all", "average")])
def test_the_average_and_layers_of_one_prefix_are_written_one_at_a_time(
    store: Store, folder: Root, sets: tuple[str, str]
) -> None:
    def run(url: str, layers: str, **options: Any) -> tuple[str, ...]:
        return export(store, folder.url(url), "elmoformanylangs", layers=layers, **options).written

    for layers in sets:
        run("alone/out", layers)
    wanted = contents(Root(folder.url("alone")))

    def second() -> None:
        with pytest.raises(LeaseHeldError, match="process"):
            run("both/out", sets[1])
        run("both/out", sets[1], take_over=True)

    error = _overtaken(lambda wait: run("both/out", sets[0], on_progress=lambda _: wait()), second)
    assert isinstance(error, LeaseLostError), repr(error)
    assert run("both/out", sets[0])
    assert contents(Root(folder.url("both"))) == wanted


@pytest.mark.parametrize(("url", "stops"), [("", "move_new"), ("", "move"), ("memory://woken", "put_new_file")])
@pytest.mark.parametrize("name", KINDS)
def test_a_run_that_wakes_as_a_file_takes_its_name_damages_nothing(
    store: Store, tmp_path: Path, name: str, url: str, stops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has just looked at the lease: what it was to move (a file, or the record) has been swept, or the name is taken."""
    folder = Root(f"{url or tmp_path}/{name}")
    export(store, folder.url("alone/out"), name, layers="top")
    wanted = contents(Root(folder.url("alone")))
    real = getattr(Root, stops)

    def start(wait: Callable[[], None]) -> None:
        first = threading.get_ident()

        def stopping(self: Root, *arguments: Any) -> Any:
            if threading.get_ident() == first and folder.exists(_record(name)):
                wait()
            return real(self, *arguments)

        monkeypatch.setattr(Root, stops, stopping)
        export(store, folder.url("both/out"), name, layers="average" if name == "npz" else "all")

    def second() -> None:
        export(store, folder.url("both/out"), name, layers="top", overwrite=True, take_over=True)

    error = _overtaken(start, second)
    assert isinstance(error, LeaseLostError), repr(error)
    assert contents(Root(folder.url("both"))) == wanted


def _record(name: str) -> str:
    return "both/out/export.json" if FORMATS[name].folder else "both/out.export.json"


def test_a_live_run_refuses_the_command_and_take_over_pushes_it_aside(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", store.url, "--format", "bilm", "--output", str(tmp_path / "out"), "--quiet"]

    def second() -> None:
        assert main(command) == 5
        assert "add --take-over" in capsys.readouterr().err
        assert main([*command, "--take-over"]) == 0

    error = _overtaken(lambda wait: export(store, tmp_path / "out", "bilm", on_progress=lambda _: wait()), second)
    assert isinstance(error, LeaseLostError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.export.json"]


def _of_somebody_else(store: Store, url: str, record: str, **fields: Any) -> Root:
    """A folder with a user's file and an export's record that was changed: ``fields``."""
    export(store, f"{url}/own/x", "npz")
    root = Root(f"{url}/out")
    value = {**Root(f"{url}/own").get_json("x.export.json"), **fields}
    root.put("notes.txt", b"precious")
    root.put("out", b"precious too")
    root.put_json(record, value)
    return root


@pytest.mark.parametrize(("where", "overwrite"), [("disk", False), ("disk", True), ("object store", True)])
@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["notes.txt"], "is no record"),
        ([{"path": "notes.txt", "bytes": 8, "crc32c": "0" * 8}], "names notes.txt, which no export as npz writes here"),
        ([{"path": "../own/x", "bytes": 8, "crc32c": "0" * 8}], "is no record"),
        ([{"path": "out", "bytes": 12, "crc32c": "0" * 8}], "by its size or checksum"),
        ([{"path": "out", "bytes": 11, "crc32c": "0" * 8}], "by its size or checksum"),
        ([], "no out.export.json says"),
    ],
)
def test_a_foreign_record_removes_nothing(
    store: Store, tmp_path: Path, where: str, overwrite: bool, files: list[Any], says: str
) -> None:
    url = str(tmp_path) if where == "disk" else f"memory://{tmp_path.name}"
    root = _of_somebody_else(store, url, "out.export.json", files=files, complete=False)
    before = contents(Root(url))
    with pytest.raises(ExportRefusedError, match=says):
        export(store, root.url("out"), "npz", overwrite=overwrite)
    assert contents(Root(url)) == before


def test_a_foreign_record_in_a_folder_removes_nothing(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path / "own", "webdataset")
    record = json.loads((tmp_path / "own/export.json").read_text())
    (tmp_path / "out").mkdir()
    for name in ("state.json", "000000.tar", "notes.txt"):
        (tmp_path / "out" / name).write_bytes(b"precious")
        line = {"path": name, "bytes": 8, "crc32c": "0" * 8}
        (tmp_path / "out/export.json").write_text(json.dumps({**record, "files": [line]}))
        with pytest.raises(ExportRefusedError, match=name):
            export(store, tmp_path / "out", "webdataset", overwrite=True)
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(["export.json", name])
        (tmp_path / "out" / name).unlink()


def test_overwrite_leaves_files_that_no_record_names(store: Store, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"precious")
    with pytest.raises(ExportRefusedError, match="is there already"):
        export(store, tmp_path / "out", "bilm", overwrite=True)
    export(store, tmp_path / "other", "bilm")
    (tmp_path / "other").write_bytes(b"worked on")
    for overwrite in (False, True):
        with pytest.raises(ExportRefusedError, match="is not what the export wrote"):
            export(store, tmp_path / "other", "bilm", overwrite=overwrite)
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir()) if path.suffix == ""] == [b"worked on", b"precious"]


@pytest.mark.parametrize("name", KINDS)
def test_an_upload_that_was_torn_is_written_again(
    store: Store, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Root(f"memory://{tmp_path.name}")
    export(store, folder.url("alone/out"), name, file_bytes=SMALL)
    wanted = contents(Root(folder.url("alone")))
    files = fsspec.filesystem("memory")
    with monkeypatch.context() as patch:

        def torn(path: str, target: str, **_: Any) -> None:
            files.pipe_file(target, Path(path).read_bytes()[:100])
            raise KeyboardInterrupt

        patch.setattr(files, "put_file", torn)
        with pytest.raises(KeyboardInterrupt):
            export(store, folder.url("both/out"), name, file_bytes=SMALL)
    export(store, folder.url("both/out"), name, file_bytes=SMALL)
    assert contents(Root(folder.url("both"))) == wanted


def test_what_a_dead_process_staged_for_a_remote_output_is_swept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as alive:
        dead = tmp_path / alive.name.replace(f".{os.getpid()}.", ".999999999.")
        other = tmp_path / "elmo-store-export-notes"
        for folder in (dead, other):
            folder.mkdir()
            (folder / "file").write_bytes(b"half")
        export(store, f"memory://{tmp_path.name}/out", "bilm")
        assert sorted(tmp_path.iterdir()) == sorted([alive, other])
