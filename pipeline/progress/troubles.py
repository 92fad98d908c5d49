"""What goes wrong on an engine while its job goes on, told on the error output: workers that died, a job that does not move."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from elmo_store.storage.root import Root
from pipeline.cli.signals import say
from transforms.runtime.ended import read_ends

LOOK_SECONDS = 10.0
JOIN_SECONDS = 2.0  # that a look under way may hold up a command whose job has ended
LOOKS_STALLED = 3  # in a row, before a job is said to stand still


@contextmanager
def told(root: Root, stalled: Callable[[], str | None], seconds: float = LOOK_SECONDS) -> Iterator[None]:
    """Tell, as long as the block runs, of each worker of the job on ``root`` that dies, and what ``stalled`` says repeatedly."""
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(root, stalled, stop, seconds), name="troubles", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(JOIN_SECONDS)


def _watch(root: Root, stalled: Callable[[], str | None], stop: threading.Event, seconds: float) -> None:
    known: set[str] = set()
    n_stalled = 0
    while True:
        ended = stop.wait(seconds)
        with suppress(Exception):  # whatever a look met, the next one may succeed
            for name, end in read_ends(root, known).items():
                say(f"{end}; the engine tries its work again")
                known.add(name)
        if ended:
            return
        with suppress(Exception):
            why = stalled()
            n_stalled = n_stalled + 1 if why else 0
            if n_stalled == LOOKS_STALLED:
                say(f"nothing has moved for {seconds * (n_stalled - 1):.0f} s: {why}")
