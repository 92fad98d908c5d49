"""The entry point: our packages first whatever the path holds, nothing large imported too early, a missing extra named."""

import json
import os
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from elmo_store.extras import EXTRAS
from elmo_store.own_packages import OUR_FOLDER, put_ours_first
from tests.pipeline.conftest import Made
from tests.pipeline.support import run_command

LARGE = ("torch", "apache_beam", "numpy", "pyarrow", "fsspec", "zarr")
# Runs the commands of a JSON array one after the other and prints, after each, which large packages this process has imported.
PROBE = f"""
import json, sys
from elmo_store.__main__ import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    print("IMPORTED", code, [name for name in {LARGE!r} if name in sys.modules])
"""
COMMANDS = [
    (["--help"], 0),
    (["--version"], 0),
    (["embed", "--help"], 0),
    (["train", "--help"], 0),
    (["embed", "nowhere.txt", "--output", "out"], 3),
    (["embed", "no/*.txt", "--output", "out"], 3),
    (["embed", __file__, "--output", "out", "--model", "no/such/model"], 2),
    (["embed", __file__, "--output", "out", "--shard-rows", "1000"], 2),
    (["mix", ".", "--weights", "nowhere.json", "--output", "out"], 3),
    (["train", "nowhere.txt", "--options", "o.json", "--output", "out"], 3),
]


def imported(commands: list[list[str]]) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": OUR_FOLDER}
    given = [sys.executable, "-c", PROBE, json.dumps(commands)]
    done = subprocess.run(
        given, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return [line for line in done.stdout.splitlines() if line.startswith("IMPORTED ")]


def test_help_and_bad_paths_import_nothing_large() -> None:
    lines = imported([arguments for arguments, _ in COMMANDS])
    assert lines == [f"IMPORTED {code} []" for _, code in COMMANDS]


def test_commands_that_look_at_a_store_need_neither_pytorch_nor_beam(made: Made) -> None:
    lines = imported(
        [[*command, str(made.zarr)] for command in (["info"], ["verify"], ["watch", "--once"])]
    )
    assert [line[:11] for line in lines] == ["IMPORTED 0 "] * 3
    assert not [name for name in ("torch", "apache_beam") if repr(name) in lines[-1]]


@pytest.mark.slow
def test_a_stray_module_first_on_the_path_is_not_taken_for_ours(tmp_path: Path) -> None:
    for name in ("model", "pipeline", "transforms"):
        (tmp_path / f"{name}.py").write_text(
            "raise SystemExit('a stray module was imported')\n", encoding="utf-8"
        )
    paths = os.pathsep.join([str(tmp_path), OUR_FOLDER])
    done = run_command("models", cwd=tmp_path, env={"PYTHONPATH": paths, "PYTHONSAFEPATH": ""})
    assert "random-small" in done.stdout, done.stderr


def test_our_folder_goes_before_everything_but_the_standard_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standard = sysconfig.get_path("stdlib")
    own = [standard, f"{standard}/lib-dynload"]
    path = ["", "/their/folder", *own, "/lib", OUR_FOLDER]
    environment = {"PYTHONPATH": os.pathsep.join(["/their/folder", OUR_FOLDER])}
    put_ours_first(path, environment)
    assert path == [*own, OUR_FOLDER, "", "/their/folder", "/lib"]
    assert environment == {
        "PYTHONPATH": os.pathsep.join([OUR_FOLDER, "/their/folder"]),
        "PYTHONSAFEPATH": "1",
    }
    monkeypatch.setattr(site, "getsitepackages", lambda: [OUR_FOLDER])
    installed: dict[str, str] = {}
    put_ours_first(path, installed)
    assert installed == {"PYTHONSAFEPATH": "1"}


def test_a_package_beside_ours_takes_no_name_of_the_standard_library(tmp_path: Path) -> None:
    """As in site-packages, where an old backport may lie; a user's `model.py` still comes after ours, in workers too."""
    beside, user = tmp_path / "site", tmp_path / "user"
    beside.mkdir()
    user.mkdir()
    for name in ("elmo_store", "model", "transforms", "pipeline", "deploy"):
        (beside / name).symlink_to(Path(OUR_FOLDER) / name)
    (beside / "colorsys.py").write_text(
        "raise SystemExit('a backport was imported')\n", encoding="utf-8"
    )
    (user / "model.py").write_text(
        "raise SystemExit('a stray module was imported')\n", encoding="utf-8"
    )
    probe = (
        "import elmo_store.own_packages as own, site, sys, os\n"
        "own.OUR_FOLDER = sys.argv[1]\n"
        "site.getsitepackages = lambda: [sys.argv[1]]\n"
        "own.put_ours_first(sys.path, os.environ)\n"
        "import colorsys, model\n"
        "print(colorsys.__file__, model.__file__, os.environ['PYTHONPATH'])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(user), OUR_FOLDER])}
    run = [sys.executable, "-P", "-c", probe, str(beside)]
    done = subprocess.run(
        run, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    standard, ours, inherited = done.stdout.split()
    assert standard.startswith(sysconfig.get_path("stdlib"))
    assert ours.startswith(str(beside))
    assert str(beside) not in inherited.split(
        os.pathsep
    )  # a child would have it before its standard library


@pytest.mark.parametrize(
    ("module", "extra"), [("torch", "embed"), ("matplotlib", "plot"), ("s3fs", "s3")]
)
def test_a_missing_package_is_named_with_its_extra(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from elmo_store import __main__ as entry

    def fails(_: str) -> None:
        raise ModuleNotFoundError(f"No module named {module}.sub", name=f"{module}.sub")

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(entry.importlib, "import_module", fails)
    assert entry.main() == 2
    assert f"pip install '.[{extra}]'" in capsys.readouterr().err


# Runs commands in a process that has none of these modules, whatever is installed.
WITHOUT = """
import json, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))
from elmo_store.__main__ import main
for arguments in json.loads(sys.argv[2]):
    sys.argv[1:] = arguments
    sys.stderr = sys.stdout
    print("ENDED", main(), flush=True)
"""


@pytest.mark.slow
def test_every_missing_extra_ends_a_command_alike(made: Made, tmp_path: Path) -> None:
    out, store, text = str(tmp_path / "out"), str(made.zarr), str(tmp_path / "in.txt")
    Path(text).write_text("a b c\n", encoding="utf-8")
    hdf5 = ["export", store, "--format", "allennlp", "--output", f"{out}.hdf5"]
    commands = [
        (["info", "s3://bucket/store"], "s3fs", "s3"),
        (["embed", "s3://bucket/in.txt", "--output", out], "s3fs", "s3"),
        (["verify", "gs://bucket/store"], "gcsfs", "gcs"),
        (["embed", text, "--output", "gs://bucket/store"], "gcsfs", "gcs"),
        (["verify", "abfs://container/store"], "adlfs", "azure"),
        (["mix", "az://container/store", "--weights", text, "--output", out], "adlfs", "azure"),
        (["embed", "https://host.invalid/in.txt", "--output", out], "aiohttp", "http"),
        (["embed", "hf://datasets/a/b/in.txt", "--output", out], "huggingface_hub", "hf"),
        (hdf5, "h5py", "export"),
        (["report", store], "matplotlib", "plot"),
        (["explore", store], "uvicorn", "explore"),
    ]
    hidden = [*{package for _, package, _ in commands}, "obstore"]
    given = json.dumps(hidden), json.dumps([arguments for arguments, _, _ in commands])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *given],
        env={**os.environ, "PYTHONPATH": OUR_FOLDER},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    answers = done.stdout.split("ENDED ")
    codes = [answer.partition("\n")[0] for answer in answers[1:]]
    for (arguments, package, extra), answer, code in zip(commands, answers, codes, strict=False):
        wanted = (
            f"needs {package}, which is not installed: pip install '.[{extra}]' in elmo-store's"
        )
        assert (wanted in answer, code) == (True, "2"), (arguments, answer)
    assert len(codes) == len(commands)
    assert not Path(out).exists()


def test_every_extra_that_is_named_exists(repo_dir: Path) -> None:
    import tomllib

    declared = tomllib.loads((repo_dir / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert set(EXTRAS.values()) <= set(declared) | {"embed", "explore"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["embed", "--help"], 0), (["info", "no/such/store"], 3), (["nonsense"], 2)],
)
def test_the_command_ends_at_once_with_its_code_and_all_it_said(
    arguments: list[str], code: int
) -> None:
    """It doesn't take the interpreter apart, but says what it has to and does what was asked for at exit."""
    probe = "import atexit, sys\nfrom elmo_store.__main__ import command\natexit.register(print, 'asked for at exit')\ncommand()"
    environment = {**os.environ, "PYTHONPATH": OUR_FOLDER}
    run = [sys.executable, "-c", probe, *arguments]
    done = subprocess.run(
        run, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code
    assert done.stdout.endswith("asked for at exit\n")
    assert len(done.stdout + done.stderr) > 60


@pytest.mark.parametrize(
    ("start", "module"),
    [
        ("worker", "deploy.cluster.boot"),
        ("local_worker", "apache_beam.runners.worker.sdk_worker_main"),
    ],
)
def test_a_worker_ends_at_once_whatever_its_threads_compute(start: str, module: str) -> None:
    """One that computes while the interpreter is taken apart would abort the process: "terminate called …"."""
    probe = (
        "import sys, threading, time, types\n"
        "from elmo_store import __main__ as entry\n"
        "busy = threading.Thread(target=time.sleep, args=(3600,))\n"
        f"sys.modules[{module!r}] = types.SimpleNamespace(main=lambda *_: busy.start() or 0)\n"
        f"entry.{start}()"
    )
    environment = {**os.environ, "PYTHONPATH": OUR_FOLDER}
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
