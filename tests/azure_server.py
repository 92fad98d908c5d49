"""Microsoft's own emulator of Azure's blob storage on loopback: the fixture `azure`.

The emulator is Azurite, from PATH or named by AZURITE_BLOB (`npm install azurite`; its `azurite-blob`). Account and key are
the ones that every emulator has, and that its documentation prints.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Options of adlfs for a server, one a session, with a container ``elmo``."""
    program = os.environ.get("AZURITE_BLOB") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip("no azurite-blob in PATH: npm install azurite")
    pytest.importorskip("adlfs", reason="pip install '.[azure]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # --skipApiVersionCheck: its releases follow those of the client after a while.
    folder = str(tmp_path_factory.mktemp("azure"))
    command = [
        program,
        "--silent",
        "--skipApiVersionCheck",
        "--disableTelemetry",
        "--location",
        folder,
    ]
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
            server.kill()  # asked to terminate, it waits for the clients' idle connections
