"""A real S3-compatible server on loopback, for every test folder: the fixture `s3_url`. Needs moto[server] and s3fs."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

BUCKET = "elmo"
_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``s3://elmo`` on a server of this test session; processes that the tests start find it too, by AWS_ENDPOINT_URL.

    One server a process: pytest-xdist's workers each have their own.
    """
    pytest.importorskip("moto", reason="moto[server] is not installed: pip install 'elmo-store[test]'")
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'elmo-store[s3]'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    empty = tmp_path_factory.mktemp("aws") / "none"
    settings = {
        **_CREDENTIALS,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_CONFIG_FILE": str(empty),  # never the user's own credentials
        "AWS_SHARED_CREDENTIALS_FILE": str(empty),
    }
    log = Path(tmp_path_factory.mktemp("s3")) / "log"
    with pytest.MonkeyPatch.context() as patch, log.open("wb") as output:
        for name, value in settings.items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        patch.delenv("AWS_SESSION_TOKEN", raising=False)
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        try:
            _wait(endpoint, server, log)
            request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200
            yield f"s3://{BUCKET}"
        finally:
            server.terminate()
            server.wait(timeout=30)


def _wait(endpoint: str, server: "subprocess.Popen[bytes]", log: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"moto_server ended with {server.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(endpoint, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"moto_server did not answer on {endpoint} within {seconds} s:\n{log.read_text()}")
