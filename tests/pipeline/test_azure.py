"""A whole job from and to abfs:// on Microsoft's own emulator of Azure's blob storage: the same bytes as on a local disk.

The emulator is Azurite, from PATH or named by AZURITE_BLOB (`npm install azurite`; its `azurite-blob`). Account and key are
the ones that every emulator has, and that its documentation prints.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from elmo_store.storage.root import Root
from tests.pipeline.support import check_a_job_from_and_to

Command = Callable[..., int]
SERVER = os.environ.get("AZURITE_BLOB") or shutil.which("azurite-blob")
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
pytestmark = pytest.mark.skipif(SERVER is None, reason="no azurite-blob in PATH: npm install azurite")


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options of adlfs for a server with a container ``elmo``."""
    pytest.importorskip("adlfs", reason="pip install 'elmo-store[azure]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # --skipApiVersionCheck: its releases follow those of the client after a while.
    command = [str(SERVER), "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", str(tmp_path / "azure")]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(400):
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
            connection = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"
            options = {"account_name": ACCOUNT, "connection_string": connection}
            fsspec.filesystem("abfs", **options).mkdir("elmo")
            yield options
        finally:
            server.terminate()


def test_a_job_from_and_to_abfs_is_the_same_as_on_disk(
    embed: Command, corpus: Path, azure: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    check_a_job_from_and_to("abfs://elmo", azure, embed, corpus, tmp_path / "local", tiny_model)


def test_of_two_that_claim_an_object_one_succeeds(azure: dict[str, Any]) -> None:
    root = Root("abfs://elmo/claimed", azure)
    assert root.put_new("lease.json", b"mine")
    assert not root.put_new("lease.json", b"theirs")
    assert root.get("lease.json") == b"mine"
    stamp = root.stamp("lease.json")
    assert stamp
    root.put("lease.json", b"over")
    assert root.stamp("lease.json") not in (stamp, "", None)
