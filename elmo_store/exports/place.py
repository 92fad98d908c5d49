"""Where an export is written: beside its place until it is whole, then under its names, with a record.

The record, ``NAME.export.json`` (``export.json`` in a folder), names every file with its size and CRC32C. It is complete once
every file has its name; ``overwrite`` replaces what a complete record names. An incomplete record names what a killed run left,
which the next run removes. Nothing else is removed, and no file is written over.

A folder on a local disk is renamed whole. Other files take their names one after the other, each after the record names it. The
lease (``_lease``) and unfinished files (``_work``) of a running export lie in ``NAME.export`` beside it; of a folder on an
object store, in its ``_export``.
"""

import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elmo_store.errors import TAKE_OVER, ExportRefusedError, LeaseHeldError, LeaseLostError
from elmo_store.exports.formats import Format
from elmo_store.format.layout import WORK
from elmo_store.format.markers import ObjectRecord
from elmo_store.format.typed import converted
from elmo_store.storage.data import crc32c_of
from elmo_store.storage.lease import LEASES, LeaseHolder
from elmo_store.storage.local_disk import disk_full, is_full
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root

RECORD = "export.json"
SCRATCH = "_export"
_log = logging.getLogger(__name__)


class Place:
    """The place of one export.

    Attributes:
        name: of the file or folder, or how the files' names begin.
        root: the folder that the files lie in.
        scratch: where the lease and unfinished files lie.
        record_name: of the record, in `root`.
        renamed: whether all files are made beside the place, which is then renamed.
    """

    def __init__(
        self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, form: Format
    ) -> None:
        whole = Root(os.fspath(url), storage_options)
        parent, _, self.name = str(whole).rpartition("/")
        self._is_folder = form.folder
        self.renamed = form.folder and whole.is_local
        self.root = whole if form.folder else Root(parent or "/", storage_options)
        in_folder = form.folder and not whole.is_local  # what is beside a bucket is another bucket
        self.scratch = Root(
            f"{whole}/{SCRATCH}" if in_folder else f"{whole}.export", storage_options
        )
        self.record_name = RECORD if form.folder else f"{self.name}.{RECORD}"
        if whole.is_local and form.folder and os.path.isfile(whole.path()):
            raise NotADirectoryError(f"{whole} is a file: name a folder")
        if whole.is_local and not (form.folder or form.prefix) and os.path.isdir(whole.path()):
            raise IsADirectoryError(f"{whole} is a folder: name a file")

    def check(self, names: Sequence[str], *, overwrite: bool) -> dict[str, ObjectRecord]:
        """What may be removed before the files ``names`` are written: the files that a record names, by their names.

        ExportRefusedError: there is a finished export, a file that no record names, or one that differs from its record.
        """
        files, complete = self._record()
        if complete and not overwrite:
            raise ExportRefusedError(
                f"{self.root.url(self.record_name)} says that a finished export is here: "
                "pass another `output`, or add `overwrite=True` to replace it"
            )
        found = (
            self.root.list()
            if self._is_folder
            else filter(self.root.exists, sorted({*names, *files}))
        )
        for rel in found:
            if rel == self.record_name or rel.startswith(f"{SCRATCH}/"):
                continue
            if rel not in files:
                raise ExportRefusedError(
                    f"{self.root.url(rel)} exists, and no {self.record_name} says that an export wrote it: give another output"
                )
            if not self.holds(files[rel]):
                raise ExportRefusedError(
                    f"{self.root.url(rel)} is not what the export wrote, by its size or checksum in {self.record_name}: "
                    "move it away, or give another output"
                )
        return files

    def _record(self) -> tuple[dict[str, ObjectRecord], bool]:
        """The files of the record, none without one, and whether it is complete. ExportRefusedError if it can't be read."""
        try:
            value = self.root.get_json(self.record_name)
            lines = [converted(line, ObjectRecord) for line in value["files"]]
            return {line.path: line for line in lines}, value["complete"] is True
        except (FileNotFoundError, NotADirectoryError):
            return {}, False
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            url = self.root.url(self.record_name)
            raise ExportRefusedError(
                f"{url} is not a record of an export ({error!r}): give another output"
            ) from error

    def holds(self, line: ObjectRecord) -> bool:
        """Whether a file is what ``line`` says; it is read in bounded memory wherever it lies."""
        if self.root.size(line.path) != line.bytes:
            return False
        with self.root.calls.open(self.root.path(line.path), "rb") as file:
            return crc32c_of(file) == line.crc32c

    @contextmanager
    def writing(
        self, about: Mapping[str, Any], names: Sequence[str], *, overwrite: bool, take_over: bool
    ) -> Iterator["Writing"]:
        """Writing to here, by the lease; what a killed run left is removed first. Errors as of `check` and `LeaseHolder.take`.

        ``about``: what the record says of the store and the settings, for people.
        """
        try:
            holder = LeaseHolder.take(
                self.scratch, uuid.uuid4().hex, take_over=take_over, on_progress=_log.warning
            )
        except LeaseHeldError as error:
            raise LeaseHeldError(error.where, error.holder, TAKE_OVER) from error
        try:
            with holder:
                unfinished = (
                    self.scratch.path(f"{WORK}/{holder.run}") if self.scratch.is_local else None
                )
                scratch = holder.writable()
                scratch.remove_tree(WORK)
                if (
                    not self._is_folder
                ):  # by runs that were killed, or lost the lease and may wake yet
                    root = holder.writable(self.root)
                    root.remove_unfinished_of(self.record_name, *names)
                try:
                    with (
                        scratch_folder() if unfinished is None else nullcontext(unfinished) as stage
                    ):
                        yield Writing(
                            self, holder, str(stage), about, self.check(names, overwrite=overwrite)
                        )
                except OSError as error:
                    holder.check()  # files that were swept from under this run: say who has the place now
                    if is_full(error):
                        raise disk_full(unfinished or tempfile.gettempdir()) from error
                    raise
                finally:
                    with suppress(OSError, LeaseLostError):
                        scratch.remove_tree(WORK)
                        scratch.sweep(LEASES)
        finally:
            if not self.scratch.list(
                LEASES
            ):  # an empty folder of a run that holds it is about to be written to
                self.scratch.remove_empty("")


class Writing:
    """A run that writes an export to ``place``, by its lease; ``run`` is its name, ``scratch`` its place for unfinished files."""

    def __init__(
        self,
        place: Place,
        holder: LeaseHolder,
        stage: str,
        about: Mapping[str, Any],
        replaced: Mapping[str, ObjectRecord],
    ) -> None:
        """``stage``: a folder of this machine for unfinished files, of a local place on the same disk."""
        self.place, self.run = place, holder.run
        self.scratch = holder.writable()
        self._root = holder.writable(place.root)
        self._stage_root = holder.writable(Root(stage))
        self._stage, self._about = stage, about
        self._replaced: Mapping[str, ObjectRecord] | None = replaced
        self._files: dict[str, ObjectRecord] = {}

    def path(self, rel: str) -> str:
        """Where to write the file ``rel``."""
        path = os.path.join(self._stage, *rel.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def publish(self, names: Sequence[str]) -> None:
        """Give written files their names; those of a place that is renamed wait for `finish`. LeaseLostError."""
        for rel in names:
            path = self.path(rel)
            self._files[rel] = ObjectRecord(
                rel, os.path.getsize(path), Root(self._stage).crc32c(rel)
            )
        if self.place.renamed:
            return
        root = self._root
        self._remove_replaced()
        self._put_record(root, {}, complete=False)
        for rel in names:
            path = self.path(rel)
            taken = root.put_new(rel, Path(path))
            os.remove(path)
            if not taken and not self.place.holds(
                self._files[rel]
            ):  # a put whose answer was lost has put the same bytes
                raise ExportRefusedError(
                    f"{root.url(rel)} was put there while this export was written: give another output"
                )

    def finish(self, left_out: Mapping[str, int]) -> None:
        """Complete the record, and rename the place where it is renamed. LeaseLostError.

        ``left_out``: why a sentence is not in the files → how many.
        """
        place, stage = self.place, self._stage_root
        if not place.renamed:
            self._root.flush()  # a complete record promises all files
            self._put_record(self._root, left_out, complete=True)
            return
        self._put_record(stage, left_out, complete=True)
        stage.flush()
        self._remove_replaced()
        try:
            os.rename(self._stage, place.root.path())  # onto no folder, or an empty one
        except OSError as error:
            raise ExportRefusedError(
                f"{place.root} was changed while this export was written: give another output"
            ) from error

    def _put_record(self, root: Root, left_out: Mapping[str, int], *, complete: bool) -> None:
        files = [asdict(line) for _, line in sorted(self._files.items())]
        said = {
            **self._about,
            "left_out": dict(sorted(left_out.items())),
            "files": files,
            "complete": complete,
        }
        root.put_json(self.place.record_name, said)

    def _remove_replaced(self) -> None:
        """Remove what this export replaces, once it has something to put there.

        Nothing is removed where no record was found: what is there now is another run's, and this one has lost the lease.
        """
        record = self.place.record_name
        if self._replaced is not None and self._root.exists(record):
            self._root.remove(*self._replaced, record)
        self._replaced = None
