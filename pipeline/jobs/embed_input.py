"""The input of an ``embed`` job at the door: how it is read, its splits, which options its formats use, what is on stdin."""

import hashlib
import sys
import tempfile
from collections.abc import Sequence
from typing import BinaryIO

from msgspec.structs import replace

from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.options import USED_BY, EmbedOptions, unused_options
from transforms.inputs.records import FileIdentity, InputError, ReadSettings, ReadTask, Split, Stream, WholeFile, split_as
from transforms.stages.split import plan_splits
from transforms.stages.unpack import unpack_local

STDIN = "-"


def read_settings(options: EmbedOptions) -> ReadSettings:
    """How the input is read; the reader's own defaults where nothing was asked for."""
    asked = {name: getattr(options, name) for name in (*USED_BY, "max_sentences", "sample", "on_bad_file")}
    if asked["split_sentences"] is not None:
        asked["split_sentences"] = asked["split_sentences"] == "yes"
    return ReadSettings(**{name: value for name, value in asked.items() if value is not None})


class Input:
    """The splits of a job. What came from standard input is held in a local file until there is a store to put it into."""

    def __init__(self, options: EmbedOptions, stdin: BinaryIO | None = None) -> None:
        """CommandError for an input that can't be read, or an option that no format of it uses."""
        self.settings = read_settings(options)
        self._spooled: tempfile._TemporaryFileWrapper[bytes] | None = None
        try:
            if STDIN in options.inputs:
                self.splits: list[Split] = [self._spool(options, stdin or sys.stdin.buffer)]
            else:
                self.splits = plan_splits(
                    options.inputs,
                    options.input_format,
                    self.settings,
                    storage_options=options.input_storage_options,
                    exclude=[options.output] if options.output else [],
                )
        except InputError as error:
            raise CommandError(Exit.BAD_LOCATION, "\n".join(map(str, (error, *error.also)))) from error
        for problem in unused_options(options, (split.format for split in self.splits)):
            raise CommandError(Exit.BAD_USAGE, problem)

    @property
    def n_bytes(self) -> int:
        """Bytes of all its files, as stored."""
        return sum({split.url: split.identity.size for split in self.splits}.values())

    @property
    def has_streams(self) -> bool:
        """Whether some of it must be unpacked before it is read."""
        return any(isinstance(split, Stream) for split in self.splits)

    def readable_here(self) -> Sequence[Split]:
        """The splits as this process can read them at once."""
        whole = [split_as(WholeFile, split) if isinstance(split, Stream) else split for split in self.splits]
        if self._spooled is None:
            return whole
        return [replace(split, url=self._spooled.name, identity=_identity_here(self._spooled.name)) for split in whole]

    def put_stdin(self, root: Root, tasks: Sequence[ReadTask]) -> None:
        """Put what came from standard input into the store, where workers find it."""
        if self._spooled is not None:
            (task,) = tasks
            unpack_local(self._spooled.name, _identity_here(self._spooled.name), task, root, self.settings)

    def _spool(self, options: EmbedOptions, stdin: BinaryIO) -> Stream:
        if len(options.inputs) > 1:
            raise CommandError(Exit.BAD_USAGE, "- (standard input) stands alone: name files, or pipe all of them in")
        kind = "text" if options.input_format == "auto" else options.input_format
        if kind == "parquet":
            raise CommandError(
                Exit.BAD_USAGE, "Parquet can't be read from standard input, its end comes first: write it to a file"
            )
        self._spooled = tempfile.NamedTemporaryFile(prefix="elmo-store-stdin-")  # noqa: SIM115 (lives as long as the input)
        digest, size = hashlib.sha256(), 0
        while data := stdin.read(1 << 20):
            digest.update(data)
            size += len(data)
            self._spooled.write(data)
        self._spooled.flush()
        return Stream(0, "stdin", kind, FileIdentity(size, f"sha256={digest.hexdigest()}"))


def _identity_here(path: str) -> FileIdentity:
    from transforms.inputs.files import find_files

    return find_files([path])[0].identity
