"""A plane by UMAP, in a process of its own: its compiled loops hold the interpreter, and the page must go on meanwhile."""

import signal
import threading
import warnings
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
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
        self._process: SpawnProcess | None = None
        self._lock = threading.Lock()

    def plane(self, vectors: Array, start: Array) -> Array:
        """Rows in a plane by cosine, begun at ``start`` [n, 2]; the same every time. UmapError."""
        if find_spec("umap") is None:
            raise UmapError(f"UMAP needs umap-learn, which is not installed: {REMEDY}")
        if len(vectors) < LEAST_ROWS or not np.ptp(start):
            return start
        with self._lock:
            if self._process is None or not self._process.is_alive():
                spawn = get_context("spawn")
                self._connection, theirs = spawn.Pipe()
                self._process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
                self._process.start()
                theirs.close()  # so that the end of the process is the end of the connection
            try:
                self._connection.send((vectors, start))
                answer = self._connection.recv()
            except (OSError, EOFError) as error:
                raise UmapError("UMAP's process ended before it answered: it may have had too little memory") from error
        if isinstance(answer, str):
            raise UmapError(f"UMAP failed: {answer}")
        plane: Array = answer
        return plane

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _serve(connection: Connection) -> None:
    """Answer vectors [n, d] and where they begin [n, 2] by their plane [n, 2] or by an error's words, until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, without a traceback
    warnings.simplefilter("ignore")
    while True:
        try:
            vectors, start = connection.recv()
        except EOFError:
            return
        try:
            answer: Array | str = _plane(vectors, start)
        except Exception as error:  # the page is told, whatever it is
            answer = f"{type(error).__name__}: {error}"
        connection.send(answer)


def _plane(vectors: Array, start: Array) -> Array:
    import umap

    begin = (start * (10 / np.abs(start).max())).astype(np.float32)
    neighbours = min(NEIGHBOURS, len(vectors) - 1)
    model = umap.UMAP(n_neighbors=neighbours, metric="cosine", init=begin, random_state=0, n_jobs=1)
    plane: Array = model.fit_transform(vectors)
    return plane
