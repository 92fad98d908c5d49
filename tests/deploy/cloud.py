"""A stand-in for Cloud Storage and Dataflow on loopback: keeps what it is sent and answers as the services would.

It is no emulator: it exists so that the real DataflowRunner submits its real request, which tests then look at.
"""

import base64
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import google_crc32c

JOB_ID = "2026-01-01_00_00_00-1234567890"


@dataclass
class Cloud:
    """What was sent. ``objects``: staged files by gs:// name; ``jobs``: bodies of submitted jobs; ``states``: asked for later."""

    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    requested_states: list[str | int] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    state: str = "JOB_STATE_DONE"  # of every job that is asked about

    @property
    def endpoint(self) -> str:
        """Of ``--dataflow_endpoint``: the client speaks plain http only with ``localhost``."""
        return f"http://localhost:{self.port}"

    def environment(self, home: str) -> dict[str, str]:
        """Variables with which the clients find this server and no credentials of the machine."""
        return {
            "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{self.port}",
            "NO_GCE_CHECK": "true",
            "HOME": home,
        }


def _handler(cloud: Cloud) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

        def _answer(
            self, value: Any, status: int = 200, headers: dict[str, str] | None = None
        ) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, text in (headers or {}).items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                chunks = []
                while size := int(self.rfile.readline().strip() or b"0", 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(chunks)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def do_GET(self) -> None:
            cloud.requests.append(f"GET {self.path}")
            path = urllib.parse.urlsplit(self.path).path
            if re.fullmatch(r"/storage/v1/b/[^/]+", path):
                self._answer(
                    {"name": path.rpartition("/")[2], "location": "EU", "softDeletePolicy": {}}
                )
            elif "/jobs/" in path and path.endswith("/messages"):
                self._answer({"jobMessages": []})
            elif "/jobs/" in path:
                self._answer({**cloud.jobs[-1], "id": JOB_ID, "currentState": cloud.state})
            else:
                self._answer({"error": {"code": 404, "message": "Not Found"}}, 404)

        def do_POST(self) -> None:
            cloud.requests.append(f"POST {self.path}")
            url, body = urllib.parse.urlsplit(self.path), self._body()
            if url.path.endswith("/jobs"):
                cloud.jobs.append(json.loads(body))
                self._answer({**cloud.jobs[-1], "id": JOB_ID, "currentState": "JOB_STATE_PENDING"})
                return
            query = urllib.parse.parse_qs(url.query)
            bucket = url.path.split("/b/")[1].split("/")[0]
            name = query.get("name", [None])[0] or json.loads(body)["name"]
            self._answer(
                {},
                200,
                {
                    "Location": f"http://{self.headers['Host']}/put/{bucket}/{urllib.parse.quote(name)}"
                },
            )

        def do_PUT(self) -> None:
            cloud.requests.append(f"PUT {self.path}")
            path, body = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path), self._body()
            if path.startswith("/put/"):
                _, _, bucket, name = path.split("/", 3)
                cloud.objects[f"gs://{bucket}/{name}"] = body
                checksum = base64.b64encode(google_crc32c.value(body).to_bytes(4, "big")).decode()
                self._answer(
                    {"name": name, "bucket": bucket, "size": str(len(body)), "crc32c": checksum}
                )
                return
            asked = json.loads(body)
            cloud.requested_states.append(asked.get("requestedState", ""))
            cloud.state = "JOB_STATE_CANCELLED"
            self._answer({**asked, "id": JOB_ID, "currentState": cloud.state})

    return Handler


@contextmanager
def cloud_server() -> Iterator[Cloud]:
    """The stand-in, listening on loopback as long as the block runs."""
    cloud = Cloud()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(cloud))
    cloud.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, name="cloud", daemon=True)
    thread.start()
    try:
        yield cloud
    finally:
        server.shutdown()
        server.server_close()
