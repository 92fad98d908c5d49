"""Storage on a bad day: ``chaos://PATH``, the local disk as an object store that fails and delays; and a network that cuts.

Every operation draws what happens to it from a generator of its own seed, so that a run can be had again.
"""

import json
import os
import random
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

PROTOCOL = "chaos"
LATE_SECONDS = 0.05
BUFFER_BYTES = 16 << 10
NOTHING_PASSES = 2.0  # a rate of `Proxy`


class StorageError(OSError):
    """What a store says on a bad day."""


class ChaosFileSystem(AbstractFileSystem):
    """Of each operation a share ``rate`` goes wrong: an error before it, an error after it was done, or a delay.

    A put is whole or none; a read that is cut gives nothing but an error.
    """

    protocol = (PROTOCOL, "memory")  # by the latter it counts as an object store
    cachable = False
    counts: ClassVar[Counter[str]] = Counter()  # of this process
    _lock = threading.Lock()
    _draw = random.Random(0)

    def __init__(self, rate: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.rate, self._local = rate, LocalFileSystem()

    def _fate(self, operation: str, kinds: tuple[str, ...]) -> str:
        """What happens to an operation: "" for nothing."""
        with self._lock:
            self.counts["operations"] += 1
            if self._draw.random() >= self.rate:
                return ""
            fate = self._draw.choice(kinds)
            self.counts[fate] += 1
        if fate == "slow":
            time.sleep(LATE_SECONDS)
            return ""
        if fate == "failed":
            raise StorageError(f"injected: {operation} failed")
        return fate

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        self._fate(f"reading {path}", ("failed", "slow"))
        data: bytes = self._local.cat_file(path, start, end)
        return data

    def info(self, path: str, **options: Any) -> Any:
        self._fate(f"asking for {path}", ("failed", "slow"))
        return self._local.info(path)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._fate(f"listing {path}", ("failed", "slow"))
        return self._local.ls(path, detail)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        fate = self._fate(f"writing {path}", ("failed", "done and failed", "slow"))
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if mode == "create" and target.exists():
            raise FileExistsError(path)
        temporary = target.with_name(f".chaos-{threading.get_ident()}-{target.name}"[:255])
        temporary.write_bytes(value)
        os.replace(temporary, target)
        if fate == "done and failed":
            raise StorageError(f"injected: writing {path} failed after all was written")

    def rm_file(self, path: str) -> None:
        fate = self._fate(f"removing {path}", ("failed", "done and failed", "slow"))
        self._local.rm_file(path)
        if fate:
            raise StorageError(f"injected: removing {path} failed after it was removed")

    def rm(
        self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        """Objects, or everything below a folder, each object with its own fate; on an object store folders are nothing."""
        if isinstance(path, list):
            for name in path:
                self.rm_file(name)
            return
        folder = Path(path)
        if not folder.exists():
            raise FileNotFoundError(path)
        for below in sorted(folder.rglob("*"), reverse=True) if folder.is_dir() else [folder]:
            below.rmdir() if below.is_dir() else self.rm_file(str(below))
        if folder.is_dir():
            folder.rmdir()


def register(seed: int, counts_file: str) -> Any:
    """Make it known in this process; the function that is returned writes down what was injected."""
    fsspec.register_implementation(PROTOCOL, ChaosFileSystem, clobber=True)
    ChaosFileSystem._draw.seed(seed)
    ChaosFileSystem.counts.clear()
    return lambda: Path(counts_file).write_text(json.dumps(ChaosFileSystem.counts))


class Proxy(socketserver.ThreadingTCPServer):
    """Passes connections on to ``port``; of each stretch of bytes a share ``rate`` is cut off or late."""

    daemon_threads = True  # clients of this very process keep their connections

    def __init__(self, port: int, rate: float, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.port, self.rate, self.draw = port, rate, random.Random(seed)
        self.counts: Counter[str] = Counter()


class _Connection(socketserver.BaseRequestHandler):
    server: Proxy

    def handle(self) -> None:
        self.server.counts["connections"] += 1
        if self.server.draw.random() < self.server.rate:
            self.server.counts["refused"] += 1
            return
        with socket.create_connection(("127.0.0.1", self.server.port)) as upstream:
            answers = threading.Thread(
                target=self._pass_on, args=(upstream, self.request, "answer")
            )
            answers.start()
            self._pass_on(self.request, upstream, "request")
            answers.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, what: str) -> None:
        counts, rate, draw = self.server.counts, self.server.rate, self.server.draw
        with suppress(OSError):  # the other direction was cut
            while data := source.recv(BUFFER_BYTES):
                counts["requests"] += what == "request"
                fate = draw.random()
                if fate < rate / 2:
                    counts[f"cut in the {what}"] += 1
                    target.sendall(data[: len(data) // 2])
                    break
                if fate < rate:
                    counts["slow"] += 1
                    time.sleep(draw.uniform(0.05, 0.5))
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def faulty_way(port: int, rate: float, seed: int) -> Iterator[Proxy]:
    """A proxy before the server at ``port``."""
    with Proxy(port, rate, seed) as proxy:
        serving = threading.Thread(target=proxy.serve_forever, name="proxy")
        serving.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            serving.join()
