"""A network that cuts and delays, before a real S3 server: the job completes with the same bytes, or continues to them."""

import asyncio
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.chaos.job import OBJECTS, Command, Found, SmallJob, contents
from elmo_store.storage.root import Root
from tests.s3_server import BUCKET, server

RUNS_AT_MOST = 25
BUFFER_BYTES = 16 << 10
COLUMNS = ("jobs", "runs", "connections", "requests", "refused", "cut in the request", "cut in the answer", "slow")


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


def _set_environment(settings: dict[str, str]) -> None:
    os.environ.update(settings)


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


def run(folder: Path, rate: float, n_jobs: int, seed: int = 0) -> Found:
    """So many jobs to ``s3://``, each repeated until it completes."""
    job = SmallJob.make(folder / "input")
    whole = folder / "whole"
    if Command(job.arguments(whole, "both"), folder / "log").wait():
        raise RuntimeError("the job fails without any fault")
    wanted, found = contents(whole), Found("network", COLUMNS, total=False)
    with faulty_server(rate, seed) as (proxy, direct):
        faulty = json.dumps({"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{proxy.port}"}})
        settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        for number in range(n_jobs):
            url = f"s3://{BUCKET}/store-{number}"
            for attempt in range(RUNS_AT_MOST):
                log = folder / f"log-{number}-{attempt}"
                # The server that processes are forked from was started before there was an S3 server.
                command = Command(
                    job.arguments(url, "both", "--storage-options", faulty), log, partial(_set_environment, settings)
                )
                code = command.wait(600)
                found.count("S3", ["runs"])
                if code == 0:
                    break
            root = Root(url, {"client_kwargs": {"endpoint_url": direct}})
            there = {rel: root.sha256(rel) for rel in root.list() if rel.partition("/")[0] in OBJECTS}
            names = sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
            wrong = f"job {number}, exit {code}: {names[:5]}\n{command.said()[-2000:]}"
            found.count("S3", ["jobs"], wrong if code or names else "")
        found.count("S3", proxy.counts)
    return found
