"""What a command looks at again and again while something else runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

JOIN_SECONDS = 2.0  # that a look under way may hold up a command whose job has ended


@contextmanager
def repeated(look: Callable[[], object], seconds: float, name: str) -> Iterator[None]:
    """Call ``look``, which raises nothing, in a thread while the block runs: at once, every ``seconds``, a last time at the end.

    Nobody waits for a look that takes longer than `JOIN_SECONDS` at the end.
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
        yield
    finally:
        ended.set()
        thread.join(JOIN_SECONDS)
