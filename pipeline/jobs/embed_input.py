"""The input of a job: found, cut into splits, and standard input held in a file until there is a store to put it into."""

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from elmo_store.errors import StoreError
from elmo_store.format.fields import KeptField
from elmo_store.format.version import newest
from elmo_store.storage.location import Location
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.signals import say
from pipeline.cli.terminal import in_line
from pipeline.jobs.spec import EmbedOptions, unused_options
from transforms.inputs.byte_source import PIPED_BYTES, piped_paths
from transforms.inputs.records import FileIdentity, InputError, ReadSettings, Split
from transforms.readers import ROWS
from transforms.readers.field_sample import find_fields
from transforms.stages.split import plan_splits

STDIN = "-"


@dataclass(frozen=True)
class Input:
    """The splits of a job, and how they are read. ``stdin``: of the local file with what came from standard input."""

    splits: Sequence[Split]
    settings: ReadSettings
    storage_options: Mapping[str, Any] | None = field(repr=False)
    stdin: Split | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of all its files, as stored."""
        return sum({split.url: split.identity.size for split in self.splits}.values())

    def readable_here(self) -> Sequence[Split]:
        """The splits as this process can read them at once."""
        return self.splits if self.stdin is None else [self.stdin]

    def put_stdin(self, root: Root) -> None:
        """Put what came from standard input into the store, where workers find it."""
        if self.stdin is not None:
            with open(self.stdin.url, "rb") as file:
                for path in piped_paths(self.n_bytes):
                    root.put(path, file.read(PIPED_BYTES))


@contextmanager
def opened_input(options: EmbedOptions) -> Iterator[Input]:
    """The input of a job, within the block. CommandError if no format of it uses an option, and for every InputError within."""
    with ExitStack() as stack:
        spooled = (
            stack.enter_context(scratch_folder()) / "stdin" if STDIN in options.inputs else None
        )
        try:
            source = _listed(options) if spooled is None else _from_stdin(options, spooled)
            for problem in unused_options(options, (split.format for split in source.splits)):
                raise CommandError(Exit.BAD_USAGE, problem)
            yield _with_fields(source, options)
        except InputError as error:
            message = "\n".join(map(str, (error, *error.also)))
            raise CommandError(Exit.BAD_LOCATION, message.replace(str(spooled), "stdin")) from error


def _listed(options: EmbedOptions) -> Input:
    settings, storage_options = (
        ReadSettings(**options.read_settings()),
        options.input_storage_options,
    )
    # A folder of the input may hold the output.
    exclude = [Location("output", options.place, options.storage_options)] if options.place else []
    splits = plan_splits(
        options.inputs,
        options.input_format,
        settings,
        storage_options=storage_options,
        exclude=exclude,
    )
    return Input(splits, settings, storage_options)


def _with_fields(source: Input, options: EmbedOptions) -> Input:
    """The input, its settings with the fields that are to be kept, whose types are told: a wrong guess must be seen."""
    names, types, every = options.kept_fields
    fields = (
        _fields_of_collection(options)
        if any(split.format in ROWS for split in source.splits)
        else ()
    )
    if not fields and not names and not every:
        return source
    fields = fields or find_fields(
        source.readable_here(),
        source.settings,
        names,
        every=every,
        types=types,
        storage_options=source.storage_options,
    )
    if not options.quiet:
        told = f"sentences keep {', '.join(map(str, fields)) or 'nothing: the sample has no other fields'}"
        say(in_line(told))
    return replace(source, settings=replace(source.settings, fields=fields))


def _fields_of_collection(options: EmbedOptions) -> tuple[KeptField, ...]:
    """The fields of the collection that the job's store goes into, unless others are asked for: another sample may mislead."""
    names, types, every = options.kept_fields
    version = None
    with suppress(StoreError, OSError, ValueError):  # told when the job is to begin
        version = newest(Root(options.into, options.storage_options)) if options.into else None
    fields = () if version is None else version.store.fields
    columns, kinds = (
        {field.field: field.name for field in fields},
        {field.field: field.type for field in fields},
    )
    same = names.items() <= columns.items() and types.items() <= kinds.items()
    return fields if same and (every or len(names) in (0, len(columns))) else ()


def _from_stdin(options: EmbedOptions, path: Path) -> Input:
    """Standard input as one split, its bytes in a file at ``path``."""
    if len(options.inputs) > 1:
        raise CommandError(
            Exit.BAD_USAGE,
            "- (standard input) can't be combined with files: name files, or pipe all of them in",
        )
    kind, settings = options.input_format, ReadSettings(**options.read_settings())
    if kind == "parquet":
        raise CommandError(
            Exit.BAD_USAGE,
            "Parquet can't be read from standard input, its end comes first: write it to a file",
        )
    digest = hashlib.sha256()
    with path.open("wb") as file:
        while data := sys.stdin.buffer.read(1 << 20):
            digest.update(data)
            file.write(data)
        identity = FileIdentity(file.tell(), f"sha256={digest.hexdigest()}")
    (spooled,) = plan_splits([str(path)], kind, settings, range_bytes=sys.maxsize)
    piped = msgspec.structs.replace(
        spooled, url="stdin", identity=identity, guessed=False, piped=True
    )
    return Input([piped], settings, options.input_storage_options, spooled)
