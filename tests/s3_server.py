"""A real S3-compatible server on loopback, for every test folder: the fixture `s3_url`. Needs moto[server] and s3fs."""

from collections.abc import Iterator

import pytest

from benchmarks.s3 import server


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """``s3://elmo`` on a server of this test session; processes that the tests start find it too, by AWS_ENDPOINT_URL.

    One server a process: pytest-xdist's workers each have their own.
    """
    pytest.importorskip("moto", reason="moto[server] is not installed: pip install 'elmo-store[test]'")
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'elmo-store[s3]'")
    with server() as url:
        yield url
