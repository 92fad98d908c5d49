"""All shards of a job come from CPUs or from one kind of GPU, also where each worker finds out for itself what it has.

States of a CPU and of a GPU, and of two kinds of GPUs, differ in their last bits. The first worker that gets work says what it
has; one that has something else gives its work back.
"""

from elmo_store.storage.root import Root
from transforms.runtime.health import WorkerError
from transforms.runtime.work import DEVICE


def claim(root: Root, hardware: str) -> None:
    """Say that this job's shards come from ``hardware``: "cpu", or "cuda" and the card's name.

    WorkerError if other workers' come from another one.
    """
    said = _said(root)
    if said is None:
        root.put_new(DEVICE, hardware.encode())
        said = _said(root)
    if said != hardware:
        raise WorkerError(
            f"this worker computes on {hardware}, and shards of {root} come from {said}: their last bits would differ. Workers "
            f"may have lost their GPU: give them all the same, or begin anew with --overwrite and --device {hardware.split()[0]}"
        )


def _said(root: Root) -> str | None:
    try:
        return root.get(DEVICE).decode(errors="replace")
    except FileNotFoundError:
        return None
