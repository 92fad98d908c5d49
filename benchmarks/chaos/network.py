"""A network that cuts and delays, before a real S3 server: the job completes with the same bytes, or continues to them.

May import benchmarks.chaos.job, benchmarks.s3, s3fs (through fsspec) and the standard library.
"""

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.chaos.job import ROOMS, Command, SmallJob, contents, table
from benchmarks.s3 import BUCKET, server
from elmo_store.storage import Root

RUNS_AT_MOST = 25
BUFFER_BYTES = 16 << 10


@dataclass
class NetworkFaults:
    """What was injected, and what came of it."""

    counts: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    exits: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def table(self) -> str:
        """One row."""
        kinds = ("connections", "requests", "refused", "cut in the request", "cut in the answer", "slow")
        others = ", ".join(f"{code}: {n}" for code, n in sorted(self.exits.items()) if code) or "none"
        row = [self.jobs, sum(self.exits.values()), *(f"{self.counts[kind]:,}" for kind in kinds), others]
        head = ["jobs", "runs", *kinds, "exit codes but 0"]
        return f"{table(head, [row])}\n\ncompletions that were not as they must be: {len(self.wrong)}"


class Proxy:
    """Passes connections on to ``port``; of each stretch of bytes a share ``rate`` is cut off or late."""

    def __init__(self, port: int, rate: float, seed: int) -> None:
        self._to, self._rate, self._draw = port, rate, random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """End it, and every connection that is still open."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = self._loop.run_until_complete(asyncio.start_server(self._connection, "127.0.0.1", 0))
        self.port = listening.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        listening.close()
        passing = asyncio.all_tasks(self._loop)
        for task in passing:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*passing, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # transports that were aborted close their sockets now
        self._loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        if self._draw.random() < self._rate:
            self.counts["refused"] += 1
            writer.transport.abort()
            return
        there, here = await asyncio.open_connection("127.0.0.1", self._to)
        both = [self._pass(reader, here, "request", writer), self._pass(there, writer, "answer", here)]
        try:
            await asyncio.gather(*both, return_exceptions=True)
        except asyncio.CancelledError:  # the proxy ends
            pass
        finally:
            for end in (writer, here):
                end.transport.abort()

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, what: str, other: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(BUFFER_BYTES):
            self.counts["requests"] += what == "request"
            fate = self._draw.random()
            if fate < self._rate / 2:
                self.counts[f"cut in the {what}"] += 1
                target.write(data[: len(data) // 2])
                await target.drain()
                target.transport.abort()
                other.transport.abort()
                return
            if fate < self._rate:
                self.counts["slow"] += 1
                await asyncio.sleep(self._draw.uniform(0.05, 0.5))
            target.write(data)
            await target.drain()
        target.close()


@contextmanager
def faulty_server(rate: float, seed: int) -> Iterator[tuple[Proxy, str]]:
    """A server and the proxy before it; processes that are started find the proxy by AWS_ENDPOINT_URL."""
    with server():
        direct = os.environ["AWS_ENDPOINT_URL"]
        proxy = Proxy(urlsplit(direct).port or 0, rate, seed)
        try:
            yield proxy, direct
        finally:
            proxy.stop()


def run(folder: Path, rate: float, n_jobs: int, seed: int = 0) -> NetworkFaults:
    """So many jobs to ``s3://``, each repeated until it completes."""
    job = SmallJob.make(folder / "input")
    whole = folder / "whole"
    if Command(job.arguments(whole, "both"), folder / "log").wait():
        raise RuntimeError("the job fails without any fault")
    wanted = contents(whole)
    found = NetworkFaults()
    with faulty_server(rate, seed) as (proxy, direct):
        faulty = {"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}}
        for number in range(n_jobs):
            url = f"s3://{BUCKET}/store-{number}"
            for attempt in range(RUNS_AT_MOST):
                log = folder / f"log-{number}-{attempt}"
                command = Command(
                    job.arguments(url, "both", "--storage-options", _json(faulty)), log, _Settings(dict(os.environ))
                )
                code = command.wait(600)
                found.exits[code] += 1
                if code == 0:
                    break
            found.jobs += 1
            root = Root(url, {"client_kwargs": {"endpoint_url": direct}})
            there = _digests(root)
            if code or there != wanted:
                names = sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
                found.wrong.append(f"job {number}, exit {code}: {names[:5]}\n{command.said()[-2000:]}")
        found.counts.update(proxy.counts)
    return found


class _Settings:
    """Puts the server's credentials into the environment of a process that was forked before there was a server."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._settings = {name: value for name, value in environment.items() if name.startswith("AWS_")}

    def __call__(self) -> None:
        os.environ.update(self._settings)


def _digests(root: Root) -> dict[str, str]:
    return {rel: root.sha256(rel) for rel in root.list() if rel.partition("/")[0] in ROOMS}


def _json(value: object) -> str:
    import json

    return json.dumps(value)
