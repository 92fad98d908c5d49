"""All shards of a job come from one kind of device, also where each worker finds out for itself what it has (``--device auto``).

May import elmo_store and transforms.{health,work}. States of a CPU and of a GPU differ in their last bits. The first worker that
gets work says what it has; one that has something else gives its work back.
"""

from elmo_store.storage import Root
from transforms.health import WorkerError
from transforms.work import DEVICE


def claim(root: Root, device: str) -> None:
    """Say that this job's shards come from ``device``, "cpu" or "cuda". WorkerError if other workers' come from another one."""
    said = _said(root)
    if said is None:
        root.put_new(DEVICE, device.encode())
        said = _said(root)
    if said != device:
        raise WorkerError(
            f"this worker computes on {device}, and shards of {root} come from {said}: their last bits would differ. Workers may "
            f"have lost their GPU: give them all the same, or begin anew with --overwrite and --device {device}"
        )


def _said(root: Root) -> str | None:
    try:
        return root.get(DEVICE).decode(errors="replace")
    except FileNotFoundError:
        return None
