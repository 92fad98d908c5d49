"""The end of a job in a process of its own, which dies at its n-th file operation as kill -9 would end it."""

import builtins
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.process import Process
from elmo_store.storage.root import Root
from pipeline.jobs.run import left_summary
from transforms.runtime.owner import owned
from transforms.runtime.work import START, SUMMARY
from transforms.stages.finish import _end_run

KILLED = 9
OPERATIONS = ("remove", "unlink", "rmdir", "replace", "link", "mkdir", "makedirs")


def die_at(n: int) -> None:
    """From now on the process ends in place of its ``n``-th operation that changes a folder, or opens a file to write."""
    left = [n]

    def dying(work: Callable[..., Any], is_one: Callable[..., bool]) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            if is_one(*arguments, **options):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(KILLED)
            return work(*arguments, **options)

        return operation

    for name in OPERATIONS:
        setattr(os, name, dying(getattr(os, name), lambda *_, **__: True))
    builtins.open = dying(builtins.open, lambda *a, **o: "w" in str(a[1:2] or o.get("mode", "")))


def end_a_job(folder: str, waits: bool, n: int) -> None:
    """Take the lease of the complete store at ``folder``, fill its scratch area, and end as a job does."""
    root = Root(folder)
    with LeaseHolder.take(root, f"run-{n}"):
        root.put_json(START, {"waits": waits})
        for name in (
            "read/00000.json",
            "parts/00000-0.parquet",
            "ids/000/00000",
            "progress/1.json",
            "ended/1.json",
        ):
            root.put(f"_work/{name}", b"x")
        (Path(folder) / "_work" / "blobs").mkdir()
        die_at(n)
        if waits:
            root.put_json(SUMMARY, {"bytes": 0, "everything": {}, "this_run": {}})
        job_root = owned(root, f"run-{n}", Process.here())
        _end_run(job_root, waits)
        if waits:
            left_summary(root)
