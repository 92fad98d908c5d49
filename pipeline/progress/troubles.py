"""What goes wrong on an engine while its job goes on, told on the error output: workers that died, machines that are lost."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from elmo_store.storage.root import Root
from pipeline.cli.signals import say
from pipeline.progress.repeated import repeated
from transforms.runtime.ended import read_ends

LOOK_SECONDS = 10.0


@contextmanager
def told(
    root: Root, members: Callable[[], Mapping[str, str]], seconds: float = LOOK_SECONDS
) -> Iterator[None]:
    """Tell, while the block runs, of workers and machines that the job on ``root`` loses.

    ``members``: the engine's machines as it knows them now, id → host.
    """
    known: set[str] = set()
    machines: dict[str, str] = {}

    def look() -> None:
        with suppress(Exception):  # whatever a look met, the next one may succeed
            for name, end in read_ends(root, known).items():
                say(f"{end}; the engine tries its work again")
                known.add(name)
        with suppress(Exception):
            now = members()
            elsewhere = (
                "its tasks are tried again elsewhere"
                if now
                else "none is left: the job waits for another one"
            )
            for name in sorted(machines.keys() - now.keys()):
                say(f"the engine lost {name} on {machines.pop(name)}; {elsewhere}")
            machines.update(now)

    with repeated(look, seconds, "troubles"):
        yield
