"""Where an export is written: whole files only, what stands there already, and what is left to do. Imports storage, errors.

Beside every export stands a small record, ``NAME.export.json`` or ``export.json`` in a folder: of which store it is, how it was
asked for, and whether it is complete. By it the same command again continues, and another one is refused.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmo_store.errors import JobMismatchError, StoreError
from elmo_store.storage import TEMPORARY_PREFIX, Root

RECORD = "export.json"


class ExportRefusedError(StoreError):
    """Something that this export did not write stands where it would write."""


@contextmanager
def whole_file(root: Root, rel: str) -> Iterator[str]:
    """A path on this machine to write ``rel`` to; what was written takes its place when the block ends, nothing on an error."""
    if not root.is_local:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "file")
            yield path
            root.filesystem.put_file(path, root.path(rel))
        return
    final = root.path(rel)
    folder, name = os.path.split(final)
    os.makedirs(folder, exist_ok=True)
    # Always the same name: what a killed run left is written over, not left behind.
    temporary = os.path.join(folder, f"{TEMPORARY_PREFIX}{name}"[:255])
    try:
        yield temporary
        os.replace(temporary, final)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


class Output:
    """The place of one export.

    Attributes:
        root: the folder that the files lie in.
        name: of the file, or how the files' names begin; "" where the folder is the export's own.
    """

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, *, folder: bool) -> None:
        text = os.fspath(url)
        whole = Root(text, storage_options)
        if folder:
            self.root, self.name = whole, ""
        else:
            parent, _, self.name = str(whole).rpartition("/")
            if not self.name or text.endswith("/"):
                raise StoreError(f"{text} names no file: give the name of the file to write")
            self.root = Root(parent or "/", storage_options)

    @property
    def record(self) -> str:
        """Name of the record."""
        return f"{self.name}.{RECORD}" if self.name else RECORD

    def url(self) -> str:
        """As it was asked for."""
        return self.root.url(self.name)

    def begin(self, job: Mapping[str, Any], files: list[str], *, overwrite: bool) -> set[str]:
        """Put the record, or find the same job's; returns those of ``files`` that are written already.

        JobMismatchError if another export stands there, ExportRefusedError if files of somebody else's do.
        """
        there = self._read()
        if overwrite:
            ours = (there or {}).get("files")
            for rel in [*(files if self.name else ()), *(ours if isinstance(ours, list) else ()), self.record]:
                self.root.remove(str(rel))
            there = None
        standing = {rel for rel in files if self.root.exists(rel)} if self.name else {*self.root.list()} - {self.record}
        if there is None:
            if standing:
                raise ExportRefusedError(
                    f"{self.root.url(sorted(standing)[0])} is there already, and no {self.record} says that an export wrote it: "
                    "give another output"
                )
            self.root.put_json(self.record, {**job, "files": files, "complete": False})
            return set()
        different = {key: (there.get(key), value) for key, value in job.items() if there.get(key) != value}
        if different:
            raise JobMismatchError(self.root.url(self.record), different)
        return {*files} & standing

    def finish(self, job: Mapping[str, Any], files: list[str], facts: Mapping[str, Any]) -> None:
        """Say that it is complete."""
        self.root.put_json(self.record, {**job, "files": files, **facts, "complete": True})

    def facts(self) -> dict[str, Any] | None:
        """What the record says if the export is complete."""
        there = self._read()
        return there if there is not None and there.get("complete") is True else None

    def _read(self) -> dict[str, Any] | None:
        try:
            value = self.root.get_json(self.record)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ExportRefusedError(f"{self.root.url(self.record)} can't be read ({error}): give another output") from error
        return value if isinstance(value, dict) else None
