"""What goes wrong on an engine while its job goes on, told on the error output: workers that died, a job that does not move."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

from elmo_store.storage.root import Root
from pipeline.cli.signals import say
from pipeline.progress.repeated import repeated
from transforms.runtime.ended import read_ends

LOOK_SECONDS = 10.0
LOOKS_STALLED = 4  # in a row, before a job is said to stand still


class Watched(Protocol):
    """A job as its engine knows it."""

    def members(self) -> Mapping[str, str]:
        """The engine's machines: id → host."""

    def stalled(self) -> str | None:
        """Why nothing of the job moves, None if something does."""


@contextmanager
def told(root: Root, job: Watched, seconds: float = LOOK_SECONDS) -> Iterator[None]:
    """Tell, while the block runs, of workers and machines that the ``job`` on ``root`` loses, and why nothing of it moves."""
    known: set[str] = set()
    machines: dict[str, str] = {}
    n_stalled = 0

    def look() -> None:
        nonlocal n_stalled
        with suppress(Exception):  # whatever a look met, the next one may succeed
            for name, end in read_ends(root, known).items():
                say(f"{end}; the engine tries its work again")
                known.add(name)
        with suppress(Exception):
            now = job.members()
            for name in sorted(machines.keys() - now.keys()):
                say(f"the engine lost {name} on {machines.pop(name)}; its tasks are tried again elsewhere")
            machines.update(now)
        with suppress(Exception):
            why = job.stalled()
            n_stalled = n_stalled + 1 if why else 0
            if n_stalled == LOOKS_STALLED:
                say(f"nothing has moved for {seconds * (n_stalled - 1):.0f} s: {why}")

    with repeated(look, seconds, "troubles"):
        yield
