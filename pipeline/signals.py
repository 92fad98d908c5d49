"""SIGTERM and SIGHUP end a command as Ctrl-C does: with its clean-up, a message and exit code 4. Imports nothing of ours."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

NAMES = ("SIGTERM", "SIGHUP")


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Within the block the first of these signals raises KeyboardInterrupt with its name; a second one ends the process at once.

    A signal that the caller has given another meaning, as `nohup` does, keeps it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt(signal.Signals(number).name)

    ours = [
        number
        for name in NAMES
        if (number := getattr(signal, name, None)) is not None and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def name_of(end: KeyboardInterrupt) -> str:
    """The signal that it stands for, "" for Ctrl-C. Beam adds to an exception's text where it passed."""
    return str(end).partition(" ")[0]


def say(text: str) -> None:
    """A line on the error output, where there still is one: after SIGHUP the terminal may be gone."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
