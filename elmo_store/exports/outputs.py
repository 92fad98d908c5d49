"""Where an export is written: what stands there already, whose it is, and what is left to do.

Beside every export stands a small record, ``NAME.export.json`` or ``export.json`` in a folder: how it was asked for, and each
file that it wrote. By it the same command again continues, and another one is refused. A file counts as written when the record
has its size and checksum, and it is as they say. The record has them before the file takes its name, so that every file of ours
that stands under its own name can be told from anybody else's.

ELMoForManyLangs' readers find a model's average and its layers under one prefix. Those are two exports, each with a record of
its own (``PREFIX.ly-1.export.json`` of the average). Each leaves the other's files alone, and is refused beside another store's.

Only while an export runs, its lease (``_lease``) and files that are not whole (``_work``) lie in the scratch folder: the output
where that is a folder, ``NAME.export`` beside the file otherwise; a prefix has one for both, so that they run one at a time.
"""

import os
import posixpath
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from elmo_store.errors import JobMismatchError, LeaseLostError, StoreError
from elmo_store.exports.formats import KNOWN, Settings
from elmo_store.format.layout import ENDED, WORK
from elmo_store.format.markers import ObjectRecord
from elmo_store.format.typed import converted
from elmo_store.storage.data import crc32c_of
from elmo_store.storage.failures import telling
from elmo_store.storage.lease import LAUNCHER_HEARTBEAT, LEASE, LEASES, LeaseHolder
from elmo_store.storage.readable import TEMPORARY_PREFIX
from elmo_store.storage.root import Root

RECORD = "export.json"
_DEFAULTS = asdict(Settings(""))  # of settings that a record of before does not have
AVERAGE = ".ly-1"  # of a prefix's file of one vector that is no layer, as ELMoForManyLangs calls it
OF_VECTORS = frozenset({"layers", "weights", "weight_set"})  # settings that the average and the layers of one prefix differ in
MADE = ".made"  # ends the name of a whole file that a worker leaves
_LEASE_FILES = frozenset({LEASE, LAUNCHER_HEARTBEAT})
_WORKERS_END = re.compile(rf"{ENDED}/[0-9a-f]{{32}}\.json")


def made_name(run: str, rel: str) -> str:
    """Where a worker of ``run`` leaves the whole file ``rel`` of a folder."""
    return f"{WORK}/{run}/{rel}{MADE}"


class ExportRefusedError(StoreError):
    """Something that this export did not write stands where it would write."""


@dataclass(frozen=True)
class Record:
    """What stands in a record."""

    job: Mapping[str, Any]  # hash of the store and the settings, as JSON; two exports of equal jobs have the same bytes
    # name → size and checksum of what was written, or is about to take its name
    files: Mapping[str, ObjectRecord] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)  # why a sentence is not in the files → how many
    counts: Mapping[str, int] = field(default_factory=dict)  # sentences and tokens of the store
    complete: bool = False  # whether all is written; such a record is the same whoever wrote it, and whatever interrupted it
    run: str = ""  # that writes, until it is complete

    @classmethod
    def parse(cls, value: Any) -> "Record":
        """The record of a JSON object. KeyError, TypeError or ValueError if it is none, or names files that it can't have."""
        job = {"store_sha256": value["store_sha256"]} | {name: value.get(name, default) for name, default in _DEFAULTS.items()}
        if job["format"] not in KNOWN:
            raise ValueError(f"no format {job['format']!r}")
        lines = [converted(line, ObjectRecord) for line in value["files"]]
        left_out = {str(why): int(count) for why, count in dict(value["left_out"]).items()}
        counts = {name: int(value[name]) for name in ("sentences", "tokens")}
        files = {line.path: line for line in lines}
        return cls(job, files, left_out, counts, value["complete"] is True, str(value.get("run", "")))

    def to_json(self) -> dict[str, Any]:
        """The record's JSON object."""
        return {
            **self.job,
            **self.counts,
            "left_out": dict(sorted(self.left_out.items())),
            "files": [asdict(line) for _, line in sorted(self.files.items())],
            "complete": self.complete,
            **({} if self.complete else {"run": self.run}),
        }


@dataclass(frozen=True)
class Standing:
    """What stands at an output."""

    record: Record | None  # the record, None without one
    whole: tuple[str, ...] = ()  # names of the files that are as it says
    torn: tuple[str, ...] = ()  # of those that an interrupted upload left short

    def complete(self, names: Sequence[str]) -> Record | None:
        """The record if it says that the export is complete, and all of these files are there."""
        if self.record is None or not self.record.complete or {*names} != {*self.whole}:
            return None
        return self.record


class Output:
    """The place of one export.

    Attributes:
        root: the folder that the files lie in.
        name: of the file, or how the files' names begin; "" where the folder is the export's own.
        scratch: the folder of what an export has here only while it runs.
        average: whether it is of a prefix's average, not of its layers.
    """

    def __init__(
        self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, *, folder: bool, average: bool = False
    ) -> None:
        text, self.average = os.fspath(url), average
        whole = Root(text, storage_options)
        if folder:
            self.root, self.name, self.scratch = whole, "", whole
            return
        parent, _, self.name = str(whole).rpartition("/")
        if not self.name or text.endswith("/"):
            raise StoreError(f"{text} names no file: give the name of the file to write")
        self.root, self.scratch = Root(parent or "/", storage_options), Root(f"{whole}.export", storage_options)

    @property
    def record(self) -> str:
        """Name of the record."""
        return self._record_name(self.average)

    @property
    def has_folders(self) -> bool:
        """Whether its filesystem has folders and moves files; an object store's put is whole by itself."""
        return self.root.is_local

    def temporary(self, run: str, rel: str) -> str:
        """Where ``rel`` of `root` is written by ``run``, until it is whole: in the scratch folder."""
        return f"{self.name}.export/{WORK}/{run}/{rel}" if self.name else f"{WORK}/{run}/{rel}"

    def examine(self, job: Mapping[str, Any], names: Iterable[str], *, overwrite: bool, deep: bool) -> Standing:
        """What stands here, if this export may write here; nothing is changed.

        Args:
            job: as of `Record`.
            names: of the files that this export has.
            overwrite: whether what stands here is to be removed.
            deep: look at checksums too, not at sizes alone; of remote files only before they are removed: to read one costs as
                much as to write it.

        Raises:
            JobMismatchError: another export stands here.
            ExportRefusedError: a file stands here of which no record says that an export wrote it, as it is.
        """
        names = set(names)
        if self.name in names and self.has_folders and self.root.calls.isdir(self.root.path(self.name)):
            raise ExportRefusedError(f"{self.root.url(self.name)} is a folder: name a file")
        if KNOWN[job["format"]].prefix:  # layers of another run, or model, beside these would pass for this export's
            layer_files = self._layer_files()
            others = {rel for rel in layer_files if self._is_average(rel) is not self.average}
            self._check_others(job, others, deep=deep and self.root.is_local)
            names |= layer_files - others
        standing = self._standing(self.average, names, deep=deep and (overwrite or self.root.is_local))
        if standing.record is not None and not overwrite and (different := _different(standing.record.job, job)):
            raise JobMismatchError(self.root.url(self.record), different)
        return standing

    def _check_others(self, job: Mapping[str, Any], names: Iterable[str], *, deep: bool) -> None:
        """ExportRefusedError if the prefix's other files, ``names``, are not an export's, or are of another store or settings."""
        record = self._standing(not self.average, names, deep=deep).record
        different = {} if record is None else _different(record.job, job)
        fields = [f"{name} {values[0]!r}, not {values[1]!r}" for name, values in different.items() if name not in OF_VECTORS]
        if fields:
            url = self.root.url(self._record_name(not self.average))
            raise ExportRefusedError(
                f"{url} says that this prefix has files of another export ({'; '.join(fields)}): "
                "give another output, or remove them and that record"
            )

    def _standing(self, average: bool, names: Iterable[str], *, deep: bool) -> Standing:
        """What stands here of ``names`` and of the files that the record names, the average's or the other one.

        ExportRefusedError as of `examine`.
        """
        sizes = self._sizes(names)  # first: a file takes its name after the record has it
        record, record_name = self._read(average), self._record_name(average)
        lines = {} if record is None else record.files
        if self.name:
            sizes |= self._sizes([rel for rel in lines if rel not in sizes])
        whole, torn = [], []
        for rel, size in sizes.items():
            line = lines.get(rel)
            if line is None:
                raise ExportRefusedError(
                    f"{self.root.url(rel)} is there already, and no {record_name} says that an export wrote it: "
                    "give another output"
                )
            if size < line.bytes and not self.has_folders:
                torn.append(rel)
            elif size != line.bytes or (deep and self.crc32c(rel) != line.crc32c):
                raise ExportRefusedError(
                    f"{self.root.url(rel)} is not what the export wrote, by its size or checksum in {record_name}: "
                    "remove that file, then the command that wrote it writes it again"
                )
            else:
                whole.append(rel)
        return Standing(record, tuple(whole), tuple(torn))

    def crc32c(self, rel: str) -> str:
        """CRC-32C of ``rel``, in bounded memory wherever it lies."""
        with telling(self.root.url(rel)), self.root.filesystem.open(self.root.path(rel), "rb") as file:
            return crc32c_of(file)

    @contextmanager
    def held(self, *, take_over: bool, on_wait: Callable[[str], None]) -> Iterator[LeaseHolder]:
        """The lease, and nothing of runs before: what was swept from under a run can't take its name any more.

        LeaseHeldError if another run has it.
        """
        try:
            with LeaseHolder.take(self.scratch, uuid.uuid4().hex, take_over=take_over, on_progress=on_wait) as holder:
                self._sweep()
                try:
                    yield holder
                finally:
                    with suppress(OSError, LeaseLostError):
                        holder.check()
                        self._sweep()
                    self._remove_folders([f"{WORK}/{holder.run}", WORK])
        finally:
            self._remove_folders([LEASES, ""] if self.name else [LEASES])

    def leftovers(self) -> tuple[list[str], list[str]]:
        """What runs have in the scratch folder: names of files, leases among them, and of folders, inner ones first."""
        calls, base = self.scratch.calls, self.scratch.path().rstrip("/") + "/"
        calls.invalidate_cache()
        kinds: dict[str, str] = {}
        for folder in (LEASES, WORK):
            with suppress(FileNotFoundError, NotADirectoryError):
                entries = calls.find(base + folder, withdirs=True, detail=True)
                kinds |= {path.removeprefix(base): info["type"] for path, info in entries.items() if path.startswith(base)}
        files = [rel for rel, kind in kinds.items() if kind == "file" and self._is_scratch(rel)]
        if not self.has_folders:
            return files, []
        folders = sorted((rel for rel, kind in kinds.items() if kind == "directory"), key=len, reverse=True)
        if self.name and calls.isdir(self.scratch.path()):
            folders.append("")
        return files, folders

    def _record_name(self, average: bool) -> str:
        return f"{self.name}{AVERAGE if average else ''}.{RECORD}" if self.name else RECORD

    def _is_average(self, rel: str) -> bool:
        return rel == f"{self.name}{AVERAGE}.hdf5"

    def _read(self, average: bool) -> Record | None:
        """A record; None without one. ExportRefusedError if it can't be read, or names files that no such export writes here."""
        name = self._record_name(average)
        url = self.root.url(name)
        try:
            record = Record.parse(self.root.get_json(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ExportRefusedError(
                f"{url} is no record of an export that this elmo-store reads ({error!r}): "
                "give another output, or remove it and its files"
            ) from error
        form = KNOWN[record.job["format"]]
        for rel in record.files:
            of_this = form.names(rel, self.name) and self._is_average(rel) is average
            if form.folder is bool(self.name) or not of_this:
                raise ExportRefusedError(f"{url} names {rel}, which no export as {form.name} writes here: give another output")
        return record

    def _sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Name → size of each of ``names`` that is there; in a folder of its own of all that is there, but record and scratch."""
        if self.name:
            return {rel: size for rel in names if (size := self.root.size(rel)) is not None}
        return {rel: size for rel, size in self.root.sizes().items() if rel != self.record and not self._is_scratch(rel)}

    def _layer_files(self) -> set[str]:
        """Names of the files of single layers, or their average, that stand at this prefix, whoever wrote them."""
        self.root.calls.invalidate_cache()
        try:
            names = [posixpath.basename(path) for path in self.root.calls.ls(self.root.path(), detail=False)]
        except FileNotFoundError:
            return set()
        return {name for name in names if re.fullmatch(rf"{re.escape(self.name)}\.ly(-1|[0-9]+)\.hdf5", name)}

    def _is_scratch(self, rel: str) -> bool:
        """Whether ``rel`` of the scratch folder is a lease, a heartbeat, a dead worker's end, or an export's temporary file."""
        if rel in _LEASE_FILES or rel.startswith(f"{LEASES}/{TEMPORARY_PREFIX}") or _WORKERS_END.fullmatch(rel):
            return True
        temporary = re.fullmatch(rf"{WORK}/[0-9a-f]{{32}}/(.+)", rel, re.DOTALL)
        if temporary is None:
            return False
        written = temporary[1].removesuffix(MADE)
        records = {self._record_name(False), self._record_name(True)}
        if posixpath.basename(written).startswith(TEMPORARY_PREFIX):  # that a killed worker was making
            return not self.name
        return written in records or any(form.names(written, self.name) for form in KNOWN.values())

    def _sweep(self) -> None:
        """Remove what is left but the lease. The lease's owner may, nobody else."""
        files, folders = self.leftovers()
        for rel in files:
            if rel not in _LEASE_FILES:
                self.scratch.remove(rel)
        self._remove_folders([rel for rel in folders if rel not in (LEASES, "")])

    def _remove_folders(self, rels: Sequence[str]) -> None:
        """Remove those of these folders that are empty."""
        for rel in rels if self.has_folders else ():
            with suppress(OSError):
                self.scratch.calls.rmdir(self.scratch.path(rel))


def _different(there: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (there[key], value) for key, value in asked.items() if there[key] != value}
