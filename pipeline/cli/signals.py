"""Ctrl-C, SIGTERM and SIGHUP end a command with its clean-up, a message and exit code 4."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from weakref import finalize

RESEND_SECONDS = 0.05  # after an interrupt was lost: by then the code that swallowed it is over


class Interrupt(KeyboardInterrupt):
    """A signal's. ``lost`` runs when it is gone without having been heeded."""

    lost: "finalize[[int], Interrupt] | None" = None


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Within the block the first of these signals raises KeyboardInterrupt with its name; a second one ends the process at once.

    So for Ctrl-C too: an exception without arguments is one that Beam replaces by a RuntimeError.
    An exception can be swallowed: `io.IOBase` silently clears what is raised while one of its objects is finalized, and fsspec's
    files are such objects. The signal is then sent once more; whoever ends an interrupt within the block calls `heed`.
    A signal that the caller has given another meaning, as `nohup` does, keeps it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: set[int] = set()
    over = threading.Event()

    def interrupt(number: int, _: FrameType | None) -> None:
        if number in received:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        received.add(number)
        end = Interrupt(signal.Signals(number).name)
        end.lost = finalize(end, lose, number)
        end.lost.atexit = False
        try:
            raise end
        finally:
            del end  # its traceback has this frame: it would outlive whoever swallows it

    def lose(number: int) -> None:
        if not over.is_set():
            received.discard(number)
            timer = threading.Timer(RESEND_SECONDS, resend, [number])
            timer.daemon = True
            timer.start()

    def resend(number: int) -> None:
        if not over.is_set():
            os.kill(os.getpid(), number)

    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    ours = {
        number: kept
        for number, kept in before.items()
        if kept in (signal.SIG_DFL, signal.default_int_handler)
    }
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        over.set()
        for number, kept in ours.items():
            signal.signal(number, kept)


def heed(end: BaseException) -> None:
    """Take note of an interrupt that ends here, so that its signal does not come again."""
    error: BaseException | None = end
    while error is not None:  # Beam raises another one in its place
        if isinstance(error, Interrupt) and error.lost is not None:
            error.lost.detach()
        error = error.__context__


def name_of(end: KeyboardInterrupt) -> str:
    """What the user knows it by: Ctrl-C, SIGTERM, SIGHUP. Beam adds to an exception's text where it passed."""
    name = str(end).partition(" ")[0]
    return name if name in ("SIGTERM", "SIGHUP") else "Ctrl-C"


def say(text: str) -> None:
    """A line on the error output, where there still is one: after SIGHUP the terminal may be gone."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
