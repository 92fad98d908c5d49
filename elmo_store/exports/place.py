"""Where an export is written: beside its place until it is whole, then under its names, with a record.

The record, ``NAME.export.json`` (``export.json`` in a folder), names every file with its size and CRC32C. It is complete once
every file has its name; ``overwrite`` replaces what a complete record names. An incomplete record names what a killed run left,
which the next run removes. Nothing else is removed, and no file is written over.

A folder on a local disk is renamed whole. Other files take their names one after the other, each after the record names it. The
lease (``_lease``) and unfinished files (``_work``) of a running export lie in ``NAME.export`` beside it; of a folder on an
object store, in its ``_export``.
"""

import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elmo_store.errors import TAKE_OVER, LeaseHeldError, LeaseLostError, StoreError
from elmo_store.exports.formats import KNOWN, Format
from elmo_store.format.layout import WORK
from elmo_store.format.markers import ObjectRecord
from elmo_store.format.typed import converted
from elmo_store.storage.data import crc32c_of, crc32c_of_file
from elmo_store.storage.lease import LEASES, LeaseHolder
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root

RECORD = "export.json"
SCRATCH = "_export"


class ExportRefusedError(StoreError):
    """The place of an export holds something that this export may not replace."""


@dataclass
class Record:
    """What a record says."""

    about: Mapping[str, Any] = field(default_factory=dict)  # the store and the settings, for people
    files: dict[str, ObjectRecord] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)  # why a sentence is not in the files → how many
    complete: bool = False

    def to_json(self) -> dict[str, Any]:
        """The record's JSON object."""
        files = [asdict(line) for _, line in sorted(self.files.items())]
        return {**self.about, "left_out": dict(sorted(self.left_out.items())), "files": files, "complete": self.complete}


class Place:
    """The place of one export.

    Attributes:
        name: of the file or folder, or how the files' names begin.
        root: the folder that the files lie in.
        scratch: where the lease and unfinished files lie.
        record_name: of the record, in `root`.
        renamed: whether all files are made beside the place, which is then renamed.
    """

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, form: Format) -> None:
        text = os.fspath(url)
        whole = Root(text, storage_options)
        parent, _, self.name = str(whole).rpartition("/")
        if not form.folder and (not self.name or text.endswith("/")):
            raise StoreError(f"{text} names no file: give the name of the file to write")
        self._form = form
        self.renamed = form.folder and whole.is_local
        self.root = whole if form.folder else Root(parent or "/", storage_options)
        in_folder = form.folder and not whole.is_local  # what is beside a bucket is another bucket
        self.scratch = Root(f"{whole}/{SCRATCH}" if in_folder else f"{whole}.export", storage_options)
        self.record_name = RECORD if form.folder else f"{self.name}.{RECORD}"
        if whole.is_local and form.folder and os.path.isfile(whole.path()):
            raise ExportRefusedError(f"{text} is a file: name a folder")
        if whole.is_local and not (form.folder or form.prefix) and os.path.isdir(whole.path()):
            raise ExportRefusedError(f"{text} is a folder: name a file")

    def check(self, names: Sequence[str], *, overwrite: bool) -> Record | None:
        """The record of the files that are here and may be removed, None without one.

        Args:
            names: of the files to write.
            overwrite: whether a finished export may be replaced.

        Raises:
            ExportRefusedError: there is a finished export, a file that no record names, or one that differs from its record.
        """
        if not self._form.folder:
            for name in (self.record_name, *names):  # half-written by runs that were killed
                self.root.sweep(name=name)
        record = self._record()
        if record is not None and record.complete and not overwrite:
            raise ExportRefusedError(
                f"{self.root.url(self.record_name)} says that a finished export is here: "
                "give another output, or add --overwrite to replace it"
            )
        lines = {} if record is None else record.files
        for rel, size in self._sizes({*names, *lines}).items():
            line = lines.get(rel)
            if line is None:
                raise ExportRefusedError(
                    f"{self.root.url(rel)} exists, and no {self.record_name} says that an export wrote it: give another output"
                )
            if size != line.bytes or self.crc32c(rel) != line.crc32c:
                raise ExportRefusedError(
                    f"{self.root.url(rel)} is not what the export wrote, by its size or checksum in {self.record_name}: "
                    "move it away, or give another output"
                )
        return record

    def _record(self) -> Record | None:
        """The record; None without one. ExportRefusedError if it can't be read, or names files that no export writes here."""
        url = self.root.url(self.record_name)
        try:
            value = self.root.get_json(self.record_name)
            lines = [converted(line, ObjectRecord) for line in value["files"]]
            complete = value["complete"] is True
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ExportRefusedError(f"{url} is not a record of an export ({error!r}): give another output") from error
        if foreign := [line.path for line in lines if not self._writes(line.path)]:
            raise ExportRefusedError(f"{url} names {foreign[0]}, which no export writes here: give another output")
        return Record(files={line.path: line for line in lines}, complete=complete)

    def _writes(self, rel: str) -> bool:
        """Whether some export to this place writes a file ``rel``."""
        if self._form.folder:
            return any(form.names(rel) for form in KNOWN.values())
        return rel == self.name or (rel.startswith(f"{self.name}.ly") and rel.endswith(".hdf5") and "/" not in rel)

    def _sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Name → size of each of ``names`` that exists, and of all else that this place must not hold."""
        if self._form.folder:
            sizes = self.root.sizes()
            sizes.pop(self.record_name, None)
            return sizes if self.renamed else {rel: n for rel, n in sizes.items() if not rel.startswith(f"{SCRATCH}/")}
        if self._form.prefix:  # layers of another model beside these would pass for this export's
            layer = re.compile(rf"{re.escape(self.name)}\.ly(-1|[0-9]+)\.hdf5")
            names = {*names, *filter(layer.fullmatch, self.root.names(""))}
        return {rel: size for rel in sorted(names) if (size := self.root.size(rel)) is not None}

    def crc32c(self, rel: str) -> str:
        """Checksum of ``rel``, in bounded memory wherever it lies."""
        with self.root.calls.open(self.root.path(rel), "rb") as file:
            return crc32c_of(file)

    @contextmanager
    def writing(
        self, record: Record, names: Sequence[str], *, overwrite: bool, take_over: bool, on_wait: Callable[[str], None]
    ) -> Iterator["Writing"]:
        """Writing to here, by the lease; what a killed run left is removed first. Errors as of `check` and `LeaseHolder.take`."""
        with self._held(take_over=take_over, on_wait=on_wait) as holder, self._stage(holder.run) as stage:
            try:
                yield Writing(self, holder, stage, record, self.check(names, overwrite=overwrite))
            except OSError:
                holder.check()  # files that were swept from under this run: say who has the place now
                raise

    @contextmanager
    def _held(self, *, take_over: bool, on_wait: Callable[[str], None]) -> Iterator[LeaseHolder]:
        """The lease; before and after, what runs left beside the place is removed."""
        try:
            try:
                taken = LeaseHolder.take(self.scratch, uuid.uuid4().hex, take_over=take_over, on_progress=on_wait)
            except LeaseHeldError as error:
                raise LeaseHeldError(error.where, error.holder, TAKE_OVER) from error
            with taken as holder:
                self._sweep()
                try:
                    yield holder
                finally:
                    with suppress(OSError, LeaseLostError):
                        holder.check()
                        self._sweep()
        finally:
            if not self.scratch.list(LEASES):  # an empty folder of a run that holds it is about to be written to
                self.scratch.remove_empty("")

    def _sweep(self) -> None:
        self.scratch.remove_tree(WORK)
        self.scratch.sweep(LEASES)

    @contextmanager
    def _stage(self, run: str) -> Iterator[str]:
        """A folder of this machine for unfinished files: of a local place on the same disk."""
        if self.scratch.is_local:
            yield self.scratch.path(f"{WORK}/{run}")
        else:
            with scratch_folder() as folder:
                yield str(folder)


class Writing:
    """A run that writes an export to ``place``, by its lease.

    Attributes:
        run: its name.
        record: of what it has written.
    """

    def __init__(self, place: Place, holder: LeaseHolder, stage: str, record: Record, replaced: Record | None) -> None:
        self.place, self.run, self.record = place, holder.run, record
        self._holder, self._stage, self._replaced = holder, stage, replaced

    def path(self, rel: str) -> str:
        """Where to write the file ``rel``."""
        path = os.path.join(self._stage, *rel.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def publish(self, names: Iterable[str]) -> None:
        """Give written files their names; those of a place that is renamed wait for `finish`. LeaseLostError."""
        for rel in names:
            path = self.path(rel)
            self.record.files[rel] = ObjectRecord(rel, os.path.getsize(path), crc32c_of_file(path))
        if self.place.renamed:
            return
        self._remove_replaced()
        self.place.root.put_json(self.place.record_name, self.record.to_json())
        for rel in names:
            self._take_name(self.record.files[rel])

    def finish(self, left_out: Mapping[str, int]) -> None:
        """Complete the record, and rename the place where it is renamed. LeaseLostError."""
        place = self.place
        self.record.left_out, self.record.complete = left_out, True
        if not place.renamed:
            place.root.flush()  # a complete record promises all files
            self._holder.check()
            place.root.put_json(place.record_name, self.record.to_json())
            return
        stage = Root(self._stage)
        stage.put_json(place.record_name, self.record.to_json())
        stage.flush()
        self._remove_replaced()
        try:
            os.rename(self._stage, place.root.path())  # onto no folder, or an empty one
        except OSError as error:
            raise ExportRefusedError(f"{place.root} was changed while this export was written: give another output") from error

    def _remove_replaced(self) -> None:
        """Remove what this export replaces, once it has something to put there."""
        self._holder.check()
        if self._replaced is not None:
            self.place.root.remove(*self._replaced.files, self.place.record_name)
        self._replaced = None

    def _take_name(self, line: ObjectRecord) -> None:
        root, path = self.place.root, self.path(line.path)
        self._holder.check()
        taken = root.put_new(line.path, Path(path))
        os.remove(path)
        # A put whose answer was lost has put the same bytes.
        if not taken and (root.size(line.path) != line.bytes or self.place.crc32c(line.path) != line.crc32c):
            raise ExportRefusedError(f"{root.url(line.path)} was put there while this export was written: give another output")
