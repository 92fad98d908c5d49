"""A real S3-compatible server on loopback, for every test folder: the fixture `s3_url`; and a count of what a reader asks it for.

Needs moto[server] and s3fs. A request's round is counted by its place among the calls of the filesystem: what one call of
`cat_ranges` or `cat` asks for is under way together, so it counts as one request in sequence, however many ranges it has.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import sync_wrapper

BUCKET = "elmo"
SECONDS_TO_START = 120


@dataclass
class Traffic:
    """Since the counters were last set to zero: rounds of requests, one after the other; requests in all; bytes received."""

    rounds: int = 0
    requests: int = 0
    bytes: int = 0

    def reset(self) -> None:
        """Begin to count anew."""
        self.rounds = self.requests = self.bytes = 0


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
    before = {name: os.environ.get(name) for name in (*settings, "AWS_PROFILE", "AWS_SESSION_TOKEN")}
    os.environ.update(settings)
    for name in before.keys() - settings.keys():
        os.environ.pop(name, None)
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    if versitygw:
        command = [versitygw, "--access", "test", "--secret", "test", "--port", f"127.0.0.1:{port}", "posix", str(folder)]
        assert folder is not None
        (folder / BUCKET).mkdir(parents=True)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(endpoint, process)
        if not versitygw:
            urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=30).close()
        yield f"s3://{BUCKET}"
    finally:
        process.terminate()
        process.wait(timeout=30)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def counted(filesystem: Any) -> Traffic:
    """Count from now on what this filesystem is asked for by `cat_file`, `cat` and `cat_ranges`; of obstore all of its kind."""
    traffic = Traffic()
    if hasattr(filesystem, "_call"):
        _count_obstore(traffic)
        return traffic
    fetch = filesystem._cat_file

    async def counting_fetch(*args: Any, **kwargs: Any) -> bytes:
        data: bytes = await fetch(*args, **kwargs)
        traffic.requests += 1
        traffic.bytes += len(data)
        return data

    filesystem._cat_file = counting_fetch
    filesystem.cat_file = sync_wrapper(counting_fetch, obj=filesystem)
    for name in ("cat_file", "cat", "cat_ranges"):
        _count_rounds(filesystem, name, traffic)
    return traffic


def _count_obstore(traffic: Traffic) -> None:
    """In the class of all, as `tests.job_stages.count_requests`: a subclass's own would hide what that puts there."""
    from elmo_store.storage.obstore_client import ObjectStoreFileSystem

    kind: Any = ObjectStoreFileSystem
    request = kind._call

    def counting_request(*args: Any, **kwargs: Any) -> Any:
        result = request(*args, **kwargs)
        traffic.requests += 1
        traffic.bytes += len(result) if isinstance(result, bytes) else 0
        return result

    kind._call = counting_request
    for name in ("cat_file", "cat", "cat_ranges"):
        _count_rounds(kind, name, traffic)


def _count_rounds(filesystem: Any, name: str, traffic: Traffic) -> None:
    call = getattr(filesystem, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        before = traffic.requests
        result = call(*args, **kwargs)
        traffic.rounds += traffic.requests > before
        return result

    setattr(filesystem, name, counting)


def _wait(endpoint: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"moto_server ended with {process.returncode}: is moto[server] installed?")
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
