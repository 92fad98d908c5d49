"""The place of an export: killed, overtaken, and beside records and files that others made."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import elmo_store
from elmo_store.errors import LeaseHeldError, LeaseLostError, OverlapError
from elmo_store.exports import export
from elmo_store.exports.place import ExportRefusedError
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
    return {
        path.removeprefix(base): root.filesystem.cat_file(path)
        for path in root.filesystem.find(root.path())
    }


@pytest.fixture(autouse=True)
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever replaces a lease waits as long as looks of its former owner hold: here not for long."""
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.1)


@pytest.fixture(params=["disk", "object store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """Where exports go."""
    return Root(
        tmp_path / "exports" if request.param == "disk" else f"memory://{tmp_path.name}/exports"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["npz", "datasets"])  # which has tables beside its files
def test_a_kill_at_any_file_leaves_nothing_and_changes_nothing(
    store: Store, tmp_path: Path, name: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.exports.killed_export",
        store.url,
        str(tmp_path),
        name,
        str(2 * SMALL),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["operations"] > 10
    assert found["wrong"] == [], done.stderr


@pytest.mark.parametrize("name", KINDS)
def test_an_export_that_fails_at_any_put_to_an_object_store_starts_again(
    store: Store, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Root(f"memory://{tmp_path.name}")
    export(store, folder.url("whole/out"), name, layers="top", file_bytes=SMALL)
    wanted = contents(Root(folder.url("whole")))
    real = {method: getattr(Root, method) for method in ("put_json", "put_new")}
    last = left = -1
    while left < 0:
        last += 1
        left = last

        def failing(method: str, self: Root, rel: str, *arguments: Any) -> Any:
            nonlocal left
            left -= not rel.startswith(lease.LEASES)
            if left < 0:
                raise KeyboardInterrupt
            return real[method](self, rel, *arguments)

        with monkeypatch.context() as patch:
            for method in real:
                patch.setattr(
                    Root,
                    method,
                    lambda self, *arguments, method=method: failing(method, self, *arguments),
                )
            with suppress(KeyboardInterrupt):
                export(store, folder.url(f"{last}/out"), name, layers="top", file_bytes=SMALL)
        if left < 0:
            export(store, folder.url(f"{last}/out"), name, layers="top", file_bytes=SMALL)
        assert contents(Root(folder.url(str(last)))) == wanted
    assert last > 2


def test_a_record_has_every_file_and_what_is_left_out(store: Store, tmp_path: Path) -> None:
    report = export(store, tmp_path / "out", "elmoformanylangs")
    record = json.loads((tmp_path / "out.export.json").read_text())
    assert record["complete"] is True
    assert (record["format"], record["layers"], record["tokens"]) == ("elmoformanylangs", "all", 26)
    assert sum(record["left_out"].values()) == sum(report.left_out.values()) == 2
    assert {line["path"]: line["bytes"] for line in record["files"]} == {
        name: (tmp_path / name).stat().st_size for name in report.files
    }
    assert all(len(line["crc32c"]) == 8 for line in record["files"])


@pytest.mark.parametrize(
    ("name", "output"), [("npz", "out.npz"), ("safetensors", "out"), ("elmoformanylangs", "out")]
)
@pytest.mark.parametrize("folder", ["store", "link", "store/sentences"])
def test_an_export_does_not_lie_in_its_store(
    store: Store, tmp_path: Path, name: str, output: str, folder: str
) -> None:
    shutil.copytree(store.url, tmp_path / "store")
    (tmp_path / "link").symlink_to("store")
    before = contents(Root(tmp_path / "store"))
    copy = elmo_store.open(tmp_path / "store")
    with pytest.raises(OverlapError, match=r"the output .* lies inside the store"):
        export(copy, tmp_path / folder / output, name)
    with pytest.raises(OverlapError, match=r"the output .* lies inside the store"):
        copy[:2].write(tmp_path / folder / "view")
    assert contents(Root(tmp_path / "store")) == before


def _overtaken(
    start: Callable[[Callable[[], None]], Any], second: Callable[[], Any]
) -> BaseException | None:
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


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_run_that_was_overtaken_fails_by_name_and_damages_nothing(
    store: Store, folder: Root, name: str
) -> None:
    """SIGSTOP in the middle, another export with other settings to its end, SIGCONT."""
    options: dict[str, Any] = {"file_bytes": SMALL}
    export(store, folder.url("alone/out"), name, layers="top", **options)
    wanted = contents(Root(folder.url("alone")))

    def second() -> None:
        with pytest.raises(LeaseHeldError, match="process"):
            export(store, folder.url("both/out"), name, layers="top", **options)
        export(store, folder.url("both/out"), name, layers="top", take_over=True, **options)

    layers = "average" if name == "npz" else "all"
    error = _overtaken(
        lambda wait: export(
            store,
            folder.url("both/out"),
            name,
            layers=layers,
            on_progress=lambda _: wait(),
            **options,
        ),
        second,
    )
    assert isinstance(error, LeaseLostError), repr(error)
    assert "may not write" in str(error)
    assert contents(Root(folder.url("both"))) == wanted


def test_a_live_run_refuses_the_command_and_take_over_replaces_it(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "export",
        store.url,
        "--format",
        "bilm",
        "--output",
        str(tmp_path / "out"),
        "--quiet",
    ]

    def second() -> None:
        assert main(command) == 5
        assert "add --take-over" in capsys.readouterr().err
        assert main([*command, "--take-over"]) == 0

    error = _overtaken(
        lambda wait: export(store, tmp_path / "out", "bilm", on_progress=lambda _: wait()), second
    )
    assert isinstance(error, LeaseLostError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.export.json"]


def test_a_file_that_appears_meanwhile_is_not_written_over(store: Store, folder: Root) -> None:
    for name, rel in (("npz", "npz/out"), ("webdataset", "webdataset/out/000000.tar")):

        def put(tokens: int, rel: str = rel) -> None:
            folder.put(rel, b"precious")

        with pytest.raises(ExportRefusedError, match="while this export was written"):
            export(store, folder.url(f"{name}/out"), name, on_progress=put)
        assert folder.get(rel) == b"precious"


@pytest.mark.parametrize(
    ("where", "overwrite"), [("disk", False), ("disk", True), ("object store", True)]
)
@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["notes.txt"], "is not a record"),
        ([{"path": "notes.txt", "bytes": 8, "crc32c": "0" * 8}], "by its size or checksum"),
        ([{"path": "../own/x", "bytes": 8, "crc32c": "0" * 8}], "is not a record"),
        ([{"path": "out.ly/../x.hdf5", "bytes": 8, "crc32c": "0" * 8}], "is not a record"),
        ([{"path": "out", "bytes": 12, "crc32c": "0" * 8}], "by its size or checksum"),
        ([{"path": "out", "bytes": 11, "crc32c": "0" * 8}], "by its size or checksum"),
        ([], "no out.export.json says"),
    ],
)
def test_a_foreign_record_removes_nothing(
    store: Store, tmp_path: Path, where: str, overwrite: bool, files: list[Any], says: str
) -> None:
    root = Root(str(tmp_path) if where == "disk" else f"memory://{tmp_path.name}").url("out")
    url = root.rpartition("/")[0]
    export(store, f"{url}/own/x", "npz")
    own = Root(f"{url}/own").get_json("x.export.json")
    place = Root(f"{url}/there")
    place.put("notes.txt", b"precious")
    place.put("out", b"precious too"[:11])
    place.put_json("out.export.json", {**own, "files": files, "complete": overwrite})
    before = contents(Root(url))
    with pytest.raises(ExportRefusedError, match=says):
        export(store, place.url("out"), "npz", overwrite=overwrite)
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
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
            ["export.json", name]
        )
        (tmp_path / "out" / name).unlink()


def test_a_file_that_was_worked_on_is_left_alone(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "bilm")
    (tmp_path / "out").write_bytes(b"worked on")
    with pytest.raises(ExportRefusedError, match="is not what the export wrote"):
        export(store, tmp_path / "out", "bilm", overwrite=True)
    assert (tmp_path / "out").read_bytes() == b"worked on"


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


def test_scratch_of_another_job_in_a_folder_is_refused_and_stays(
    store: Store, folder: Root
) -> None:
    folder.put("out/_work/plan.json", b"precious")
    for overwrite in (False, True):
        with pytest.raises(ExportRefusedError, match=r"_work/plan\.json exists"):
            export(store, folder.url("out"), "webdataset", overwrite=overwrite)
    assert folder.list() == ["out/_work/plan.json"]
