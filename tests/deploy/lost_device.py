"""A worker whose first call of the engine finds its GPU lost, as a driver reports it: for a test's cluster."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from model.errors import DeviceLostError


def main(flag: Path) -> None:
    """Be ``elmo-store-worker``; the first call of all workers that share ``flag``, a file that is made then, fails."""
    boot = importlib.import_module("deploy.cluster.boot")
    work = boot.work

    def losing(worker_id: str, endpoint: str) -> None:
        embed = importlib.import_module("transforms.stages.embed")
        compute = embed.compute

        def lost_once(*arguments: Any) -> Any:
            try:
                flag.touch(exist_ok=False)
            except FileExistsError:
                return compute(*arguments)
            raise DeviceLostError("CUDA error: an illegal memory access was encountered")

        embed.compute = lost_once  # type: ignore[attr-defined]
        work(worker_id, endpoint)

    boot.work = losing  # type: ignore[attr-defined]
    os._exit(boot.main(sys.argv[2:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
