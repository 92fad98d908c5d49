"""A real SFTP server on loopback: the fixture `sftp`. Needs asyncssh, and paramiko for fsspec's client.

python tests/sftp_server.py FOLDER      serves it to anybody who logs in, and prints its port
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmo_store.storage.root import Root


@pytest.fixture
def sftp(tmp_path: Path) -> Iterator[Root]:
    """A root on a server whose files lie in ``tmp_path / "served"``."""
    pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install '.[test]'")
    pytest.importorskip("paramiko", reason="paramiko is not installed: pip install '.[test]'")
    from fsspec.implementations.sftp import SFTPFileSystem

    served = tmp_path / "served"
    served.mkdir()
    with subprocess.Popen([sys.executable, __file__, str(served)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            login = {"username": "me", "password": "any", "look_for_keys": False, "allow_agent": False}
            yield Root("sftp://127.0.0.1/out", {"port": port, **login})
        finally:
            for filesystem in SFTPFileSystem._cache.values():
                filesystem.client.close()
            SFTPFileSystem.clear_instance_cache()
            server.kill()


async def serve(folder: str) -> None:
    """Until the process ends."""
    import asyncssh

    class Open(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return False

    acceptor = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=Open, server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=folder.encode()),
    )  # fmt: skip
    print(acceptor.get_port(), flush=True)
    await acceptor.wait_closed()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
