"""Workers that are lost, for a test's cluster: the first is killed as it loads PyTorch, the next finds its GPU lost at once."""

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from model.errors import DeviceLostError


class KilledByTorch:
    """A finder of modules that kills the first process which loads the stage that needs PyTorch; ``flag``: a file made then."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def find_spec(self, name: str, *_: object) -> None:
        if name == "transforms.stages.embed" and not self._flag.exists():
            self._flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main(flag: Path) -> None:
    """Be ``elmo-store-worker``; the first call of all workers that share ``flag``, a file that is made then, fails."""
    boot = importlib.import_module("deploy.cluster.boot")
    work = boot.work

    def losing(worker_id: str, endpoint: str) -> None:
        sys.meta_path.insert(0, KilledByTorch(flag.with_name("torch")))
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
