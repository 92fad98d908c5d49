"""What the pipeline's tests share: hashes of a store's objects, and the command in a process of its own."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path


def digests(store: Path) -> dict[str, str]:
    """SHA-256 of every object that must be the same whoever wrote it: states, tokens, parts, rejects."""
    names = [p for p in store.rglob("*") if p.is_file()]
    kept = [p for p in names if p.relative_to(store).parts[0] in ("sentences", "states", "states.zarr", "rejects")]
    return {str(p.relative_to(store)): hashlib.sha256(p.read_bytes()).hexdigest() for p in kept}


def run_command(
    *arguments: str, cwd: Path | None = None, timeout: float = 240, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``elmo-store`` in a process of its own, as installed or from this checkout."""
    repo = str(Path(__file__).resolve().parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": repo, "PYTHONSAFEPATH": "1", **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", "elmo_store", *arguments],
        cwd=cwd, env=environment, timeout=timeout, capture_output=True, text=True, check=False,
    )  # fmt: skip
