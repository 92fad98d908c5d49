"""How an engine starts our workers: the program, as a file that it can run, and Beam's options that name it."""

import json
import shlex
import sys
from pathlib import Path


def worker_script(folder: Path) -> Path:
    """A program in ``folder`` that does what an installed ``elmo-store-worker`` does, with this Python; works from a checkout."""
    script = folder / "elmo-store-worker"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m deploy.cluster.boot "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def pool_options(address: str) -> list[str]:
    """Beam's options for workers that a pool starts: each machine (or pod) has one of its own at ``address``, HOST:PORT."""
    return ["--environment_type=EXTERNAL", f"--environment_config={address}"]


def environment_options(program: str) -> list[str]:
    """Beam's options for workers that are processes of ``program``, which every machine of the cluster has."""
    return ["--environment_type=PROCESS", f"--environment_config={json.dumps({'command': program})}"]
