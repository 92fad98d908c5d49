"""What a command looks at again and again while something else runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

JOIN_SECONDS = 2.0  # that a look under way may hold up a command whose job has ended


@contextmanager
def repeated(look: Callable[[], object], seconds: float, name: str) -> Iterator[threading.Thread]:
    """Call ``look``, which raises nothing, in a thread while the block runs: at once, every ``seconds``, a last time at the end.

    Yields the thread. It is alive after the block if a look takes longer than `JOIN_SECONDS`; nobody waits for that one.
    """
    ended = threading.Event()

    def run() -> None:
        look()
        while not ended.wait(seconds):
            look()
        look()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        ended.set()
        thread.join(JOIN_SECONDS)
