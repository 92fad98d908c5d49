"""What goes wrong on an engine while its job goes on, told on the error output: workers that died, a job that does not move."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from elmo_store.storage.root import Root
from pipeline.cli.signals import say
from pipeline.progress.repeated import repeated
from transforms.runtime.ended import read_ends

LOOK_SECONDS = 10.0
LOOKS_STALLED = 4  # in a row, before a job is said to stand still


@contextmanager
def told(root: Root, stalled: Callable[[], str | None], seconds: float = LOOK_SECONDS) -> Iterator[None]:
    """Tell, as long as the block runs, of each worker of the job on ``root`` that dies, and what ``stalled`` says repeatedly."""
    known: set[str] = set()
    n_stalled = 0

    def look() -> None:
        nonlocal n_stalled
        with suppress(Exception):  # whatever a look met, the next one may succeed
            for name, end in read_ends(root, known).items():
                say(f"{end}; the engine tries its work again")
                known.add(name)
        with suppress(Exception):
            why = stalled()
            n_stalled = n_stalled + 1 if why else 0
            if n_stalled == LOOKS_STALLED:
                say(f"nothing has moved for {seconds * (n_stalled - 1):.0f} s: {why}")

    with repeated(look, seconds, "troubles"):
        yield
