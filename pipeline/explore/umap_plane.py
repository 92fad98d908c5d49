"""A plane by UMAP, in a process of its own: its compiled loops hold the interpreter, and the page must go on meanwhile.

The process is this file, run; it ends with its standard input. Vectors [n, d] and where they begin [n, 2] go in, pickled; a plane
[n, 2] comes out, or text that says why not.
"""

import pickle
import subprocess
import sys
import threading
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
                answer: Array | str = pickle.load(self._process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                raise UmapError("UMAP's process ended before it answered: it may have had too little memory") from error
        if isinstance(answer, str):
            raise UmapError(f"UMAP failed: {answer}")
        return answer

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _plane(vectors: Array, start: Array) -> Array:
    import umap

    begin = (start * (10 / np.abs(start).max())).astype(np.float32)
    settings = {"metric": "cosine", "random_state": 0, "n_jobs": 1, "init": begin}
    plane: Array = umap.UMAP(n_neighbors=min(NEIGHBOURS, len(vectors) - 1), **settings).fit_transform(vectors)
    return plane


def main() -> None:
    """Answer until the input ends."""
    while True:
        try:
            vectors, start = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: object = _plane(vectors, start)
        except Exception as error:  # the page is told, whatever it is
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
