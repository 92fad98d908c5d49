"""Every object store by each library that opens it, for tests that hold of all: ``s3``, ``s3 by obstore``, ….

Servers of Google's and Azure's protocols are programs that not every machine has: those tests skip.
"""

from typing import Any, cast

import pytest

from elmo_store.storage.filesystems import OBSTORE
from elmo_store.storage.root import Root

CLIENTS = ("s3", "s3 by obstore", "gs", "abfs")


def bucket_root(request: pytest.FixtureRequest, client: str) -> Root:
    """A root in a bucket of a running server, opened with ``client``, whichever is the default."""
    scheme, _, library = client.partition(" by ")
    if library:
        pytest.importorskip("obstore", reason="pip install '.[obstore]'")
    request.getfixturevalue("monkeypatch").setenv(OBSTORE, "1" if library else "0")
    folder = request.getfixturevalue("tmp_path").name
    if scheme == "s3":
        root = Root(f"{request.getfixturevalue('s3_url')}/{folder}")
    else:
        options = cast(
            dict[str, Any], request.getfixturevalue("gcs" if scheme == "gs" else "azure")
        )
        root = Root(f"{scheme}://elmo/{folder}", options)
    assert type(root.filesystem).__module__.startswith("elmo_store") is bool(library)
    return root
