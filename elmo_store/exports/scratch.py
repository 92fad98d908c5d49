"""What an export has at its output only while it runs: the lease, and files that are not whole.

Both lie in ``_lease`` and ``_work`` of a folder that is the export's own, or of ``NAME.export`` beside the file that it writes.
"""

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from elmo_store.errors import LeaseLostError
from elmo_store.format.layout import WORK
from elmo_store.storage.filesystems import is_file_server
from elmo_store.storage.lease import LAUNCHER_HEARTBEAT, LEASE, LEASES, WORKER_HEARTBEAT, LeaseHolder
from elmo_store.storage.root import TEMPORARY_PREFIX, Root

_RUN = re.compile(r"[0-9a-f]{32}")
_LEASES = frozenset({LEASE, LAUNCHER_HEARTBEAT, WORKER_HEARTBEAT})


@dataclass(frozen=True)
class Left:
    """What runs have in a scratch folder: names of files, leases among them, and of folders, inner ones first."""

    files: tuple[str, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Scratch:
    """The place of what passes.

    Attributes:
        root: the folder.
        shared: whether finished files lie in it too.
        is_name: whether an export of any format writes a file of this name to the output.
    """

    root: Root
    shared: bool
    is_name: Callable[[str], bool]

    @property
    def has_folders(self) -> bool:
        """Whether its filesystem has folders and moves files; an object store's put is whole by itself."""
        return self.root.is_local or is_file_server(self.root.filesystem)

    def holds(self, rel: str) -> bool:
        """Whether ``rel`` is a lease, a heartbeat, or a temporary file of an export to this output."""
        if rel in _LEASES or rel.startswith(f"{LEASES}/{TEMPORARY_PREFIX}"):
            return True
        work, _, rest = rel.partition("/")
        run, _, name = rest.partition("/")
        return work == WORK and _RUN.fullmatch(run) is not None and self.is_name(name)

    def left(self) -> Left:
        """What is there now."""
        kinds = {rel: kind for folder in (LEASES, WORK) for rel, kind in self._below(folder).items()}
        files = tuple(rel for rel, kind in kinds.items() if kind == "file" and self.holds(rel))
        if not self.has_folders:
            return Left(files, ())
        folders = sorted((rel for rel, kind in kinds.items() if kind == "directory"), key=len, reverse=True)
        if not self.shared and self.root.filesystem.isdir(self.root.path()):
            folders.append("")
        return Left(files, tuple(folders))

    @contextmanager
    def held(self, *, take_over: bool, on_wait: Callable[[str], None]) -> Iterator[LeaseHolder]:
        """The lease, and nothing of runs before: what was swept from under a run can't take its name any more.

        LeaseHeldError if another run has it.
        """
        try:
            with LeaseHolder.take(self.root, uuid.uuid4().hex, take_over=take_over, on_progress=on_wait) as holder:
                self._sweep()
                try:
                    yield holder
                finally:
                    with suppress(OSError, LeaseLostError):
                        holder.check()
                        self._sweep()
                    self._remove_folders([f"{WORK}/{holder.run}", WORK])
        finally:
            self._remove_folders([LEASES, *(() if self.shared else ("",))])

    def _below(self, folder: str) -> dict[str, str]:
        """Name → "file" or "directory" of everything from ``folder`` on, half-written files too."""
        filesystem, base = self.root.filesystem, self.root.path().rstrip("/") + "/"
        filesystem.invalidate_cache()
        try:
            entries = filesystem.find(base + folder, withdirs=True, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {path.removeprefix(base): info["type"] for path, info in entries.items() if path.startswith(base)}

    def _sweep(self) -> None:
        """Remove what is left but the lease. The lease's owner may, nobody else."""
        left = self.left()
        for rel in left.files:
            if rel not in _LEASES:
                self.root.remove(rel)
        self._remove_folders([rel for rel in left.folders if rel not in (LEASES, "")])

    def _remove_folders(self, rels: Sequence[str]) -> None:
        """Remove those of these folders that are empty."""
        for rel in rels if self.has_folders else ():
            with suppress(OSError):
                self.root.filesystem.rmdir(self.root.path(rel))
