"""The record beside an export: how it was asked for, and each file that it wrote.

A file counts as written when the record has its size and checksum, and it is as they say. The record has them before the file
takes its name, so that every file of ours that stands under its own name can be told from anybody else's.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from elmo_store.exports.formats import FORMATS, Settings
from elmo_store.format.markers import ObjectRecord
from elmo_store.format.typed import converted

RECORD = "export.json"


@dataclass(frozen=True)
class Record:
    """What stands in a record.

    Attributes:
        job: hash of the store and the settings, as JSON; two exports of equal jobs have the same bytes.
        files: name → size and checksum of what was written, or is about to take its name.
        left_out: why a sentence is not in the files → how many.
        counts: sentences and tokens of the store.
        complete: whether all is written; such a record is the same whoever wrote it, and whatever interrupted it.
        run: that writes, until it is complete.
    """

    job: Mapping[str, Any]
    files: Mapping[str, ObjectRecord] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    complete: bool = False
    run: str = ""

    @classmethod
    def parse(cls, value: Any) -> "Record":
        """The record of a JSON object. KeyError, TypeError or ValueError if it is none, or names files that it can't have."""
        job = {name: value[name] for name in JOB_FIELDS}
        if job["format"] not in FORMATS:
            raise ValueError(f"no format {job['format']!r}")
        lines = [converted(line, ObjectRecord) for line in value["files"]]
        left_out = {str(why): int(count) for why, count in dict(value["left_out"]).items()}
        counts = {name: int(value[name]) for name in ("sentences", "tokens")}
        return cls(
            job, {line.path: line for line in lines}, left_out, counts, value["complete"] is True, str(value.get("run", ""))
        )

    def to_json(self) -> dict[str, Any]:
        """The record's JSON object."""
        files = [asdict(line) for _, line in sorted(self.files.items())]
        own = {} if self.complete else {"run": self.run}
        return {
            **self.job,
            **self.counts,
            "left_out": dict(sorted(self.left_out.items())),
            "files": files,
            "complete": self.complete,
            **own,
        }


JOB_FIELDS = ("store_sha256", *asdict(Settings("")))
