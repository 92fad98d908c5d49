"""A whole job from and to gs:// on a real GCS-compatible server: the same bytes as on a local disk.

The server is fake-gcs-server, from PATH or named by FAKE_GCS_SERVER. It is built by
`go install github.com/fsouza/fake-gcs-server@latest`.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

import elmo_store
from elmo_store.storage import Root
from pipeline.cli import main
from pipeline.exit_codes import Exit
from tests.pipeline.support import digests
from tests.pipeline.test_s3 import remote_digests

Command = Callable[..., int]
SERVER = os.environ.get("FAKE_GCS_SERVER") or shutil.which("fake-gcs-server")
pytestmark = pytest.mark.skipif(
    SERVER is None, reason="no fake-gcs-server in PATH: go install github.com/fsouza/fake-gcs-server@latest"
)


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Options of gcsfs for a server with a bucket ``elmo``."""
    # Before gcsfs is imported: it would ask for hierarchical namespaces, which this server answers after half a minute.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    pytest.importorskip("gcsfs", reason="pip install 'elmo-store[gcs]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, folder = f"http://127.0.0.1:{port}", tmp_path / "gcs"
    (folder / "elmo").mkdir(parents=True)
    command = [str(SERVER), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "filesystem"]
    command += ["-filesystem-root", str(folder), "-public-host", f"127.0.0.1:{port}", "-external-url", url, "-log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(200):
                try:
                    urllib.request.urlopen(f"{url}/storage/v1/b/elmo", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield {"endpoint_url": url, "token": "anon"}
        finally:
            server.terminate()


def test_a_job_from_and_to_gs_is_the_same_as_on_disk(
    embed: Command, corpus: Path, gcs: dict[str, object], tmp_path: Path, tiny_model: Path
) -> None:
    files = fsspec.filesystem("gs", **gcs)
    for path in corpus.iterdir():
        files.pipe_file(f"elmo/corpus/{path.name}", path.read_bytes())
    options = ["--storage-options", json.dumps(gcs), "--input-format", "lines", "--shard-rows", "64"]
    command = ["embed", "gs://elmo/corpus", "--output", "gs://elmo/store", "--model", str(tiny_model), "--quiet", *options]
    assert main(command) == Exit.COMPLETE
    assert embed(tmp_path / "local") == Exit.COMPLETE
    root = Root("gs://elmo/store", gcs)
    ours, theirs = remote_digests(root), digests(tmp_path / "local")
    states = {name for name in ours if name.startswith("states")}
    assert states
    assert {name: ours[name] for name in states} == {name: theirs[name] for name in states}
    store = elmo_store.open("gs://elmo/store", storage_options=gcs)
    assert [s.id for s in store][:2] == ["a.txt:0", "a.txt:1"]
    assert main(command) == Exit.COMPLETE  # complete: nothing is done
    assert main(["watch", "gs://elmo/store", "--once", "--storage-options", json.dumps(gcs)]) == Exit.COMPLETE
