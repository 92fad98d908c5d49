"""One ``embed`` job as it was asked for. Each option is declared once, as a field of `EmbedOptions`.

From a field come the option on the command line (and with it the parameter of a template), the checks that need no I/O, the
reader's settings and the job's record in the manifest.
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import Field, dataclass, field, fields
from functools import partial
from typing import Any

from pipeline.cli.arguments import add_option, count, json_object, part, threads
from pipeline.cli.exit_codes import CommandError, Exit

INPUT_FORMATS = (
    "auto",
    "lines",
    "text",
    "jsonl",
    "json",
    "csv",
    "tsv",
    "conllu",
    "conll",
    "parquet",
)
_FIELDS = ("jsonl", "json", "csv", "tsv", "parquet")  # formats whose records have named fields
FIELD_TYPES = ("bool", "int64", "float64", "string", "date", "timestamp")
STORES = {"zarr": ("zarr",), "parquet": ("parquet",), "both": ("zarr", "parquet")}
ZARR_CHUNK_ROWS = 128  # --shard-rows is a multiple of it, or below it


def _option(
    group: str, help: str, default: Any = None, unset: str | None = "", **settings: Any
) -> Any:
    """A field that is an option.

    ``group``: of the help, "" above all groups; ``unset``: what the help calls the default, where its value does not say it;
    ``settings``: argparse's ``type``, ``choices``, ``metavar``, and
    ``formats``: the input formats that use it, without which every format does, ``formats_of`` those of some of its choices;
    ``read``: it is the reader's, a field of `ReadSettings` of the same name;
    ``job``: it makes two jobs different, so that it stands in the manifest.
    """
    shown = settings.get("type") is not json_object  # those may hold secrets
    return field(
        default=default,
        metadata={"group": group, "help": help, "unset": unset, **settings},
        repr=shown,
    )


_read = partial(_option, "reading", read=True, job=True)
_write = partial(_option, "writing")
_compute = partial(_option, "computing")
_storage = partial(_option, "storage and screen")
_cluster = partial(_option, "clusters and clouds")


@dataclass(frozen=True)
class EmbedOptions:
    """One ``embed`` job as asked for. None is the default model, a default of the reader's, the engine's choice of threads."""

    inputs: tuple[str, ...]
    output: str = _option(
        "",
        "folder or URL of the store to write (required, unless --into or --dry-run is given)",
        "",
        unset=None,
        metavar="URL",
    )
    model: str | None = _option(
        "", "a name that `elmo-store models` lists, or a folder or URL with options.json and weights.hdf5 or "
        "weights.safetensors", unset="the packaged model", metavar="NAME|FOLDER|URL",
    )  # fmt: skip
    into: str | None = _option(
        "", "instead of --output: a collection, new or not, to which the store is added; sentences whose tokens it already has "
        "are copied, not computed", unset="none", metavar="URL",
    )  # fmt: skip
    skip_known: bool = _option(
        "", "with --into: leave out sentences that the collection has, by id where the input has ids, otherwise by tokens",
        False, job=True,
    )  # fmt: skip
    input_format: str = _option(
        "reading", "lines = a tokenised sentence per line, text = running text, conll = a word per line, in columns",
        "auto", "auto, by file name; text that begins with tokenised sentences is read as lines",
        choices=INPUT_FORMATS, job=True,
    )  # fmt: skip
    text_field: str | None = _read(
        "JSON, CSV, Parquet: field with a string, a list of tokens, or a list of such lists; a number is a column, from 1, of "
        "CSV without a row of names, or of CoNLL", metavar="NAME", formats=(*_FIELDS, "conll"),
        unset="text; in CoNLL 2 after a column that numbers the words, 4 in OntoNotes, otherwise 1; sentences, with doc_key as "
        "the id, in coreference files",
    )  # fmt: skip
    id_field: str | None = _read(
        "JSON, CSV, Parquet: field with the record's id",
        unset="none, ids are FILE:POSITION",
        metavar="NAME",
        formats=_FIELDS,
    )
    keep_fields: str | None = _option(
        "reading", "fields to keep as columns: of JSON, CSV, Parquet, columns of CoNLL (upos, head, …; 4 is the fourth), "
        f"comments of CoNLL-U; rename with =COLUMN, set the type with :TYPE ({', '.join(FIELD_TYPES)}); all keeps every field of "
        "the sample",
        unset="none; with --into, the collection's",
        metavar="NAME[=COLUMN][:TYPE],…|all", formats=(*_FIELDS, "conllu", "conll"), job=True,
    )  # fmt: skip
    tokenizer: str | None = _read(
        "how a string becomes tokens; unicode splits at all Unicode white space, as allennlp elmo and bilm-tf do",
        unset="auto = whitespace for lines, ptb for text and text fields", choices=("auto", "ptb", "whitespace", "unicode"),
        formats=("lines", "text", *_FIELDS),
    )  # fmt: skip
    document: str | None = _read(
        "what a document is: a line, a paragraph, or a whole file of text; sentence: "
        "a string of JSON, CSV, Parquet is one sentence", unset="auto: lines or paragraphs, inferred from the text",
        choices=("auto", "line", "paragraph", "file", "sentence"), formats=("text", *_FIELDS),
        formats_of={"file": ("text",), "sentence": _FIELDS},
    )  # fmt: skip
    keep_text: bool = _read(
        "lines: also keep each original line, by which export --format allennlp names it",
        False,
        formats=("lines",),
    )
    encoding: str | None = _read(
        "encoding of the input's text, such as latin-1 or utf-16", unset="utf-8", metavar="NAME",
        formats=tuple(form for form in INPUT_FORMATS if form not in ("auto", "parquet")),
    )  # fmt: skip
    on_bad_file: str = _read(
        "a damaged file: stop = check all files, then end and name every bad one; reject = keep everything before the damage "
        "and record the rest as one reject", "stop", choices=("stop", "reject"),
    )  # fmt: skip
    max_reject_rate: float = _option(
        "reading", "end before computing if more than this share of non-blank records is refused; 1 = never",
        0.5, type=part, metavar="SHARE",
    )  # fmt: skip
    store: str = _write("form of the store", "zarr", choices=tuple(STORES), job=True)
    states: str | None = _write(
        "keep only some of x, fwd1, bwd1, …, such as fwd2,bwd2; it can't be mixed",
        unset="all",
        metavar="NAME,…",
    )
    dtype: str = _write(
        "numbers as stored; int8 takes half the space of float16 (cosine 0.9999)", "float16",
        choices=("float16", "float32", "int8"), job=True,
    )  # fmt: skip
    boundaries: bool = _write("also keep the BOS and EOS row of each sentence", False, job=True)
    shard_rows: int = _write(
        f"rows (tokens) per shard, a multiple of {ZARR_CHUNK_ROWS}", 16_384, type=int, job=True
    )
    compression: str = _write(
        "compression of the vectors; in Parquet blosc means zstd too",
        "none",
        choices=("none", "zstd", "blosc"),
        job=True,
    )
    checksum: str = _write(
        "checksum of each chunk (Zarr) or page (Parquet), which readers check",
        "none",
        choices=("none", "crc32c"),
        job=True,
    )
    overwrite: bool = _write(
        "first remove the store at the output; other files there are kept", False
    )
    take_over: bool = _write(
        "take the output from another run at once; that run stops before its next write", False,
        "refuse while the other run is alive",
    )  # fmt: skip
    precision: str = _compute(
        "precision of products: float32; tf32 (GPU); bfloat16 (twice as fast where a CPU has it; cosine to float32 0.9999); "
        "int8 (CPUs with VNNI and without AMX: faster and rougher, see docs/development/performance.md)", "auto",
        "auto = float32 on a CPU, tf32 on a GPU", choices=("auto", "float32", "tf32", "bfloat16", "int8"), job=True,
    )  # fmt: skip
    start_state: str = _compute(
        "what every sentence starts from: one state frozen with the model, or zeros",
        "warm",
        choices=("warm", "zero"),
        job=True,
    )
    device: str = _compute(
        "device of all workers", "auto", "auto = a GPU if this machine has one; CPUs on engines",
        choices=("auto", "cpu", "cuda"), job=True,
    )  # fmt: skip
    threads: int | None = _compute(
        "CPU threads of each worker process", unset="all cores of its machine; on this one, shared among its processes",
        type=threads,
    )  # fmt: skip
    workers: int | None = _compute(
        "processes on this machine, each with a model; with --dry-run machines like this one",
        unset="1",
        type=count,
    )
    accelerator: str = _compute(
        "with --device cuda: Dataflow's resource hint for workers that embed; newer GPUs need their machine_type in it",
        "type:nvidia-tesla-t4;count:1;install-nvidia-driver", metavar="HINT",
    )  # fmt: skip
    storage_options: dict[str, Any] | None = _storage(
        'what fsspec needs for the output, such as {"endpoint_url": "http://…"}',
        type=json_object,
        metavar="JSON",
    )
    input_storage_options: dict[str, Any] | None = _storage(
        "the same for the inputs",
        unset="those of --storage-options",
        type=json_object,
        metavar="JSON",
    )
    quiet: bool = _storage("print nothing but an engine's id of the job", False)
    no_wait: bool = _cluster(
        "submit the job, print its id and console address, and end; elmo-store watch follows it",
        False,
        "wait for its end",
    )
    shared_disk: bool = _cluster(
        "the workers' machines have the local paths of this command mounted",
        False,
        "off, such paths are refused",
    )
    dry_run: bool = _option(
        "before the work", "read a sample of the input, print its first sentences and the job's tokens, shards, bytes and "
        "time, and end; nothing is written (Beam's --dry_run, with an underscore, is refused)", False,
    )  # fmt: skip

    @property
    def place(self) -> str:
        """What is written: the store, or the collection that it goes into."""
        return self.into or self.output

    @property
    def kept_fields(self) -> tuple[dict[str, str], dict[str, str], bool]:
        """Fields to keep with their columns' names, the types that were said, and whether all other fields are kept too."""
        asked = [name.strip() for name in (self.keep_fields or "").split(",") if name.strip()]
        names: dict[str, str] = {}
        types: dict[str, str] = {}
        for one in (name for name in asked if name != "all"):
            before, _, kind = one.rpartition(":")
            is_typed = before != "" and kind in FIELD_TYPES
            name, _, column = (before if is_typed else one).partition("=")
            names[name] = column or name
            types |= {name: kind} if is_typed else {}
        return names, types, "all" in asked

    def read_settings(self) -> dict[str, Any]:
        """What was asked of the reader, by fields of `ReadSettings`; what was not is left to its defaults."""
        asked = {option.name: getattr(self, option.name) for option in _marked("read")}
        return {name: value for name, value in asked.items() if value is not None}

    def job_fields(self) -> dict[str, Any]:
        """What makes two jobs different, for the manifest, by name."""
        return {option.name: getattr(self, option.name) for option in _marked("job")}


def _marked(mark: str) -> Iterator["Field[Any]"]:
    return (option for option in fields(EmbedOptions) if option.metadata.get(mark) is not None)


def flag(name: str) -> str:
    """A field's name as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``embed``, in their groups."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="files, folders, globs; any fsspec URL (s3://…); - is standard input",
    )
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for option in _marked("group"):
        title = option.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        add_embed_option(groups[title], option.name)


def add_embed_option(parser: argparse._ActionsContainer, name: str, **changes: Any) -> None:
    """The option that a field of `EmbedOptions` declares, for any command; ``changes``: settings of `add_option`."""
    declared = EmbedOptions.__dataclass_fields__[name]
    settings: dict[str, Any] = {"default": declared.default, **declared.metadata, **changes}
    known = ("help", "default", "unset", "type", "choices", "metavar")
    add_option(parser, flag(name), **{key: settings[key] for key in known if key in settings})


def parse(args: argparse.Namespace) -> EmbedOptions:
    """The record of parsed arguments. CommandError (bad usage) names the value and the remedy."""
    values = {name: getattr(args, name) for name in EmbedOptions.__dataclass_fields__}
    values["inputs"] = tuple(values["inputs"])
    if values["input_storage_options"] is None:
        values["input_storage_options"] = values["storage_options"]
    options = EmbedOptions(**values)
    for problem in problems(options):
        raise CommandError(Exit.BAD_USAGE, problem)
    return options


def problems(options: EmbedOptions) -> Iterator[str]:
    """What is wrong with ``options`` before anything is opened, each with its remedy."""
    rows = options.shard_rows
    if rows < 1 or (rows > ZARR_CHUNK_ROWS and rows % ZARR_CHUNK_ROWS):
        near = max(ZARR_CHUNK_ROWS, round(rows / ZARR_CHUNK_ROWS) * ZARR_CHUNK_ROWS)
        yield f"--shard-rows {rows} is not a multiple of {ZARR_CHUNK_ROWS} rows: use {near}"
    if options.keep_fields is not None and not options.keep_fields.strip(" ,"):
        yield f"--keep-fields {options.keep_fields!r} names no field: name some, or leave it out"
    if options.input_format != "auto":
        yield from unused_options(options, [options.input_format])
    if options.encoding is not None and not _is_text_encoding(options.encoding):
        yield f"--encoding {options.encoding} is not a text encoding that Python knows: try utf-8, latin-1 or utf-16"
    if not options.place.strip() and not options.dry_run:
        yield "--output is empty: name the folder or URL of the store to write"
    if options.into and (options.output or options.overwrite):
        yield f"--into {options.into} adds to a collection: leave out --output and --overwrite"
    if options.skip_known and not options.into:
        yield "--skip-known compares with a collection: give --into NAME, or leave it out"


def unused_options(options: EmbedOptions, formats: Iterable[str]) -> Iterator[str]:
    """A sentence for each option that was given and that none of the input's ``formats`` uses."""
    present = sorted(set(formats))
    for option in _marked("formats"):
        value = getattr(options, option.name)
        own = option.metadata.get("formats_of", {}).get(value)
        users = own or option.metadata["formats"]
        if value not in (None, False) and set(users).isdisjoint(present):
            given = f"{flag(option.name)} {value}" if own else flag(option.name)
            yield (
                f"{given} belongs to {', '.join(users)}; the input is {', '.join(present)}: leave it out, or say another "
                "--input-format"
            )


def _is_text_encoding(name: str) -> bool:
    try:
        return isinstance(b"".decode(name), str)
    except (LookupError, ValueError):
        return False
