"""The documentation holds: Python blocks run as scripts, links lead somewhere, and what a page names exists."""

import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pipeline.main import COMMANDS, main
from tests.pipeline.conftest import TINY
from tests.store.support import token

REPO = Path(__file__).resolve().parent.parent
PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").rglob("*.md"))]
ROOMS = (
    "elmo_store",
    "model",
    "transforms",
    "pipeline",
    "deploy",
    "benchmarks",
    "tests",
    "examples",
    "docs",
    ".ci",
)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(REPO))


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def python_blocks(path: Path) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of: text in `corpus`, and `out/sample`, some 2,000 rows of a tiny model."""
    from model.files.registry import random_weights

    folder = tmp_path_factory.mktemp("docs")
    (folder / "corpus").mkdir()
    (folder / "corpus" / "a.txt").write_text("I sat on the bank of the river.\n", encoding="utf-8")
    random_weights(TINY).save_safetensors(folder / "tiny.safetensors")
    lines = [
        json.dumps({"id": f"doc-{i}", "text": [token(i + j) for j in range(20)]})
        for i in range(110)
    ]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = [
        "--model",
        str(folder / "tiny.safetensors"),
        "--output",
        str(folder / "out/sample"),
        "--id-field",
        "id",
    ]
    assert (
        main(
            [
                "embed",
                str(folder / "in.jsonl"),
                *arguments,
                "--store",
                "both",
                "--quiet",
                "--shard-rows",
                "512",
            ]
        )
        == 0
    )
    return folder


def errors_of(command: list[str], folder: Path, seconds: float = 240, **environment: str) -> str:
    """What a command that succeeds writes to its standard error."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = os.environ | {"PATH": path, "PYTHONPATH": str(REPO)} | environment
    done = subprocess.run(
        command,
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stderr


BLOCKS = {
    f"{page.stem}-{i}": block
    for page in PAGES
    if page.parent.name not in ("worked", "howto")  # whose blocks follow each other: tests/pages
    for i, block in enumerate(python_blocks(page))
}


@pytest.fixture(scope="module")
def endings(sample: Path) -> dict[str, tuple[str, str]]:
    """Exit status and standard error of each block, run as a script with torch imported."""
    scripts = {name: sample / f"{name}.py" for name in BLOCKS}
    for name, script in scripts.items():
        script.write_text(BLOCKS[name], encoding="utf-8")
    runner = str(Path(__file__).with_name("docs_scripts.py"))
    assert errors_of([sys.executable, runner, *map(str, scripts.values())], sample) == ""
    return {
        name: (Path(f"{path}.status").read_text(), Path(f"{path}.err").read_text())
        for name, path in scripts.items()
    }


# What `import apache_beam` itself writes without Google's client libraries; the command's own log drops it.
BEAM_WITHOUT_GCP = re.compile(
    r"^WARNING:root:apitools not found, and bigquery client libraries .*\n", re.MULTILINE
)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_each_python_block_is_a_script_that_writes_no_error(
    name: str, endings: dict[str, tuple[str, str]]
) -> None:
    status, standard_error = endings[name]
    assert (status, BEAM_WITHOUT_GCP.sub("", standard_error)) == ("0", "")


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_command_is_on_the_usage_page() -> None:
    usage = (REPO / "docs" / "usage.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert re.search(rf"^## .*\b{command}\b", usage, re.MULTILINE), (
            f"docs/usage.md has no heading for {command}"
        )


def quoted(page: Path) -> list[str]:
    """What stands between backticks, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def functions_by_file() -> dict[str, set[str]]:
    """The names of test functions by the name of their file, whichever folder it lies in."""
    tests: dict[str, set[str]] = {}
    for file in (REPO / "tests").rglob("test_*.py"):
        functions = re.findall(
            r"^ *(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE
        )
        tests.setdefault(file.name, set()).update(functions)
    return tests


@each_page
def test_files_and_tests_that_a_page_names_exist(
    page: Path, functions_by_file: dict[str, set[str]]
) -> None:
    files = {path.name for room in ROOMS for path in (REPO / room).rglob("*")} | {
        path.name for path in REPO.iterdir()
    }
    for words in quoted(page):
        for word in words.split():
            path, _, test = word.partition("::")
            if re.match(rf"({'|'.join(map(re.escape, ROOMS))})/[\w./*-]*$", path):
                assert list(REPO.glob(path)), f"{name_of(page)} names {path}"
            elif re.fullmatch(r"[\w-]+\.(py|c|yaml|sh|toml)", path):
                assert path in {*files, "model.py"}, f"{name_of(page)} names {path}"
            elif re.fullmatch(r"test_\w+", path):
                assert any(path in names for names in functions_by_file.values()), (
                    f"{name_of(page)} names {path}"
                )
            if re.fullmatch(r"test_\w+", test):
                assert test in functions_by_file.get(Path(path).name, ()), (
                    f"{name_of(page)} names {word}"
                )


# A module of ours, or a name in one; `model` is a variable on many pages.
OURS = re.compile(r"(?:elmo_store(?!\.json)|transforms|pipeline|deploy|benchmarks)(?:\.\w+)+")


@each_page
def test_modules_and_names_that_a_page_names_exist(page: Path) -> None:
    run = re.findall(rf"python3? -m ({OURS.pattern})", page.read_text(encoding="utf-8"))
    named = [match[0] for words in quoted(page) if (match := OURS.match(words))]
    for name in {*run, *named} - {"benchmarks.NAME"}:
        assert exists(name), f"{name_of(page)} names {name}"


def exists(name: str) -> bool:
    """Whether ``name`` is a module of ours, or what stands below one."""
    parts = name.split(".")
    stems = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
    module = next(
        (
            stem
            for stem in stems
            if (REPO / f"{stem}.py").is_file() or (REPO / stem / "__init__.py").is_file()
        ),
        None,
    )
    if module is None or not (rest := parts[module.count("/") + 1 :]):
        return module is not None or (REPO / stems[0]).is_dir()
    value = importlib.import_module(module.replace("/", "."))
    for part in rest:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


COMMAND_LINE = re.compile(r"elmo-store ([a-z]+)((?: convert\b)?)(.*)")
OF_BEAM = {"--runner", "--parallelism", "--project", "--region"}


@each_page
def test_commands_and_options_that_a_page_gives_exist(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [
        line
        for block in FENCE.findall(text)
        if not block.startswith("```python")
        for line in block.splitlines()
    ]
    for line in [*lines, *quoted(page)]:
        if not (match := COMMAND_LINE.match(line)) or (match[1] == "in" and line in lines):
            continue
        command, leaf, rest = match[1], match[2].split(), match[3].partition("#")[0]
        assert command in COMMANDS, f"{name_of(page)} names elmo-store {command}"
        options = set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*(?![\w-])", rest)) - OF_BEAM
        if options:
            with pytest.raises(SystemExit):
                main([command, *leaf, "--help"])
            assert options <= set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out)), (
                f"{name_of(page)}: {line}"
            )


def public_names() -> Iterator[tuple[str, object]]:
    """What `elmo_store` exports, with the names that docs/api.md has it by."""
    for module in ("elmo_store", "elmo_store.torch", "elmo_store.exports"):
        package = importlib.import_module(module)
        yield from ((f"{module}.{name}", getattr(package, name)) for name in package.__all__)


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    page = (REPO / "docs" / "api.md").read_text(encoding="utf-8")
    listed = {
        *re.findall(r"^::: (\S+)$", page, re.MULTILINE),
        *re.findall(r"^`(elmo_store\.__version__)`", page, re.MULTILINE),
    }
    assert listed == {name for name, _ in public_names()}


def test_what_is_public_has_docstrings() -> None:
    errors = importlib.import_module("elmo_store.errors")
    ours = [
        (name, value)
        for name, value in vars(errors).items()
        if getattr(value, "__module__", "") == errors.__name__
    ]
    for name, value in [*public_names(), *ours]:
        if inspect.isclass(value) or inspect.isfunction(value) or isinstance(value, ModuleType):
            assert inspect.getdoc(value), name
        if inspect.isclass(value):
            members = {
                k: v for k, v in vars(value).items() if not k.startswith("_") and callable(v)
            }
            for member in members:
                assert inspect.getdoc(getattr(value, member)), f"{name}.{member}"
