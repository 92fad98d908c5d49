"""What a root asks of an object store, by each library that opens it: the same answers and errors."""

import multiprocessing
import os
import pickle
import socket
import struct
import threading
import traceback
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

import numpy as np
import pytest

import elmo_store
from elmo_store.checking.verify import verify
from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.markers import STAMPS, ShardMarker, read_marker, write_marker
from elmo_store.storage.data import Range, ShortReadError
from elmo_store.storage.failures import is_transient
from elmo_store.storage.filesystems import OBSTORE, kind_of, open_filesystem
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.obstore_client import s3_settings
from elmo_store.storage.overlap import INSIDE, relation, resolved
from elmo_store.storage.root import Root
from tests.buckets import CLIENTS, bucket_root
from tests.store.support import make_store


@pytest.fixture(params=CLIENTS)
def root(request: pytest.FixtureRequest) -> Root:
    return bucket_root(request, request.param)


@pytest.mark.slow
def test_objects_are_put_read_listed_and_removed(root: Root, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    names = ["a", "b/c", "b/ü %41~c#.x", "b/d/e"]
    for name in names:
        root.put(name, bytearray(data))
    root.put("empty", b"")
    assert root.sizes() == {**dict.fromkeys(sorted(names), len(data)), "empty": 0}
    assert root.list("b") == sorted(names[1:])
    assert root.list("nothing") == []
    assert root.get("b/ü %41~c#.x") == data
    assert root.get_many(names) == [data] * 4
    assert root.get_tails({"a": 7, "b/c": 10**6}) == {"a": data[-7:], "b/c": data}
    assert (root.size("a"), root.size("b"), root.size("nothing"), root.size("empty")) == (
        len(data),
        None,
        None,
        0,
    )
    assert (root.exists("b/c"), root.exists("b"), root.names("nothing")) == (True, False, [])
    assert root.names("b") == ["c", "d", "ü %41~c#.x"]
    pieces = [
        Range(name, start, memoryview(bytearray(n)))
        for name, start, n in (("a", 3, 5), ("a", 9000, 20), ("b/c", 0, 1))
    ]
    root.read_ranges(pieces)
    assert [bytes(piece.into) for piece in pieces] == [data[3:8], data[9000:9020], data[:1]]
    with root.filesystem.open(root.path("b/c"), "rb") as file:
        assert file.read() == data
    (tmp_path / "file").write_bytes(data * 30)
    root.put("b/c", tmp_path / "file")
    assert root.get("b/c") == data * 30
    root.filesystem.get_file(root.path("b/c"), str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data * 30
    root.remove("a")
    root.remove("a")
    root.remove("b/c", "a")
    assert root.list() == [*sorted(names[2:]), "empty"]
    root.remove_tree("b")
    root.remove_tree("b")
    assert root.list() == ["empty"]


def test_puts_on_a_condition_and_stamps(root: Root, tmp_path: Path) -> None:
    assert (root.put_new("a", b"mine"), root.put_new("a", b"theirs"), root.get("a")) == (
        True,
        False,
        b"mine",
    )
    (tmp_path / "file").write_bytes(b"of a file")
    assert (root.put_new("a", tmp_path / "file"), root.put_new("b", tmp_path / "file")) == (
        False,
        True,
    )
    with pytest.raises(OSError):
        root.filesystem.pipe_file(root.path("a"), b"theirs", mode="create")
    assert (root.get("a"), root.get("b")) == (b"mine", b"of a file")
    stamps = []
    for data in (b"first", b"second"):
        put = root.put("a", data)
        stamps.append(root.stamp("a"))
        assert put in ("", stamps[-1])
    assert None not in stamps
    assert stamps[0] != stamps[1] != ""
    assert root.stamp("nothing") is None


def test_an_object_is_copied_within_a_bucket_and_between_two(root: Root) -> None:
    filesystem = root.filesystem
    root.put("a", b"x" * 1000)
    filesystem.cp_file(root.path("a"), root.path("b/c"))
    assert root.get("b/c") == root.get("a")
    if kind_of(filesystem) == "s3":
        urlopen(
            Request(f"{os.environ['AWS_ENDPOINT_URL']}/another", method="PUT"), timeout=30
        ).close()
        another = Root("s3://another/d")
        filesystem.cp_file(root.path("a"), another.path("a"))
        assert another.get("a") == root.get("a")


def test_what_is_missing_or_too_short_is_told_by_name(root: Root) -> None:
    root.put("a", b"0123456789")
    for read in (
        lambda: root.get("nothing"),
        lambda: root.get_many(["a", "nothing"]),
        lambda: root.get_tails({"a": 1, "nothing": 3}),
        lambda: root.read_ranges(
            [Range("a", 0, memoryview(bytearray(2))), Range("nothing", 0, memoryview(bytearray(2)))]
        ),
    ):
        with pytest.raises(FileNotFoundError, match="nothing"):
            read()
    with pytest.raises(ShortReadError, match="ends before byte"):
        root.read_ranges([Range("a", 5, memoryview(bytearray(20)))])


def test_a_pickled_root_reads_the_same(root: Root) -> None:
    root.put("a", b"x")
    assert pickle.loads(pickle.dumps(root)).get("a") == b"x"
    assert pickle.loads(pickle.dumps(root.filesystem)).cat_file(root.path("a")) == b"x"


@pytest.fixture
def by_obstore(request: pytest.FixtureRequest) -> Root:
    return bucket_root(request, "s3 by obstore")


def test_a_read_behind_the_end_is_too_short_and_names_that_look_like_globs_are_names(
    by_obstore: Root,
) -> None:
    by_obstore.put("a[0]*?", b"0123456789")
    with pytest.raises(ShortReadError, match="ends before byte"):
        by_obstore.read_ranges([Range("a[0]*?", 50, memoryview(bytearray(20)))])
    assert by_obstore.get_many(["a[0]*?"] * 2) == [b"0123456789"] * 2


def test_the_end_of_an_empty_object_is_empty(by_obstore: Root) -> None:
    by_obstore.put("empty", b"")
    assert by_obstore.get_tails({"empty": 7}) == {"empty": b""}


def test_threads_share_a_filesystem(by_obstore: Root) -> None:
    def once(number: int) -> bool:
        by_obstore.put(f"{number}", bytes([number]) * 1000)
        return by_obstore.get_many([f"{number}"] * 3) == [bytes([number]) * 1000] * 3

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(once, range(40)))


def test_large_objects_are_put_in_parts_and_in_bounded_memory(
    by_obstore: Root, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("elmo_store.storage.obstore_client.MOST_IN_ONE_PUT", 1 << 20)
    monkeypatch.setattr("elmo_store.storage.obstore_client.PART_BYTES", 5 << 20)
    data = os.urandom(1 << 20) * 12
    (tmp_path / "large").write_bytes(data)
    tracemalloc.start()
    try:
        by_obstore.put("parts", data)
        by_obstore.put("file", tmp_path / "large")
        assert by_obstore.put_new("new", tmp_path / "large")
        assert (
            tracemalloc.get_traced_memory()[1] < 1 << 20
        )  # of Python's: what is put is not copied
    finally:
        tracemalloc.stop()
    assert [by_obstore.get(name) == data for name in ("parts", "file", "new")] == [True] * 3


@pytest.mark.parametrize("most_in_one_put", [1 << 30, 6 << 20])
def test_pieces_are_sent_as_they_lie_in_one_put_or_in_parts(
    by_obstore: Root, monkeypatch: pytest.MonkeyPatch, most_in_one_put: int
) -> None:
    monkeypatch.setattr("elmo_store.storage.obstore_client.MOST_IN_ONE_PUT", most_in_one_put)
    monkeypatch.setattr("elmo_store.storage.obstore_client.PART_BYTES", 5 << 20)
    monkeypatch.setattr(
        "elmo_store.storage.object_store.joined", None
    )  # a copy of a shard takes as long as sending it
    pieces = (
        b"head",
        np.arange(4 << 20, dtype=np.uint8).data,
        b"",
        np.full(3 << 20, 7, np.uint8).data,
        b"index",
    )
    by_obstore.put("pieces", pieces)
    assert by_obstore.get("pieces") == b"".join(pieces)


def test_a_forked_process_reads_with_fsspec_s_library_and_obstore_refuses_to_hang(
    by_obstore: Root,
) -> None:
    by_obstore.put("a", b"x")
    filesystem, path = by_obstore.filesystem, by_obstore.path("a")
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            filesystem.cat_file(path)
        except OSError as error:
            sender.send((by_obstore.get("a"), type(by_obstore.filesystem).__module__, str(error)))

    process: Any = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert receiver.poll(60), "the forked process hangs"
    data, module, text = receiver.recv()
    process.join()
    assert (data, module) == (b"x", "s3fs.core")
    assert "forked" in text


def module_of(url: str, options: dict[str, Any]) -> str:
    return type(open_filesystem(url, options, obstore=True)[0]).__module__


@pytest.mark.parametrize(
    ("options", "environment", "is_obstore"),
    [
        ({"key": "a", "secret": "b", "endpoint_url": "http://x:1"}, {}, True),
        (
            {
                "key": "a",
                "secret": "b",
                "token": "c",
                "client_kwargs": {"region_name": "eu-west-1"},
            },
            {},
            True,
        ),
        ({"anon": True, "client_kwargs": {"endpoint_url": "http://x:1"}}, {}, True),
        ({"anon": True}, {"AWS_DEFAULT_REGION": "eu-west-1"}, True),
        ({"anon": True}, {}, False),  # nothing names the region: s3fs is told it by the server
        (
            {
                "anon": True,
                "endpoint_url": "http://x:1",
                "config_kwargs": {"retries": {"max_attempts": 1}},
            },
            {},
            False,
        ),
        (
            {"anon": True, "client_kwargs": {"verify": False, "endpoint_url": "https://x"}},
            {},
            False,
        ),
        ({"anon": True, "endpoint_url": "http://x:1"}, {OBSTORE: "0"}, False),
    ],
)
def test_options_are_translated_or_left_to_s3fs(
    options: dict[str, Any],
    environment: dict[str, str],
    is_obstore: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("obstore")
    pytest.importorskip("s3fs")
    for name in (
        OBSTORE,
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    caplog.set_level("INFO")
    assert module_of("s3://bucket/a", options) == (
        "elmo_store.storage.obstore_client" if is_obstore else "s3fs.core"
    )
    if not is_obstore and not environment:
        assert "is left to s3fs: obstore is not for" in caplog.text


def test_without_s3fs_what_obstore_does_not_take_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr(
        "elmo_store.storage.filesystems.find_spec", lambda name: None if name == "s3fs" else name
    )
    with pytest.raises(
        StoreError,
        match=r"s3fs, which is not installed, as obstore is not for default_block_size: pip install",
    ):
        open_filesystem("s3://bucket/a", {"anon": True, "default_block_size": "1"}, obstore=True)


@pytest.mark.parametrize(
    ("options", "unsigned"),
    [
        ({}, True),
        ({"endpoint_url": "https://objects.example"}, True),
        ({"endpoint_url": "http://objects.example"}, False),
        ({"client_kwargs": {"endpoint_url": "http://objects.example"}}, False),
    ],
)
def test_objects_are_hashed_for_the_signature_only_where_no_tls_guards_them(
    options: dict[str, Any], unsigned: bool
) -> None:
    keys = {"key": "key", "secret": "secret"}
    assert (
        s3_settings(keys | options, {"AWS_DEFAULT_REGION": "us-east-1"})["unsigned_payload"]
        is unsigned
    )


def test_profiles_and_what_they_name_are_found_by_s3fs(
    by_obstore: Root, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_obstore.put("a", b"x")
    (tmp_path / "config").write_text(
        f"[profile work]\nregion = us-east-1\nendpoint_url = {os.environ['AWS_ENDPOINT_URL']}\n"
        "aws_access_key_id = of-work\naws_secret_access_key = secret-of-work\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ENDPOINT_URL",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name)
    root = Root(by_obstore.url(), {"profile": "work"})
    assert type(root.filesystem).__module__ == "s3fs.core"
    assert root.get("a") == b"x"


def test_the_role_of_a_container_is_found_by_obstore(
    by_obstore: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    class Role(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                b'{"AccessKeyId": "of-role", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}'
            )

        def log_message(self, *_: object) -> None:
            pass

    by_obstore.put("a", b"x")
    server = HTTPServer(("127.0.0.1", 0), Role)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("of the pod")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.server_port}/role"
    )
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    root = Root(
        by_obstore.url(), {"requester_pays": True}
    )  # a client of its own: those of equal options share one
    assert type(root.filesystem).__module__ == "elmo_store.storage.obstore_client"
    assert root.get("a") == b"x"
    assert asked == ["of the pod"]
    server.shutdown()
    server.server_close()


class Resetting(ThreadingHTTPServer):
    """Passes requests on to the S3 server, and resets each connection that is in ``lost``: (method, whether it was passed on)."""

    lost: list[tuple[str, bool]]
    daemon_threads = True

    class Handler(BaseHTTPRequestHandler):
        server: "Resetting"
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fate = next((fate for fate in self.server.lost if fate[0] == self.command), None)
            if fate is not None:
                self.server.lost.remove(fate)
            if fate is None or fate[1]:
                upstream = HTTPConnection(urlsplit(os.environ["AWS_ENDPOINT_URL"]).netloc)
                upstream.request(self.command, self.path, body, dict(self.headers))
                answer = upstream.getresponse()
                data = answer.read()
                upstream.close()
            if fate is not None:
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.rfile.close()
                self.connection.close()
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass


@pytest.fixture
def resetting(by_obstore: Root) -> Iterator[tuple[Resetting, Root]]:
    """A server whose connections can be reset, and a root behind it."""
    server = Resetting(("127.0.0.1", 0), Resetting.Handler)
    server.lost = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server, Root(by_obstore.url(), {"endpoint_url": f"http://127.0.0.1:{server.server_port}"})
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("arrived", [False, True])
def test_a_put_on_a_condition_is_retried_and_known_as_one_s_own(
    resetting: tuple[Resetting, Root], arrived: bool, tmp_path: Path
) -> None:
    server, root = resetting
    server.lost = [("PUT", arrived)] * 2
    assert root.put_new("a", b"mine")
    assert root.get("a") == b"mine"
    assert not root.put_new("a", b"theirs")
    (tmp_path / "file").write_bytes(b"of a file")
    server.lost = [("PUT", False)]
    assert root.put_new("b", tmp_path / "file")
    assert server.lost == []


@pytest.mark.slow
@pytest.mark.parametrize("arrived", [False, True])
def test_objects_are_removed_though_a_connection_is_reset(
    resetting: tuple[Resetting, Root], arrived: bool
) -> None:
    server, root = resetting
    LeaseHolder.take(root, "run").end()
    assert root.list() == []
    holder = LeaseHolder.take(root, "run")
    server.lost = [("POST", arrived), ("DELETE", arrived)]
    holder.end()
    assert root.list() == []


@pytest.mark.parametrize(
    ("status", "kind", "passes"),
    [(403, PermissionError, False), (503, OSError, True), (0, OSError, True)],
)
def test_what_a_server_refuses_is_told_without_secrets(
    status: int,
    kind: type[OSError],
    passes: bool,
    monkeypatch: pytest.MonkeyPatch,
    by_obstore: Root,
) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr("elmo_store.storage.obstore_client.RETRIES", {"max_retries": 0})
    server = HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if not status:
        server.shutdown()
        server.server_close()
    options = {
        "key": "a-key",
        "secret": "a-secret",
        "token": "a-token",
        "endpoint_url": f"http://127.0.0.1:{server.server_port}",
    }
    root = Root("s3://bucket/a", options)
    for read in (lambda: root.get("b"), root.sizes):
        with pytest.raises(OSError, match="bucket/a") as told:
            read()
        assert isinstance(told.value, kind)
        assert is_transient(told.value) is passes
        text = "".join(traceback.format_exception(told.value)) + repr(root.filesystem)
        assert not [secret for secret in ("a-key", "a-secret", "a-token") if secret in text]
    if status:
        server.shutdown()
        server.server_close()


def test_one_bucket_is_one_whichever_library_opens_it(
    by_obstore: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolved(by_obstore.url("a"))
    monkeypatch.setenv(OBSTORE, "0")
    assert relation(first, resolved(by_obstore.url())) == INSIDE


@pytest.mark.parametrize("client", [*CLIENTS, "memory"])
def test_names_that_look_like_patterns_are_names(
    client: str, request: pytest.FixtureRequest
) -> None:
    above = Root(f"memory://{uuid4()}") if client == "memory" else bucket_root(request, client)
    own, other = (Root(above.url(name), above.storage_options) for name in ("run[1]", "run1"))
    for root in (own, other):
        for rel in ("a", "b/c", "b/d"):
            root.put(rel, b"1")
    own.remove("a")
    own.remove_tree("b")
    assert own.list() == []
    assert other.list() == ["a", "b/c", "b/d"]


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [False, True])
def test_a_quick_look_at_a_copy_of_objects_in_parts(
    request: pytest.FixtureRequest, damaged: bool
) -> None:
    """S3 keeps the ETags of small objects when it copies them, and makes others of those that were put in parts."""
    store = make_store(bucket_root(request, "s3").url())
    markers = [
        read_marker(store.root, ShardMarker, shard) for shard in range(store.manifest.sizes.shards)
    ]
    for marker in filter(None, markers):
        stamps = [store.root.stamp(record.path) or "" for record in marker.objects]
        stamps[0] = f'ETag="{"0a" * 16}-7"'  # of the first object of the store that was copied
        write_marker(store.root, replace(marker, stats={STAMPS: "\n".join(stamps)}))
    if damaged:
        rel = layout.zarr_token_chunk(0)
        store.root.put(rel, bytes(store.root.size(rel) or 0))

    report = verify(elmo_store.open(store.root.url())._view, quick=True)

    assert [fault.text.partition(" has ")[0] for fault in report.faults] == (
        [store.root.url(rel)] if damaged else []
    )
    assert report.by_size >= len(markers)
    store.root.remove_tree()
