"""What so many workers ask the store for beside its data, what a look at them costs, and how many tasks they share.

A worker is what a process of its own would know: looks at the lease, heartbeats; threads serve all of them in turns.
The code is the job's; only shards are not put. All begin at once, which is the worst for keys that they share.
"""

import heapq
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from benchmarks.shared.support import Table
from elmo_store.format.manifest import write_manifest
from elmo_store.storage.lease import LEASE, LEASES, Lease, acquire, read_heartbeats
from elmo_store.storage.object_store import ObjectStoreFileSystem
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from pipeline.jobs.embed_job import (
    CPU_BYTES_AT_ONCE,
    CPU_ROWS_AT_ONCE,
    CUDA_BYTES_AT_ONCE,
    CUDA_ROWS_AT_ONCE,
    SHARDS_PER_TASK,
)
from tests import job_stages
from transforms.runtime.job_root import JobRoot, RunHere
from transforms.runtime.work import PLAN, START
from transforms.stages.plan import shards_per_call, shards_per_task

RUN = "many-workers"
AT_ONCE = 64  # requests
LATENCY_SECONDS = 0.05  # of a bucket, added to each request to the server beside this program
TOKENS_PER_SECOND = 2_900  # of a worker of two CPU cores (docs/development/performance.md)
SHARD_TOKENS = 16_384
TICK_SECONDS = 1.0  # between two of the engine's reports
SPREAD_SECONDS = 1.0  # within which all begin
SHARDS_OF_WORKER = 1000  # its share of the job
ROW_BYTES = 5 * 512 * 2
RATES = {"CPU, 2 cores": TOKENS_PER_SECOND, "GPU (H100, on paper)": 1_400_000}


class Requests:
    """When which key was asked for what."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: list[tuple[float, str, str]] = []
        request = ObjectStoreFileSystem._call

        def noted(filesystem: Any, function: Callable[..., Any], path: str, *arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._at.append((time.monotonic(), "put" if function.__name__ == "put" else "get", path))
            time.sleep(LATENCY_SECONDS)
            return request(filesystem, function, path, *arguments, **options)

        ObjectStoreFileSystem._call = noted  # type: ignore[method-assign,assignment]

    def taken(self) -> list[tuple[float, str, str]]:
        """Those since this was last asked."""
        with self._lock:
            noted, self._at = self._at, []
        return noted


class Worker:
    """One that computes and writes a shard in so many seconds, a call of some at once."""

    def __init__(self, url: str, options: dict[str, Any], number: int) -> None:
        self._root = JobRoot(Root(url, options), RUN)
        self._root._here = RunHere(Process(f"machine {number}", number, "1"))
        self._done_at = time.monotonic() + SHARD_TOKENS / TOKENS_PER_SECOND
        self.shards = 0

    def tick(self) -> None:
        """What has come about since the last one."""
        if time.monotonic() < self._done_at:
            return
        self._done_at += SHARD_TOKENS / TOKENS_PER_SECOND
        self._root.fence()  # before the shard
        self._root.fence()  # before its marker
        self.shards += 1


def work(workers: list[Worker], seconds: float) -> Counter[str]:
    """All at their own pace; errors by name, which should be none."""
    errors: Counter[str] = Counter()

    def tick(worker: Worker) -> None:
        try:
            worker.tick()
        except Exception as error:
            errors[repr(error)[:100]] += 1

    began = time.monotonic()
    due = [(began + SPREAD_SECONDS * i / len(workers), i) for i in range(len(workers))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while due[0][0] < began + seconds:
            at, i = due[0]
            time.sleep(max(0.0, at - time.monotonic()))
            pool.submit(tick, workers[i])
            heapq.heapreplace(due, (at + TICK_SECONDS, i))
    late = time.monotonic() - began - seconds  # what was asked for is done
    if late > TICK_SECONDS:
        errors[f"the simulation fell {late:.0f} s behind: ask for fewer workers"] += 1
    return errors


def print_requests(noted: list[tuple[float, str, str]], base: str, seconds: float) -> None:
    """Requests a second of each kind: of the key put most often, or else read, and of the prefix."""
    table = Table(
        "requests a second", "key or prefix", "get, mean", "get, peak", "put, mean", "put, peak", "keys", label_width=44
    )
    prefixes = {f"{LEASES}/worker": "heartbeats", LEASE: "looks at the lease", "": "the whole store"}
    for prefix, name in prefixes.items():
        by_key: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for at, verb, path in noted:
            rel = path.removeprefix(f"{base}/")
            if rel.startswith(prefix):
                by_key[rel].append((at, verb))
        every = [entry for entries in by_key.values() for entry in entries]
        most = max(by_key.values(), key=lambda entries: (sum(verb == "put" for _, verb in entries), len(entries)), default=[])
        for label, entries in ((f"{name}: one key", most), (f"{name}: all", every)):
            cells: list[float] = []
            for verb in ("get", "put"):
                times = sorted(at for at, of in entries if of == verb)
                cells += [len(times) / seconds, float(max(Counter(int(at) for at in times).values(), default=0))]
            table.row(f"  {label}", *cells, len(by_key) if entries is every else 1)


def print_look(root: Root, requests: Requests, shards: int, name: str, look: Callable[[], str]) -> None:
    requests.taken()
    began = time.perf_counter()
    said = look()
    print(f"  {name}: {len(requests.taken())} requests, {time.perf_counter() - began:.2f} s: {said} ({shards:,} shards are done)")


def print_tasks() -> None:
    """How a job's shards are cut into tasks, and how long one takes."""
    table = Table("tasks of embed", "tokens, device, workers", "tasks", "shards", "seconds", label_width=48)
    for device, rate in RATES.items():
        rows, most_bytes = (
            (CPU_ROWS_AT_ONCE, CPU_BYTES_AT_ONCE) if device.startswith("CPU") else (CUDA_ROWS_AT_ONCE, CUDA_BYTES_AT_ONCE)
        )
        most = shards_per_call(SHARD_TOKENS, ROW_BYTES, most_rows=rows, most_bytes=most_bytes, most=SHARDS_PER_TASK)
        for tokens in (10**7, 10**9):
            for workers in (32, 100, 1000):
                n_shards = -(-tokens // SHARD_TOKENS)
                size = shards_per_task(n_shards, most=most, workers=workers)
                label = f"  {tokens:,}, {device}, {workers:,}"
                table.row(label, -(-n_shards // size), size, size * SHARD_TOKENS / rate)


def many_workers(url: str, options: dict[str, Any], n: int, seconds: float) -> None:
    """Print the tables of ``n`` workers that write to an empty place for so many seconds. It must be read by obstore."""
    root = Root(url, options)
    if not isinstance(root.filesystem, ObjectStoreFileSystem):
        raise SystemExit(f"{url} is not read by obstore, whose requests are counted: give an s3:// URL, and install '.[obstore]'")
    write_manifest(root, replace(job_stages.manifest_of(root), shard_rows=SHARD_TOKENS))
    n_shards = n * SHARDS_OF_WORKER
    n_rows = n_shards * SHARD_TOKENS
    root.put_json(START, {"started": time.time(), "n_pieces": 1})
    root.put_json(PLAN, {"id": "p", "n_tokens": n_rows, "n_rows": n_rows, "n_shards": n_shards})
    acquire(root, Lease.of_this_process(RUN, local=False, patience_seconds=900.0))
    workers = [Worker(url, options, number) for number in range(n)]
    requests = Requests()
    errors = work(workers, seconds)
    print(f"{n:,} workers for {seconds:.0f} s, {LATENCY_SECONDS * 1000:.0f} ms a request; errors: {dict(errors) or 'none'}")
    print_requests(requests.taken(), root.path(), seconds)
    done = sum(worker.shards for worker in workers)
    print("\na look")
    print_look(root, requests, done, "heartbeats, as `info` reads them", lambda: str(read_heartbeats(root, RUN).last))
    print_tasks()
    with suppress(FileNotFoundError):
        root.remove_tree()
