"""A writer that is suspended at each of its changes in turn while another one takes over.

Each change of a place asks its owner first, just before it becomes visible. There the writer is suspended: before the question,
or between the answer and the change.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from elmo_store.errors import StoreError
from elmo_store.storage import lease as leases
from elmo_store.storage.lease import LEASE, LEASES, read_lease
from elmo_store.storage.root import Root

Moment = Literal["before its look", "after its look"]
NOBODY = 2**22 + 1  # a process id that no process has


def declare_dead(root: Root) -> None:
    """Make the holder of the lease look like a process that has ended, as it does to another machine after a while."""
    lease = read_lease(root)
    if lease is not None:
        dead = replace(lease, process=replace(lease.process, pid=NOBODY))
        root.put_json(LEASE, asdict(dead))


def suspended_at(
    number: int,
    moment: Moment,
    work: Callable[[], Any],
    take_over: Callable[[], Any],
    patch: pytest.MonkeyPatch,
) -> bool:
    """Do ``work``, which is suspended at its ``number``-th change for ``take_over``. Return whether it came that far."""
    changes, is_suspended = itertools.count(), [False]
    sound = Root._before

    def before(root: Root, rel: str | None) -> Callable[[], None]:
        look = sound(root, rel)
        if is_suspended[0] or str(rel).startswith(LEASES):
            return look

        def look_and_be_suspended() -> None:
            is_here = not is_suspended[0] and next(changes) == number
            is_suspended[0] |= is_here
            if is_here and moment == "before its look":
                take_over()
            look()
            if is_here and moment == "after its look":
                take_over()

        return look_and_be_suspended

    with patch.context() as patched:
        patched.setattr(Root, "_before", before)
        # Whoever takes over then does not wait until earlier looks count no more: none counts.
        patched.setattr(leases, "look_seconds", lambda root: 0.0)
        with suppress(StoreError):
            work()
    return is_suspended[0]


def tree(folder: Path) -> dict[str, str]:
    """Relative path → SHA-256 of every file but leases, half-written ones too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and LEASES not in path.parts
    }


def every_suspension(
    prepare: Callable[[Path], None],
    work: Callable[[Path], Any],
    take_over: Callable[[Path], Any],
    patch: pytest.MonkeyPatch,
    folder: Path,
    *,
    step: int = 1,
) -> Iterator[tuple[str, Path]]:
    """Suspend ``work`` at every ``step``-th of its changes while another one does ``take_over``.

    Yields after each: what happened, and the place, which is checked to be as the other one left it, unless ``take_over``
    returns False: it was refused.
    """
    for moment in ("before its look", "after its look"):
        for number in itertools.count(0, step):
            place = folder / f"{moment.split()[0]} {number}" / "place"
            place.parent.mkdir()
            prepare(place)
            left: dict[str, str] = {}

            def overtake(place: Path = place, left: dict[str, str] = left) -> None:
                for held in [*place.rglob(LEASES), *place.parent.rglob(LEASES)]:
                    declare_dead(Root(held.parent))
                if take_over(place) is not False:
                    left.update(tree(place.parent))

            if not suspended_at(number, moment, partial(work, place), overtake, patch):
                break
            what = f"suspended {moment} at change {number}"
            changed = tree(place.parent).items() ^ left.items()
            assert not left or not changed, f"{what}: {changed}"
            yield what, place
