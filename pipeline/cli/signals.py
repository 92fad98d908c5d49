"""Ctrl-C, SIGTERM and SIGHUP end a command with its clean-up, a message and exit code 4."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Within the block the first of these signals raises KeyboardInterrupt with its name; a second one ends the process at once.

    So for Ctrl-C too: an exception without arguments is one that Beam replaces by a RuntimeError.
    A signal that the caller has given another meaning, as `nohup` does, keeps it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: set[int] = set()

    def interrupt(number: int, _: FrameType | None) -> None:
        if number in received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.add(number)
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    ours = {number: kept for number, kept in before.items() if kept in (signal.SIG_DFL, signal.default_int_handler)}
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, kept in ours.items():
            signal.signal(number, kept)


def name_of(end: KeyboardInterrupt) -> str:
    """What the user knows it by: Ctrl-C, SIGTERM, SIGHUP. Beam adds to an exception's text where it passed."""
    name = str(end).partition(" ")[0]
    return name if name in ("SIGTERM", "SIGHUP") else "Ctrl-C"


def say(text: str) -> None:
    """A line on the error output, where there still is one: after SIGHUP the terminal may be gone."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
