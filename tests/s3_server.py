"""A real S3-compatible server on loopback, for every test folder: the fixture `s3_url`.

Needs moto[server] and s3fs.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BUCKET = "elmo"
SECONDS_TO_START = 120


@contextmanager
def server(versitygw: str | None = None, folder: Path | None = None) -> Iterator[str]:
    """``s3://elmo`` on a server of its own, found by AWS_ENDPOINT_URL while the context lasts.

    The server is moto's, or the program ``versitygw`` over a ``folder``, which is fast enough to time its clients.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    settings = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_CONFIG_FILE": os.devnull,  # never the user's own credentials
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    before = {
        name: os.environ.get(name) for name in (*settings, "AWS_PROFILE", "AWS_SESSION_TOKEN")
    }
    os.environ.update(settings)
    for name in before.keys() - settings.keys():
        os.environ.pop(name, None)
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "moto.server",
        "-H",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    if versitygw:
        command = [
            versitygw,
            "--access",
            "test",
            "--secret",
            "test",
            "--port",
            f"127.0.0.1:{port}",
            "posix",
            str(folder),
        ]
        assert folder is not None
        (folder / BUCKET).mkdir(parents=True)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(endpoint, process)
        if not versitygw:
            urllib.request.urlopen(
                urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=30
            ).close()
        yield f"s3://{BUCKET}"
    finally:
        process.terminate()
        process.wait(timeout=30)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _wait(endpoint: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"moto_server ended with {process.returncode}: is moto[server] installed?"
            )
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
            return
        except urllib.error.HTTPError:  # it answers
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"moto_server did not answer on {endpoint} within {SECONDS_TO_START} s")


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """``s3://elmo`` on a server of this test session; processes that the tests start find it too, by AWS_ENDPOINT_URL.

    One server a process: pytest-xdist's workers each have their own.
    """
    pytest.importorskip("moto", reason="moto[server] is not installed: pip install '.[test]'")
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install '.[s3]'")
    with server() as url:
        yield url
