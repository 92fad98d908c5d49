"""The images, built by buildah on a Debian that debootstrap made, and run as a cluster would: our user, our entry point.

Where no registry of images is reached, this Debian takes the place of `python:…-slim`: its Python, and like it without manual
pages and without a compiler. PyTorch's gigabytes are left out of the image (`EXTRAS`) and lent to the job from this environment.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.clusters.artefacts import missing_tools, resolve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LENT = "/lent"  # where a container finds the packages of this environment


@dataclass(frozen=True)
class Buildah:
    """Images and containers in a folder of their own."""

    folder: Path

    def __call__(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """One command of buildah's, to its end."""
        environment = {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",
            "TMPDIR": str(self.folder),
        }
        done = subprocess.run(["buildah", *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done

    def build(self, repo_dir: Path, target: str, *options: str) -> None:
        """The Dockerfile's ``target`` as the image of that name, and a container of it."""
        arguments = [f"--build-arg={value}" for value in ("PYTHON_IMAGE=localhost/debian", "EXTRAS=s3")]
        dockerfile = str(repo_dir / "deploy" / "docker" / "Dockerfile")
        common = ["--format=docker", "-f", dockerfile, "--target", target, "-t", target]
        self("build", *common, *arguments, *options, str(repo_dir))
        self("from", "--name", f"in-{target}", target)

    def run(
        self, image: str, command: Sequence[str], mounts: Mapping[Path, str] | None = None, *, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """``command`` in the container of ``image``, in which folders of this machine are mounted by path, read-only."""
        volumes = [f"--volume={ours}:{theirs}:ro" for ours, theirs in (mounts or {}).items()]
        return self("run", *volumes, "--env", f"PYTHONPATH={LENT}", f"in-{image}", "--", *command, check=check)


def debian(folder: Path) -> None:
    """A root file system with Python in ``folder``, as slim as the official images, trusting whom this machine trusts."""
    packages = "python3-venv,libpython3-dev,ca-certificates"
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    for name in ("usr/share/man", "usr/share/doc", "var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(folder / name)
    (folder / "usr" / "bin" / "python").symlink_to("python3")
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, folder / CERTIFICATES.relative_to("/"))
        (folder / "etc" / "pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n")


@pytest.fixture(scope="module")
def buildah(repo_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """With the image `runtime`."""
    if missing := [tool for tool in ("buildah", "debootstrap") if shutil.which(tool) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed (Debian: apt-get install buildah debootstrap)")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:  # to any user but root
        pytest.skip("debootstrap and buildah mount things, which this machine grants nobody or root alone")
    folder = tmp_path_factory.mktemp("images")
    try:
        lines = ["[storage]", 'driver = "vfs"', f'graphroot = "{folder / "images"}"', f'runroot = "{folder / "run"}"']
        # vfs mounts nothing that a killed test would leave behind.
        (folder / "storage.conf").write_text("\n".join(lines))
        debian(folder / "debian")
        run = Buildah(folder)
        container = run("from", "scratch").stdout.strip()
        run("copy", container, str(folder / "debian"), "/")
        run("commit", "--rm", container, "localhost/debian")
        run.build(repo_dir, "runtime")
        yield run
    finally:
        shutil.rmtree(folder)  # gigabytes, which pytest would keep


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, repo_dir: Path) -> Path:
    """A small store, made by this environment."""
    output = tmp_path_factory.mktemp("store") / "store"
    subprocess.run([sys.executable, "-m", "elmo_store", *embedding(repo_dir / "examples" / "sample", output)], check=True)
    return output


def embedding(corpus: Path | str, output: Path | str) -> list[str]:
    return ["embed", str(corpus), "--output", str(output), "--threads", "1", "--quiet"]


def test_the_runtime_image_runs_the_command_as_our_user_and_holds_no_compiler_source_or_secret(
    repo_dir: Path, buildah: Buildah
) -> None:
    config = json.loads(buildah("inspect", "--type", "image", "runtime").stdout)["OCIv1"]["config"]
    assert (config["User"], config["Entrypoint"]) == ("10001", ["elmo-store"])
    assert {value.partition("=")[0] for value in config["Env"]} == {"PATH", "PYTHONSAFEPATH", "PYTHONUNBUFFERED"}
    assert buildah.run("runtime", ["elmo-store", "--version"]).stdout.startswith("elmo-store ")
    assert buildah.run("runtime", ["elmo-store-worker", "--help"]).stdout.startswith("usage: elmo-store-worker ")
    assert buildah.run("runtime", ["id", "-u"]).stdout == "10001\n"
    absent = buildah.run(
        "runtime", ["sh", "-c", "which gcc; find / -xdev -name .git -o -path /src -o -name test_images.py 2>&-; true"]
    )
    assert absent.stdout == ""
    installed = buildah.run("runtime", ["sh", "-c", "cd /opt/elmo-store/lib/python3*/site-packages && find . -type f"]).stdout
    for name in ("model/engine/_lstm.abi3.so", "deploy/flink/config.yaml",
                 "deploy/dataflow/metadata.json", "deploy/kubernetes/overlays/gke/kustomization.yaml"):  # fmt: skip
        assert f"./{name}\n" in installed


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("info", r"/store: complete store of states, format 1\ncounts: +3,029 sentences, "),
        ("verify", r"sound: .* 3,029 sentences in \d+ shards?; 0 faults\n"),
        ("watch", r"complete: [\d,]+ tokens in \d+ shards?\n"),
    ],
)
def test_the_runtime_image_reads_a_store_without_pytorch_and_beam(buildah: Buildah, store: Path, command: str, says: str) -> None:
    assert re.match(says, buildah.run("runtime", ["elmo-store", command, "/store"], {store: "/store"}).stdout)


def test_a_job_in_the_runtime_image_gives_the_same_bytes(repo_dir: Path, buildah: Buildah, store: Path) -> None:
    lent = Path(torch.__file__).parents[1]
    theirs = buildah.run("runtime", ["python3", "-c", "import sys; print(*sys.version_info[:2])"]).stdout.split()
    if theirs != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(f"packages of this Python can't be lent to the image's {'.'.join(theirs)}")
    commands = f"elmo-store {' '.join(embedding('/corpus', '/tmp/store'))} >&2 && cat /tmp/store/elmo_store.json"
    mounts = {lent: LENT, repo_dir / "examples" / "sample": "/corpus"}
    done = buildah.run("runtime", ["sh", "-c", commands], mounts)
    ours = json.loads((store / "elmo_store.json").read_text("utf-8"))
    assert json.loads(done.stdout)["checksums"]["shards"] == ours["checksums"]["shards"]


def test_the_flink_images_reach_for_flink_start_its_job_server_and_hold_beams_jars(repo_dir: Path, buildah: Buildah) -> None:
    if (problem := missing_tools()) is not None:
        pytest.skip(f"the jars can't be had: {problem}")
    stage = buildah.folder / "jars"  # in place of the Dockerfile's, which Maven's image makes
    for name in ("flink-jars", "beam-jars", "own-jars"):
        (stage / "opt" / name).mkdir(parents=True)
    for jar in resolve(repo_dir / "deploy" / "flink" / "pom.xml"):
        shutil.copy(jar, stage / "opt" / "flink-jars")
        of_flink = any(f"/{group}/" in str(jar) for group in ("org/apache/flink", "org/slf4j"))
        shutil.copy(jar, stage / "opt" / ("own-jars" if of_flink else "beam-jars"))
    built = "--build-context=runtime=container-image://localhost/runtime"
    buildah.build(repo_dir, "flink", f"--build-context=jars={stage}", built)
    config = json.loads(buildah("inspect", "--type", "image", "flink").stdout)["OCIv1"]["config"]
    assert config["User"] == "10001"
    assert "17" in buildah.run("flink", ["java", "--version"]).stdout
    lent = {Path(torch.__file__).parents[1]: LENT, repo_dir / "examples" / "sample": "/corpus"}
    command = [*config["Entrypoint"], *embedding("/corpus", "/tmp/store"), "--runner=FlinkRunner", "--flink_master=localhost:1"]
    done = buildah.run("flink", command, lent, check=False)
    assert "no Flink answers at http://localhost:1" in done.stderr
    done = buildah.run("flink", ["java", "-jar", "/opt/flink-job-server.jar", "--help"], check=False)
    assert "--flink-master" in f"{done.stdout}{done.stderr}"
    # The cluster's image, on one that stands for Flink's: its jars, and our Java.
    container = buildah("from", "flink").stdout.strip()
    buildah("copy", container, str(stage / "opt" / "own-jars"), "/opt/flink/lib")
    buildah("commit", "--rm", container, "localhost/flinks-own")
    buildah.build(repo_dir, "flink-cluster", f"--build-context=jars={stage}", "--build-arg=FLINK_IMAGE=localhost/flinks-own")
    assert json.loads(buildah("inspect", "--type", "image", "flink-cluster").stdout)["OCIv1"]["config"]["User"] == "9999"
    held = buildah.run("flink-cluster", ["ls", "/opt/flink/lib"]).stdout.split()
    assert sorted(held) == sorted(path.name for path in (stage / "opt" / "flink-jars").iterdir())  # each once
    loads = ["java", "-cp", "/opt/flink/lib/*", "org.apache.beam.runners.flink.FlinkJobServerDriver", "--help"]
    done = buildah.run("flink-cluster", loads, check=False)
    assert "--flink-master" in f"{done.stdout}{done.stderr}"
