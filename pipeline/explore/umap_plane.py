"""A plane by UMAP, in a process of its own: its compiled loops hold the interpreter, and the page must go on meanwhile.

The process is this file, run; it ends with its standard input. Vectors [n, d] and where they begin [n, 2] go in, pickled; pairs
come out: ("stage", how far it is in words), and at last ("plane", [n, 2]) or ("error", why there is none).
"""

import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
NEIGHBOURS = 15
LEAST_ROWS = 4
REMEDY = "pip install '.[umap]' in elmo-store's checkout"


class UmapError(RuntimeError):
    """There is no plane by UMAP; says why."""


class UmapProcess:
    """Started when the first plane is asked for; one plane at a time."""

    def __init__(self) -> None:
        self.stage = ""  # of the plane that is being computed
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def plane(self, vectors: Array, start: Array) -> Array:
        """Rows in a plane by cosine, begun at ``start`` [n, 2]; the same every time. UmapError."""
        if find_spec("umap") is None:
            raise UmapError(f"UMAP needs umap-learn, which is not installed: {REMEDY}")
        if len(vectors) < LEAST_ROWS or not np.ptp(start):
            return start
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self.close()
                command = [sys.executable, "-P", __file__]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            try:
                pickle.dump((vectors, start), self._process.stdin)
                self._process.stdin.flush()
                kind, answer = pickle.load(self._process.stdout)
                while kind == "stage":
                    self.stage = answer
                    kind, answer = pickle.load(self._process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                raise UmapError("UMAP's process ended before it answered: it may have had too little memory") from error
        if kind == "error":
            raise UmapError(f"UMAP failed: {answer}")
        plane: Array = answer
        return plane

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class _Reports:
    """A file for tqdm, which UMAP shows its rounds with: each share of them is reported."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report

    def write(self, text: str) -> None:
        if share := re.search(r"([0-9]+)%", text):
            self._report(f"UMAP lays the points out: {share[1]}%")

    def flush(self) -> None:
        """Nothing is held back."""


def _plane(vectors: Array, start: Array, report: Callable[[str], None]) -> Array:
    report("UMAP is being loaded: some seconds")
    import umap

    report("UMAP looks for nearest neighbours; the first time it compiles itself, which takes up to a minute")
    begin = (start * (10 / np.abs(start).max())).astype(np.float32)
    settings = {"metric": "cosine", "random_state": 0, "n_jobs": 1, "init": begin}
    shown = {"file": _Reports(report), "disable": False, "mininterval": 0.5}
    model = umap.UMAP(n_neighbors=min(NEIGHBOURS, len(vectors) - 1), tqdm_kwds=shown, **settings)
    plane: Array = model.fit_transform(vectors)
    return plane


def _put(kind: str, value: object) -> None:
    pickle.dump((kind, value), sys.stdout.buffer)
    sys.stdout.flush()


def main() -> None:
    """Answer until the input ends."""
    while True:
        try:
            vectors, start = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            _put("plane", _plane(vectors, start, partial(_put, "stage")))
        except Exception as error:  # the page is told, whatever it is
            _put("error", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
