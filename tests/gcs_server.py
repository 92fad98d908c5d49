"""A real GCS-compatible server on loopback: the fixture `gcs`.

The server is fake-gcs-server, from PATH or named by FAKE_GCS_SERVER. It is built by
`go install github.com/fsouza/fake-gcs-server@v1.56.1`.
"""

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import pytest

# Before any test imports gcsfs: it would ask for hierarchical namespaces, which this server answers after half a minute.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Options of gcsfs for a server, one a session, with a bucket ``elmo``."""
    program = os.environ.get("FAKE_GCS_SERVER") or shutil.which("fake-gcs-server")
    if program is None:
        pytest.skip(
            "no fake-gcs-server in PATH: go install github.com/fsouza/fake-gcs-server@v1.56.1"
        )
    pytest.importorskip("gcsfs", reason="pip install '.[gcs]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, folder = f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("gcs")
    (folder / "elmo").mkdir(parents=True)
    command = [
        program,
        "-scheme",
        "http",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-backend",
        "filesystem",
    ]
    command += [
        "-filesystem-root",
        str(folder),
        "-public-host",
        f"127.0.0.1:{port}",
        "-external-url",
        url,
        "-log-level",
        "error",
    ]
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
            server.kill()  # asked to terminate, it waits for the clients' idle connections
