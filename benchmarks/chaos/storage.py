"""Storage that fails, tears and delays, and a network that cuts: a job completes with the same bytes, or continues to them."""

import json
import os
import random
import re
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.chaos.filesystem import PROTOCOL, register
from benchmarks.chaos.job import OBJECTS, Command, Outcomes, SmallJob, contents, differences, faults_of
from elmo_store.storage.readable import TEMPORARY_PREFIX
from elmo_store.storage.root import Root
from tests.s3_server import BUCKET, server

RUNS_AT_MOST = 25
BUFFER_BYTES = 16 << 10
NOTHING_PASSES = 2.0  # a rate of `Proxy`


def storage(folder: Path, rate: float, n_jobs: int, seed: int = 0) -> Outcomes:
    """So many jobs, each repeated until it completes, on storage of which a share ``rate`` of operations goes wrong."""
    draw = random.Random(seed)
    job = SmallJob.make(folder / "input")
    wanted = {form: _undisturbed(job, folder / form, form) for form in ("both", "zarr")}
    kinds = ("operations", "failed", "done and failed", "slow")
    outcomes = Outcomes("storage", ("jobs", "complete at once", "runs", *kinds))
    for number in range(n_jobs):
        form = draw.choice(sorted(wanted))
        output = folder / f"faults-{number}"
        arguments = job.arguments(f"{PROTOCOL}://{output}", form, "--storage-options", json.dumps({"rate": rate}))
        for attempt in range(RUNS_AT_MOST):
            counts = folder / "counts"
            counts.write_text("{}")
            prepare = partial(register, draw.randrange(1 << 30), str(counts))
            command = Command(arguments, folder / f"log-{number}-{attempt}", prepare)
            code, said = command.wait(), command.output()
            explained = code in (3, 4) and "Traceback (most recent call last)" not in said and _names_place(said)
            problem = "" if code == 0 or explained else f"unexplained, exit {code}:\n{said[-2000:]}"
            outcomes.count(PROTOCOL, Counter(json.loads(counts.read_text())) + Counter(["runs"]), problem)
            if code == 0:
                outcomes.count(PROTOCOL, ["complete at once"] * (attempt == 0))
                break
        problem = _problem_of(output, code, wanted[form])
        outcomes.count(PROTOCOL, ["jobs"], problem and f"job {number}, {form}: {problem}\n{said[-2000:]}")
    return outcomes


def network(folder: Path, rate: float, n_jobs: int, seed: int = 0) -> Outcomes:
    """So many jobs to ``s3://`` through a network that cuts and delays a share ``rate``, each repeated until it completes."""
    job = SmallJob.make(folder / "input")
    wanted = _undisturbed(job, folder / "whole", "both")
    kinds = ("connections", "requests", "refused", "cut in the request", "cut in the answer", "slow")
    outcomes = Outcomes("network", ("jobs", "runs", *kinds))
    with server(), faulty_way(urlsplit(os.environ["AWS_ENDPOINT_URL"]).port or 0, rate, seed) as proxy:
        faulty = json.dumps({"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{proxy.server_address[1]}"}})
        # The server that processes are forked from was started before there was an S3 server.
        settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        for number in range(n_jobs):
            url = f"s3://{BUCKET}/store-{number}"
            arguments = job.arguments(url, "both", "--storage-options", faulty)
            for attempt in range(RUNS_AT_MOST):
                command = Command(arguments, folder / f"log-{number}-{attempt}", partial(_set_environment, settings))
                code = command.wait(600)
                outcomes.count("S3", ["runs"])
                if code == 0:
                    break
            root = Root(url, {"client_kwargs": {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}})
            written = {rel: root.crc32c(rel) for rel in root.list() if rel.partition("/")[0] in OBJECTS}
            names = differences(written, wanted)
            wrong = f"job {number}, exit {code}: {names[:5]}\n{command.output()[-2000:]}"
            outcomes.count("S3", ["jobs"], wrong if code or names else "")
        outcomes.count("S3", proxy.counts)
    return outcomes


def _undisturbed(job: SmallJob, output: Path, form: str) -> dict[str, str]:
    """The contents of a store that nothing disturbed."""
    Command(job.arguments(output, form), output.with_suffix(".log")).succeed()
    return contents(output)


def _names_place(said: str) -> bool:
    """Whether a failure names what it could not read or write."""
    return bool(re.search(r"shard|part|task|output|faults-\d+|elmo_store\.json", said))


def _problem_of(output: Path, code: int, wanted: dict[str, str]) -> str:
    """What is wrong with a job that was disturbed and continued; "" if nothing is."""
    if code:
        return f"exit code {code}"
    if names := differences(contents(output), wanted):
        return f"other bytes: {names[:5]}"
    left = [path for name in ("_work", "_lease") for path in (output / name).rglob("*") if path.is_file()]
    if left := [path for path in left if not path.name.startswith(TEMPORARY_PREFIX)]:
        return f"left behind: {left[:5]}"
    faults = faults_of(str(output))
    return f"verify: {faults[:3]}" if faults else ""


def _set_environment(settings: dict[str, str]) -> None:
    os.environ.update(settings)


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
            answers = threading.Thread(target=self._pass_on, args=(upstream, self.request, "answer"))
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
