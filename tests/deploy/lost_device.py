"""Workers that are lost, for a test's cluster: one is killed as it loads its model, one finds its GPU lost at its first call."""

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from model.errors import DeviceLostError


def is_first(flag: Path) -> bool:
    """Whether this process is the first of all that ask for ``flag``, a file that is made then."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main(flag: Path) -> None:
    """Be ``elmo-store-worker``, of those that share ``flag`` and its neighbour ``loading``."""
    boot = importlib.import_module("deploy.cluster.boot")
    work = boot.work

    def losing(worker_id: str, endpoint: str) -> None:
        embed = importlib.import_module("transforms.stages.embed")
        load, compute = embed.load_engine, embed.compute

        def killed_once(*arguments: Any) -> Any:
            if is_first(flag.with_name("loading")):
                os.kill(os.getpid(), signal.SIGKILL)
            return load(*arguments)

        def lost_once(*arguments: Any) -> Any:
            if is_first(flag):
                raise DeviceLostError("CUDA error: an illegal memory access was encountered")
            return compute(*arguments)

        embed.load_engine, embed.compute = killed_once, lost_once  # type: ignore[attr-defined]
        work(worker_id, endpoint)

    boot.work = losing  # type: ignore[attr-defined]
    os._exit(boot.main(sys.argv[2:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
