"""Cores and memory of a container, by the files of its cgroup."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.jobs import embed_job
from pipeline.runners.workers import cores, memory_limit
from transforms.inputs.records import FileIdentity, WholeFile

GIB = 1 << 30
V2 = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n", "sys/fs/cgroup/memory.max": f"{24 * GIB}\n"}
NONE = {
    "proc/self/cgroup": "0::/user.slice\n",
    "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
    "sys/fs/cgroup/user.slice/memory.max": "max\n",
}
ABOVE = NONE | {"sys/fs/cgroup/memory.max": f"{GIB}\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}


def machine(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="ascii")
    return root


@pytest.mark.parametrize(
    ("files", "n", "memory"),
    [(V2, 2, 24 * GIB), (NONE, 96, None), (ABOVE, 1, GIB), ({}, 96, None)],
)
def test_a_container_has_what_its_cgroup_allows(
    files: Mapping[str, str], n: int, memory: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)))
    root = machine(tmp_path, files)
    assert cores(root) == n
    assert memory_limit(root) == memory


@pytest.mark.parametrize(("limit", "n"), [(None, 96), (24 * GIB, 81), (4 * GIB, 1), (GIB, 1)])
def test_readers_fit_into_the_memory_of_a_pod(limit: int | None, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_job, "cores", lambda: 96)
    monkeypatch.setattr(embed_job, "memory_limit", lambda: limit)
    large = [WholeFile(0, "a.txt", "text", FileIdentity(1 << 30, "1"))]
    assert embed_job.read_processes(large, weight_bytes=400 << 20, call_bytes=256 << 20) == n
    assert embed_job.read_processes([WholeFile(0, "a.txt", "text", FileIdentity(1, "1"))], 0, 0) == 1
