"""Storage that stops answering, for a while or for good, or refuses: jobs go on, commands end in one line that says why."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pytest

from elmo_store.storage import failures, lease
from elmo_store.storage.filesystems import OBSTORE
from elmo_store.storage.root import Root
from model.files import registry
from pipeline.cli.exit_codes import Exit
from pipeline.jobs import output
from pipeline.jobs.output import LeaseTerms, take_lease
from pipeline.main import main
from pipeline.progress import bars
from pipeline.progress.bars import Screen, follow
from tests.hostile.faulty import NOTHING_PASSES, Proxy, faulty_way
from tests.pipeline.conftest import Command
from tests.pipeline.support import digests, remote_digests
from tests.store.support import make_store
from transforms.stages import embed as embed_stage

ANSWERS = {
    "denied": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
    "no bucket": (404, "NoSuchBucket"),
}
SAYS = {
    "unreachable": "can't be reached",
    "denied": "is denied",
    "expired": "expired",
    "no bucket": "there is no bucket bucket",
}
REMEDIES = ("look at the network", "check the credentials", "renew them", "check them", "make it")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LONGEST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(failures, "DEADLINE_SECONDS", 1.0)
    monkeypatch.setattr("elmo_store.storage.obstore_client.RETRIES", {"max_retries": 0})
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)


@pytest.fixture(scope="module")
def refusing() -> Iterator[dict[str, int]]:
    """Ports by how a server there answers every request; nobody listens at ``unreachable``."""
    servers = {}
    for name, (status, code) in ANSWERS.items():

        class Refuses(BaseHTTPRequestHandler):
            answer = (status, f"<Error><Code>{code}</Code><Message>said</Message></Error>".encode())

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, text = self.answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        servers[name] = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
        threading.Thread(target=servers[name].serve_forever, daemon=True).start()
    nobody = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    nobody.server_close()
    yield {name: server.server_port for name, server in servers.items()} | {
        "unreachable": nobody.server_port
    }
    for server in servers.values():
        server.shutdown()
        server.server_close()


def every_command(tmp_path: Path, model: Path, options: dict[str, Any]) -> list[list[str]]:
    """Each command that reads or writes something at ``s3://bucket/a``."""
    url = "s3://bucket/a"
    (tmp_path / "in.txt").write_text("a b c\n")
    (tmp_path / "ids").write_text("a:0\n")
    (tmp_path / "weights.json").write_text('{"w": [0, 0, 0], "gamma": 1}')
    new, made = str(tmp_path / "new"), str(tmp_path / "made")
    make_store(made)
    of_input = [
        "embed",
        url,
        "--output",
        new,
        "--model",
        str(model),
        "--quiet",
        "--input-storage-options",
        json.dumps(options),
    ]
    commands = [
        ["embed", str(tmp_path / "in.txt"), "--output", url, "--model", str(model), "--input-format", "lines", "--quiet"],
        ["mix", url, "--output", new, "--weights", str(tmp_path / "weights.json"), "--quiet"],
        ["convert", url, "--output", new, "--dtype", "int8", "--quiet"],
        ["export", url, "--output", new, "--format", "npz"],
        ["mix", made, "--output", new, "--weights", url, "--quiet"],
        ["convert", made, "--output", url, "--dtype", "int8", "--quiet"],
        ["export", made, "--output", f"{url}/x", "--format", "npz"], ["collect", url, made],
        ["collect", new, url], ["remove", url, "--ids", str(tmp_path / "ids")], ["compact", url],
        ["info", url], ["report", url], ["verify", url], ["explore", url],
        ["watch", url], ["watch", url, "--once"],
    ]  # fmt: skip
    return [
        of_input,
        *([*command, "--storage-options", json.dumps(options)] for command in commands),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["obstore", "s3fs"])
@pytest.mark.parametrize("how", SAYS)
def test_every_command_ends_in_one_line_with_cause_and_remedy(
    refusing: dict[str, int], how: str, library: str, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip(library, reason=f"{library} is not installed: pip install '.[test]'")
    monkeypatch.setenv(OBSTORE, "1" if library == "obstore" else "0")
    monkeypatch.setattr(failures, "DEADLINE_SECONDS", 0.2)
    options: dict[str, Any] = {
        "key": "k",
        "secret": "s",
        "endpoint_url": f"http://127.0.0.1:{refusing[how]}",
    }
    for command in every_command(tmp_path, tiny_model, options):
        assert main(command) == Exit.BAD_LOCATION, command
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        assert SAYS[how] in said
        assert any(remedy in said for remedy in REMEDIES), said


@pytest.mark.parametrize(
    ("how", "says"), [("unreachable", "can't be reached"), ("denied", "is denied")]
)
def test_a_model_that_can_t_be_reached_is_a_bad_location(
    refusing: dict[str, int],
    how: str,
    says: str,
    embed: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for path in ("model", "model/weights.hdf5"):
        url = f"http://127.0.0.1:{refusing[how]}/{path}"
        assert embed(tmp_path / "store", "--model", url, "--quiet") == Exit.BAD_LOCATION
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        assert says in said
        assert said.count(url) == 1, said


def test_a_published_model_that_can_t_be_downloaded_is_told_once(
    embed: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    url = f"http://127.0.0.1:{port}/elmo_weights.hdf5"
    unreachable = replace(registry._PUBLISHED["original"], where=url)
    monkeypatch.setitem(registry._PUBLISHED, "original", unreachable)
    assert embed(tmp_path / "store", "--model", "original", "--quiet") == Exit.BAD_LOCATION
    said = capsys.readouterr().err
    assert said.startswith(
        f"elmo-store embed: the model original can't be downloaded: {url} can't be reached ("
    )
    assert said.count(url) == 1, said
    assert said.endswith(
        ", or copy this file and elmo_options.json, which is beside it, into a folder, and pass the "
        "folder as the model\n"
    )


@pytest.fixture
def line(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What leads to the S3 server, for every client of this process."""
    with faulty_way(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0, 0.0, 0) as proxy:
        endpoint = f"http://127.0.0.1:{proxy.server_address[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        # Clients are kept by their options: those of this line must not serve tests of later.
        monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": endpoint})
        yield proxy
        proxy.rate = 0.0


def cutting(
    line: Proxy, write: Callable[..., Any], shard: int, seconds: float | None
) -> Callable[..., Any]:
    """``write_shard`` that cuts the line before it writes ``shard``, for so long or for good."""

    def cut_and_write(root: Any, manifest: Any, text: Any, *rest: Any) -> Any:
        if text.shard == shard and line.rate == 0.0:
            line.rate = NOTHING_PASSES
            if seconds is not None:
                threading.Timer(seconds, setattr, (line, "rate", 0.0)).start()
        return write(root, manifest, text, *rest)

    return cut_and_write


@pytest.mark.slow
@pytest.mark.parametrize("library", ["obstore", "s3fs"])
def test_an_outage_is_waited_for_and_one_for_good_ends_the_job_in_one_line(
    library: str, line: Proxy, s3_url: str, embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip(library, reason=f"{library} is not installed: pip install '.[test]'")
    monkeypatch.setenv(OBSTORE, "1" if library == "obstore" else "0")
    assert embed(tmp_path / "local") == Exit.COMPLETE
    url, write = f"{s3_url}/{tmp_path.name}/store", embed_stage.write_shard
    monkeypatch.setattr(embed_stage, "write_shard", cutting(line, write, 2, None))
    capsys.readouterr()
    assert embed(url, "--quiet") in (Exit.BAD_LOCATION, Exit.INCOMPLETE)
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "can't be reached" in said
    assert "rerun the same command" in said
    line.rate = 0.0
    monkeypatch.setattr(embed_stage, "write_shard", cutting(line, write, 3, 2.0))
    monkeypatch.setattr(failures, "DEADLINE_SECONDS", 30.0)
    # The lease of the first run can't be given back, and its process, this one, is alive.
    assert embed(url, "--quiet", "--take-over") == Exit.COMPLETE
    states = {
        name: digest
        for name, digest in digests(tmp_path / "local").items()
        if name.startswith("states")
    }
    assert states == {
        name: digest for name, digest in remote_digests(Root(url)).items() if name in states
    }


def test_a_run_that_gave_up_does_not_wait_for_its_storage_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled, releases = threading.Event(), []

    def away(*arguments: object) -> None:
        raise ConnectionError("away")

    def release(*arguments: object) -> None:
        releases.append(arguments)
        away()

    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(lease, "release", release)
    terms = LeaseTerms(local=False, alone=False, waits=True, take_over=False)
    monkeypatch.setattr(output, "MAX_OUTAGE_SECONDS", 0.05)
    with take_lease(Root(tmp_path), terms) as holder:
        monkeypatch.setattr(lease, "put_heartbeat", away)
        holder.say_job("job", None, cancelled.set)
        assert cancelled.wait(30)
    assert len(releases) == 1


def lines_of(screen: Any) -> list[str]:
    return [text for text in screen.getvalue().splitlines() if "progress" in text]


def test_progress_goes_on_after_an_outage_and_says_it_once(
    line: Proxy,
    s3_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import io

    root = Root(f"{s3_url}/{tmp_path.name}/watched")
    root.put_json("elmo_store.json", {"complete": False, "counts": None, "shard_rows": 100})
    stream, looks = io.StringIO(), threading.Semaphore(0)
    look = bars.ProgressReader.look

    def counted(self: bars.ProgressReader) -> Any:
        try:
            return look(self)
        finally:
            looks.release()

    def some_looks() -> None:
        for _ in range(3):
            assert looks.acquire(timeout=60)

    monkeypatch.setattr(bars.ProgressReader, "look", counted)
    with bars.shown(root, Screen(stream), seconds=0.01):
        some_looks()
        line.rate = NOTHING_PASSES
        some_looks()
        line.rate = 0.0
        some_looks()
    said = lines_of(stream)
    assert len(said) == 1
    assert "can't be seen" in said[0]
    assert "can't be reached" in said[0]

    stream = io.StringIO()

    def outage_then_end(_: float, left: list[int] = [3]) -> None:  # noqa: B006 (counts its calls)
        left[0] -= 1
        line.rate = NOTHING_PASSES if left[0] else 0.0
        if not left[0]:
            root.put_json(
                "elmo_store.json", {"complete": True, "counts": {"tokens": 1, "shards": 1}}
            )

    assert follow(root, Screen(stream), seconds=0.0, sleep=outage_then_end).stage == "complete"
    assert sum("can't be seen" in text for text in lines_of(stream)) == 1


def test_watch_ends_in_one_line_when_its_access_ends(
    s3_url: str,
    refusing: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with faulty_way(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0, 0.0, 0) as proxy:
        options = {"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{proxy.server_address[1]}"}}
        root = Root(f"{s3_url}/{tmp_path.name}/denied", options)
        root.put_json("elmo_store.json", {"complete": False, "counts": None, "shard_rows": 100})

        def deny(self: bars.Screen, _: object) -> None:
            proxy.rate, proxy.port = NOTHING_PASSES, refusing["denied"]
            with pytest.raises(OSError, match="reached"):
                root.get("elmo_store.json")  # ends the connection that is open
            proxy.rate = 0.0

        monkeypatch.setattr(Screen, "show", deny)
        arguments = ["watch", str(root), "--storage-options", json.dumps(options)]
        assert main(arguments) == Exit.BAD_LOCATION
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "is denied" in said
    assert "check the credentials" in said
