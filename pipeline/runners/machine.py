"""What of this machine is ours: cores by affinity and by the container's quota, memory by the container's limit.

A container sees all cores and all memory of its host; what it may use stands in its cgroup, of version 1 or 2. A limit of any
cgroup above ours holds for us too.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

UNLIMITED = 1 << 60  # version 1 says "no limit" by a number of about this size


def cores(root: Path = Path("/")) -> int:
    """Cores that this process may keep busy, 1 or more."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([here, *(math.ceil(quota) for quota in _cpu_quotas(root))]))


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that this process and what it starts may use together; None where no cgroup says it."""
    names = {"": "memory.max", "memory": "memory.limit_in_bytes"}
    values = [_number(folder / names[controller]) for controller, folder in _cgroups(root) if controller in names]
    return min((int(value) for value in values if value is not None and value < UNLIMITED), default=None)


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Cores that each cgroup above this process allows, where it has a quota."""
    for controller, folder in _cgroups(root):
        if controller == "":
            quota, _, period = _text(folder / "cpu.max").partition(" ")
            if quota.isdigit() and period.isdigit():
                yield int(quota) / int(period)
        elif controller == "cpu":
            quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            if quota_us and period_us and quota_us > 0:
                yield quota_us / period_us


def _cgroups(root: Path) -> Iterator[tuple[str, Path]]:
    """(controller, folder) of this process's cgroups and all above them; the controller of version 2 is ""."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = mount / controllers if controllers else mount
        folder = base / path.strip("/")
        for cgroup in (folder, *folder.parents):
            if cgroup.is_relative_to(base) and cgroup.is_dir():  # within a container ours is the topmost
                yield from ((controller, cgroup) for controller in controllers.split(","))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.lstrip("-").isdigit() else None
