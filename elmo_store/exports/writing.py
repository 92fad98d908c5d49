"""Writing an export's files: each apart, then told to the record, then under its name.

No file is written over: it takes its name on the condition that the name is free. So a run that lost the lease, however late it
wakes, finds its temporary file swept or the name taken, and damages nothing.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from elmo_store.exports.outputs import ExportRefusedError, Output, Record, Standing
from elmo_store.format.markers import ObjectRecord
from elmo_store.storage.data import crc32c_of
from elmo_store.storage.json_values import encoded_json
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.process import scratch_folder


class Writing:
    """An export that writes, by its lease.

    Attributes:
        output: that is written to.
        record: what the record says now.
    """

    def __init__(self, output: Output, holder: LeaseHolder, record: Record) -> None:
        self.record = replace(record, run=holder.run)
        self.output, self._holder = output, holder

    def begin(self, standing: Standing, *, overwrite: bool) -> None:
        """Remove what is to be removed, and put the record; it names the files that are written already."""
        for rel in (*standing.torn, *(standing.whole if overwrite else ())):
            self._holder.check()
            self.output.root.remove(rel)
        if not overwrite and standing.record is not None:
            whole = {rel: standing.record.files[rel] for rel in standing.whole}
            self.record = replace(self.record, files=whole, left_out=standing.record.left_out)
        self._put_record()

    @contextmanager
    def whole_file(self, rel: str, left_out: Mapping[str, int]) -> Iterator[str]:
        """A path on this machine to write ``rel`` to; what was written takes its name when the block ends, nothing on an error.

        ``left_out``: as of `Record`, when the block ends.
        """
        self._holder.check()
        try:
            with self._apart(rel) if self.output.root.is_local else _on_this_machine() as path:
                yield path
                with open(path, "rb") as file:
                    line = ObjectRecord(rel, os.path.getsize(path), crc32c_of(file))
                self.record = replace(self.record, files={**self.record.files, rel: line}, left_out=dict(left_out))
                self._put_record()
                self._take_name(path, line)
        except OSError:
            self._holder.check()  # a file that was swept from under this run: say who has the output now
            raise

    def finish(self, names: Sequence[str]) -> None:
        """Say that it is complete. ExportRefusedError if a file or the record is not there any more as it was written."""
        output = self.output
        output.root.flush()  # `complete` promises all that was written before
        self._holder.check()
        standing = output.examine(self.record.job, names, overwrite=False, deep=False)
        if standing.record != self.record or set(standing.whole) != set(names):
            raise ExportRefusedError(
                f"{output.root.url(output.name)} was changed while it was written: give the same command again"
            )
        self.record = replace(self.record, complete=True, run="")
        self._put_record()

    @contextmanager
    def _apart(self, rel: str) -> Iterator[str]:
        """Where ``rel`` lies on a local disk until it is whole."""
        path = self.output.root.path(self.output.temporary(self._holder.run, rel))
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except FileNotFoundError:  # a run that was pushed aside has just removed the folder above, as it was empty
            os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            yield path
        finally:
            with suppress(FileNotFoundError):
                os.remove(path)

    def _put_record(self) -> None:
        root, name, data = self.output.root, self.output.record, encoded_json(self.record.to_json())
        if not self.output.has_folders:
            self._holder.check()
            root.put(name, data)
            return
        apart = self.output.temporary(self._holder.run, name)
        with self._apart(name):
            root.put_apart(apart, data)
            self._holder.check()
            root.move(apart, name)

    def _take_name(self, path: str, line: ObjectRecord) -> None:
        """Give what lies at ``path`` its name. ExportRefusedError if something else has it."""
        root = self.output.root
        apart = self.output.temporary(self._holder.run, line.path)
        self._holder.check()
        taken = root.move_new(apart, line.path) if self.output.has_folders else root.put_new_file(line.path, path)
        if taken:
            return
        self._holder.check()
        if root.size(line.path) != line.bytes or self.output.crc32c(line.path) != line.crc32c:  # but an answer may be lost
            raise ExportRefusedError(f"{root.url(line.path)} was put there by somebody else while this export was written")


@contextmanager
def _on_this_machine() -> Iterator[str]:
    """A path for a file that is made here and then sent."""
    with scratch_folder() as folder:
        yield str(folder / "file")
