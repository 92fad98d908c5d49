"""Dataflow without an image: what Beam stages for --setup_file and --requirements_file makes a worker in a fresh environment."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from pipeline.cli.exit_codes import Exit
from tests.clusters.processes import worker_environment
from tests.deploy.conftest import Arguments
from tests.deploy.portable import portable_service
from tests.pipeline.support import digests

LAUNCHER_ONLY = {"apache-beam"}  # which is in its image


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower()


def test_the_requirements_are_what_pyproject_says_the_pipeline_needs(repo_dir: Path) -> None:
    project = tomllib.loads((repo_dir / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {*project["dependencies"], *extras.get("embed", []), *extras["gcs"]}
    lines = (repo_dir / "deploy" / "dataflow" / "requirements.txt").read_text("utf-8").splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    assert listed == {
        one
        for one in wanted
        if name_of(one) not in LAUNCHER_ONLY and not one.startswith("elmo-store")
    }


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_worker_starts_from_what_beam_would_stage(
    repo_dir: Path, embed_arguments: Arguments, local_bytes: dict[str, str], tmp_path: Path
) -> None:
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.stager import Stager

    # Beam's own stager builds the source distribution that workers install.
    options = PipelineOptions([f"--setup_file={repo_dir / 'setup.py'}"])
    resources = Stager.create_job_resources(
        options, str(tmp_path), log_submission_env_dependencies=False
    )
    staged = [
        Path(artifact.type_payload.decode(errors="replace").strip("\n\x00")).name
        for artifact in resources
    ]
    (archive,) = [path for path in tmp_path.iterdir() if path.name.endswith((".tar.gz", ".whl"))]
    assert any("workflow" in name or "elmo" in name for name in [*staged, archive.name])
    venv.create(tmp_path / "env")
    python = str(tmp_path / "env" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    clean = {**os.environ, "PYTHONPATH": ""}
    subprocess.run([*pip, str(archive)], check=True, env=clean, timeout=200)
    # The requirements themselves take minutes to install: this environment's own copies of them stand in their place.
    (site,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    folders = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(folders) + "\n", encoding="utf-8")
    env = {name: value for name, value in worker_environment().items() if name != "PYTHONPATH"}
    with portable_service(tmp_path, python) as engine:
        command = [python, "-m", "elmo_store", *embed_arguments(tmp_path / "store", *engine)]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode == Exit.COMPLETE, done.stderr
    where = subprocess.run(
        [python, "-c", "import transforms; print(transforms.__file__)"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert where.stdout.startswith(str(site)), "the package came from elsewhere"
    assert digests(tmp_path / "store") == local_bytes
