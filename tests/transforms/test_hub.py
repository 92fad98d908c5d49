"""``hf://`` as an input: a server on loopback that answers as the Hugging Face hub does, for huggingface_hub's own filesystem.

Requests as huggingface_hub 1.x and 2.x make them: the revision, paths' sizes, a listing, and ranges of files.
"""

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.transforms.reading import read_split, tokens
from transforms.inputs.records import InputError, ReadSettings
from transforms.stages.split import plan_splits

pytest.importorskip(
    "huggingface_hub", reason="huggingface_hub is not installed: pip install '.[hf]'"
)
REPO = "datasets/me/corpus"
FILES = {
    "README.md": b"# A corpus\n",
    "data/a.tok": b"a b\n" * 10,
    "data/deep/b.tok.gz": gzip.compress(b"c\n"),
}
COMMIT = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """One data set; who says no token is not let in."""

    def do_GET(self) -> None:
        path, query = self._asked()
        if path in (f"/api/{REPO}", f"/api/{REPO}/revision/main"):
            self._json(
                {
                    "id": "me/corpus",
                    "sha": COMMIT,
                    "siblings": [],
                    "private": True,
                    "tags": [],
                    "downloads": 0,
                    "likes": 0,
                }
            )
        elif path.startswith(f"/api/{REPO}/tree/main"):
            folder = path.removeprefix(f"/api/{REPO}/tree/main").strip("/")
            self._json(entries(folder, query.get("recursive", [""])[0].lower() == "true"))
        elif path.startswith(f"/{REPO}/resolve/main/"):
            self._file(FILES.get(path.removeprefix(f"/{REPO}/resolve/main/")))
        else:
            self._json({"error": f"no {path}"}, 404, "RepoNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path, _ = self._asked()
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        fields = json.loads(asked) if asked.startswith("{") else parse_qs(asked)
        if path != f"/api/{REPO}/paths-info/main":
            self._json({"error": f"no {path}"}, 404, "RepoNotFound")
            return
        paths = fields["paths"] if isinstance(fields["paths"], list) else [fields["paths"]]
        self._json([one for one in entries("", True) if one["path"] in paths])

    def log_message(self, format: str, *args: object) -> None:
        assert format

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        return (
            unquote(parts.path)
            if self.headers.get("Authorization") == "Bearer hf_secret"
            else "/no"
        ), parse_qs(parts.query)

    def _json(self, value: object, status: int = 200, error: str = "") -> None:
        self._answer(
            status,
            json.dumps(value).encode(),
            {"Content-Type": "application/json"} | ({"X-Error-Code": error} if error else {}),
        )

    def _file(self, data: bytes | None) -> None:
        if data is None:
            self._json({"error": "Entry not found"}, 404, "EntryNotFound")
            return
        headers = {
            "ETag": f'"{hashlib.sha1(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        asked = self.headers.get("Range")
        if asked is None:
            self._answer(200, data, headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else len(data)]
        self._answer(
            206,
            part,
            headers | {"Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"},
        )

    def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def entries(folder: str, recursive: bool) -> list[dict[str, Any]]:
    """Files and folders below ``folder`` as the hub lists them."""
    head = folder + "/" if folder else ""
    folders = {
        "/".join(name.split("/")[:n]) for name in FILES for n in range(1, name.count("/") + 1)
    }
    found: list[dict[str, Any]] = [
        {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        for name, data in FILES.items()
    ]
    found += [
        {"type": "directory", "path": name, "size": 0, "oid": "1" * 40} for name in sorted(folders)
    ]
    below = [one for one in found if one["path"].startswith(head)]
    return below if recursive else [one for one in below if "/" not in one["path"][len(head) :]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Storage options for the server."""
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield {
                "endpoint": f"http://127.0.0.1:{server.server_port}",
                "token": "hf_secret",
                "skip_instance_cache": True,
            }
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "place",
    [
        "hf://datasets/me/corpus",
        "hf://datasets/me/corpus/data/**/*.tok*",
        "hf://datasets/me/corpus/data",
    ],
)
def test_a_data_set_of_the_hub(hub: dict[str, object], place: str) -> None:
    splits = plan_splits([place], storage_options=hub, range_bytes=30)
    assert [split.url for split in splits] == [f"hf://{REPO}/data/a.tok"] * 2 + [
        f"hf://{REPO}/data/deep/b.tok.gz"
    ]
    assert all(split.identity.version for split in splits)
    found = [record for split in splits for record in read_split(split, ReadSettings(), hub)]
    assert tokens(found) == [["a", "b"]] * 10 + [["c"]]


def test_a_data_set_that_is_not_there_or_not_for_us(hub: dict[str, object]) -> None:
    with pytest.raises(InputError, match="there is no such file or folder"):
        plan_splits([f"hf://{REPO}/data/absent.tok"], storage_options=hub)
    with pytest.raises(InputError, match="there is no such file or folder"):
        plan_splits([f"hf://{REPO}/data/a.tok"], storage_options=hub | {"token": "another"})
