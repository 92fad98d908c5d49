"""A disk without space: the cause, the free space and the remedy come first, and nothing crashes."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.exit_codes import Exit
from tests.hostile.jobs import SmallJob
from tests.store.support import make_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
# Mounts a small disk at $2 in a namespace of this process alone, then runs the rest.
MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'
IN_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", MOUNT, "sh"]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        subprocess.run(
            [*IN_NAMESPACE, "100k", str(folder), "true"], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this system mounts no disk for a test: {error}")
    return folder


def run(disk: Path, size: str, *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command that has a disk of so many bytes at ``disk``."""
    command = [*IN_NAMESPACE, size, str(disk), sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("size", ["60k"])
def test_embed_on_a_full_disk_says_so_first(tmp_path: Path, disk: Path, size: str) -> None:
    job = SmallJob.make(tmp_path / "input")
    arguments = job.arguments(disk / "store", "both")

    code, said = run(disk, size, "-m", "elmo_store", *arguments)

    first = said.splitlines()[0]
    assert code in (Exit.INCOMPLETE, Exit.BAD_LOCATION)
    assert f"no space is left at {disk / 'store'} (0." in first
    assert "MB are free" in first
    assert "make room there, then rerun the same command" in first
    assert ".py" not in said
    assert "while running" not in said


@pytest.mark.parametrize("format", ["allennlp", "npz", "datasets"])
def test_export_on_a_full_disk_says_so_first(tmp_path: Path, disk: Path, format: str) -> None:
    written = make_store(str(tmp_path / "store"), lengths=(20,) * 400, parts=(400,))
    output = disk / "export.hdf5"
    arguments = [
        "export",
        written.root.url(),
        "--output",
        str(output),
        "--format",
        format,
        "--quiet",
    ]

    code, said = run(disk, "200k", "-m", "elmo_store", *arguments)

    assert code == Exit.BAD_LOCATION
    assert said.startswith(f"elmo-store export: no space is left at {disk}/")
    assert "MB are free): make room there, then rerun the same command" in said
    assert "Traceback" not in said


WRITE_VIEW = """
import sys, elmo_store
from elmo_store.errors import DiskFullError
try:
    elmo_store.open(sys.argv[1]).select(range(400)).write(sys.argv[2])
except DiskFullError as error:
    print(error, file=sys.stderr)
"""


def test_a_view_on_a_full_disk_raises_a_typed_error(tmp_path: Path, disk: Path) -> None:
    written = make_store(str(tmp_path / "store"), lengths=(20,) * 400, parts=(400,))
    code, said = run(disk, "200k", "-c", WRITE_VIEW, written.root.url(), str(disk / "view"))
    assert code == 0
    assert said.startswith(f"no space is left at {disk / 'view'} (")
