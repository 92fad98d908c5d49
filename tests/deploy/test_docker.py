"""The Dockerfile: linted, pinned, non-root, installing what pyproject says, its stages made of what tests run elsewhere."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from io import BytesIO
from pathlib import Path

import pytest

dockerfile_parse = pytest.importorskip("dockerfile_parse", reason="pip install '.[test-all]'")
pytestmark = pytest.mark.slow
DOCKERFILE = Path("deploy") / "docker" / "Dockerfile"


def defaults(repo_dir: Path) -> dict[str, str]:
    """The arguments of a build that have a value unless one is given."""
    return dict(
        re.findall(r"^ARG (\w+)=(.+)$", (repo_dir / DOCKERFILE).read_text("utf-8"), re.MULTILINE)
    )


def stages(repo_dir: Path) -> dict[str, list[tuple[str, str]]]:
    """Instructions (name, value) of every stage, by the stage's name."""
    parser = dockerfile_parse.DockerfileParser(
        fileobj=BytesIO((repo_dir / DOCKERFILE).read_bytes())
    )
    found: dict[str, list[tuple[str, str]]] = {}
    for instruction in parser.structure:
        if instruction["instruction"] == "FROM":
            found[instruction["value"].split()[-1]] = steps = []
        if found:
            steps.append((instruction["instruction"], instruction["value"]))
    return found


def test_hadolint_has_nothing_to_say(repo_dir: Path) -> None:
    program = shutil.which(
        "hadolint",
        path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    )
    if program is None:
        pytest.skip("hadolint is not installed: pip install '.[test-all]'")
    done = subprocess.run(
        [program, str(repo_dir / DOCKERFILE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_every_image_is_pinned_and_no_last_stage_has_a_compiler_or_runs_as_root_without_a_reason(
    repo_dir: Path,
) -> None:
    found = stages(repo_dir)
    for name in ("beam", "jars", "build", "runtime", "flink-cluster"):
        image = re.sub(
            r"\$\{(\w+)\}", lambda m: defaults(repo_dir)[m[1]], found[name][0][1].split()[0]
        )
        assert re.search(r":\d+\.\d+\.\d+", image), image
    for name in ("runtime", "flink", "dataflow", "flex"):
        text = " ".join(value for _, value in found[name])
        assert "gcc" not in text
        assert "pip install" not in text
    last_user = {
        name: [v for i, v in found[name] if i == "USER"][-1]
        for name in ("runtime", "flink", "dataflow")
    }
    assert last_user == {
        "runtime": "10001",
        "flink": "10001",
        "dataflow": "0",
    }  # see the comment there


def test_the_images_install_our_package_with_extras_that_exist_and_nothing_else(
    repo_dir: Path,
) -> None:
    project = tomllib.loads((repo_dir / "pyproject.toml").read_text("utf-8"))["project"]
    text = " ".join(
        value for instruction, value in stages(repo_dir)["build"] if instruction == "RUN"
    )
    installed = re.findall(
        r"pip install(?: --?[\w-]+(?: \"\$TORCH_INDEX\")?)* (\S+?);?(?= |$)", text
    )
    assert installed == ["torch", '".[$EXTRAS]"']
    extras = set(defaults(repo_dir)["EXTRAS"].split(","))
    assert {"embed", "s3", "gcs", "dataflow"} <= extras <= set(project["optional-dependencies"])
