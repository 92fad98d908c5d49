"""What ``elmo-store embed`` was asked for: one frozen record, its options on the command line, and checks that need no I/O."""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.cli.exit_codes import CommandError, Exit

INPUT_FORMATS = ("auto", "lines", "text", "jsonl", "json", "csv", "tsv", "conllu", "conll", "parquet")
_FIELDS = ("jsonl", "json", "csv", "tsv", "parquet")
USED_BY = {  # option → the input formats that use it
    "text_field": (*_FIELDS, "conll"),
    "id_field": _FIELDS,
    "tokenizer": ("lines", "text", *_FIELDS),
    "document": ("text",),
    "split_sentences": _FIELDS,
    "line_ends": ("text", *_FIELDS),
    "max_sentence_tokens": ("text", *_FIELDS),
    "encoding": tuple(form for form in INPUT_FORMATS if form not in ("auto", "parquet")),
}
STORES = {"zarr": ("zarr",), "parquet": ("parquet",), "both": ("zarr", "parquet")}
DTYPES = ("float16", "float32", "int8")
FLOATS = ("float16", "float32")  # of what is exported
PRECISIONS = ("auto", "float32", "tf32", "bfloat16", "int8")
COMPRESSIONS = ("none", "zstd", "blosc")
CHECKSUMS = ("none", "crc32c")
DEFAULT_SHARD_ROWS = 16_384
ON_BAD_FILE = ("stop", "reject")
MAX_REJECT_RATE = 0.5
DEFAULT_ACCELERATOR = "type:nvidia-tesla-t4;count:1;install-nvidia-driver"  # Dataflow's spelling
ZARR_CHUNK_ROWS = 128  # --shard-rows is a multiple of it, or below it


@dataclass(frozen=True)
class EmbedOptions:
    """One ``embed`` job as asked for. None is the default model, the engine's choice of threads and lanes."""

    inputs: tuple[str, ...]
    output: str
    model: str | None = None
    input_format: str = "auto"
    text_field: str | None = None
    id_field: str | None = None
    tokenizer: str | None = None
    document: str | None = None
    split_sentences: str | None = None
    line_ends: str | None = None
    max_sentence_tokens: int | None = None
    encoding: str | None = None
    max_sentences: int | None = None
    sample: float | None = None
    on_bad_file: str = "stop"
    max_reject_rate: float = MAX_REJECT_RATE
    store: str = "zarr"
    states: str | None = None
    dtype: str = "float16"
    precision: str = "auto"
    start_state: str = "warm"
    boundaries: bool = False
    shard_rows: int = DEFAULT_SHARD_ROWS
    compression: str = "none"
    checksum: str = "none"
    overwrite: bool = False
    take_over: bool = False
    device: str = "auto"
    lanes: int | None = None
    threads: int | None = None
    accelerator: str = DEFAULT_ACCELERATOR
    verbose: bool = False
    storage_options: dict[str, Any] | None = field(default=None, repr=False)
    input_storage_options: dict[str, Any] | None = field(default=None, repr=False)
    quiet: bool = False
    shared_disk: bool = False
    no_wait: bool = False
    preview: int | None = None
    dry_run: bool = False
    exact: bool = False
    tokens_per_second: float | None = None
    price_per_hour: float | None = None
    workers: int | None = None

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the store to write."""
        return STORES[self.store]

    @property
    def named_states(self) -> tuple[str, ...] | None:
        """The states that were asked for by name; None for all."""
        if self.states is None:
            return None
        return tuple(name.strip() for name in self.states.split(",") if name.strip())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``embed``. Every help line says default and unit."""
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="files, folders, globs; any fsspec URL (s3://…); - is standard input"
    )
    parser.add_argument(
        "--output", default="", metavar="URL", help="folder or URL of the store (required, but with --preview and --dry-run)"
    )
    parser.add_argument(
        "--model", metavar="NAME|FOLDER|URL",
        help="a name that `elmo-store models` lists, or a folder with options.json and weights.hdf5 or "
        "weights.safetensors (default: the packaged model `default`)",
    )  # fmt: skip
    reading = parser.add_argument_group("reading")
    reading.add_argument(
        "--input-format", choices=INPUT_FORMATS, default="auto",
        help="lines = a sentence a line, already tokenised; text = running text; conll = a word a line with columns "
        "(default: auto, by file name)",
    )  # fmt: skip
    reading.add_argument(
        "--text-field",
        metavar="NAME",
        help="JSON, CSV, Parquet: field with a string or a list of tokens (default: text); a number is a column, from 1, of CSV "
        "without a row of names, or of CoNLL (default there: 1)",
    )
    reading.add_argument(
        "--id-field", metavar="NAME",
        help="JSON, CSV, Parquet: field with the record's id (default: none, ids are FILE:POSITION)",
    )  # fmt: skip
    reading.add_argument(
        "--tokenizer", choices=("auto", "ptb", "whitespace"),
        help="how a string becomes tokens (default: auto = whitespace for lines, ptb for text and text fields)",
    )  # fmt: skip
    reading.add_argument(
        "--document", choices=("paragraph", "file"),
        help="text: what a document is, in the ids FILE:PARAGRAPH:SENTENCE or FILE:SENTENCE (default: paragraph)",
    )  # fmt: skip
    reading.add_argument(
        "--split-sentences", choices=("yes", "no"),
        help="JSON, CSV, Parquet: a string is a document of several sentences, with ids ID:0, ID:1, …; no = one sentence, "
        "whatever it holds (default: yes)",
    )  # fmt: skip
    reading.add_argument(
        "--line-ends", choices=("auto", "space", "break"),
        help="text and documents: space = hard-wrapped, a sentence goes on in the next line; break = it ends (default: auto, "
        "by the looks of the text)",
    )  # fmt: skip
    reading.add_argument(
        "--max-sentence-tokens", type=int, metavar="N",
        help="text and documents: longer sentences are cut into several of N tokens (default: 512)",
    )  # fmt: skip
    reading.add_argument("--encoding", metavar="NAME", help="of the input's text, such as latin-1 or utf-16 (default: utf-8)")
    reading.add_argument("--max-sentences", type=int, metavar="N", help="only the first N sentences of the input (default: all)")
    reading.add_argument(
        "--sample", type=float, metavar="SHARE",
        help="only a share of the records, always the same ones, such as 0.01 (default: all)",
    )  # fmt: skip
    reading.add_argument(
        "--on-bad-file", choices=ON_BAD_FILE, default="stop",
        help="a damaged file: stop = the job ends once all files are looked at, and names every bad one; reject = what comes "
        "before the damage is taken, the rest is one reject (default: stop)",
    )  # fmt: skip
    reading.add_argument(
        "--max-reject-rate", type=float, default=MAX_REJECT_RATE, metavar="SHARE",
        help="end before computing if more than this share of the records that are not blank was refused; 1 = never "
        f"(default: {MAX_REJECT_RATE})",
    )  # fmt: skip
    writing = parser.add_argument_group("writing")
    writing.add_argument("--store", choices=tuple(STORES), default="zarr", help="form of the store (default: zarr)")
    writing.add_argument(
        "--states", metavar="NAME,…",
        help="only some of x, fwd1, bwd1, fwd2, …, such as fwd2,bwd2 (default: all); what is left out can't be mixed later",
    )  # fmt: skip
    writing.add_argument(
        "--dtype", choices=DTYPES, default="float16",
        help="numbers as stored; int8 has a scale for each state of each row: half of float16, cosine 0.9999 (default: float16)",
    )  # fmt: skip
    writing.add_argument(
        "--boundaries", action="store_true", help="also keep the BOS and EOS row of each sentence (default: off)"
    )
    writing.add_argument(
        "--shard-rows", type=int, default=DEFAULT_SHARD_ROWS, metavar="N",
        help=f"tokens (rows) in a shard, a multiple of {ZARR_CHUNK_ROWS} (default: {DEFAULT_SHARD_ROWS})",
    )  # fmt: skip
    writing.add_argument(
        "--compression",
        choices=COMPRESSIONS,
        default="none",
        help="of the vectors; Parquet takes zstd for either (default: none)",
    )
    writing.add_argument(
        "--checksum", choices=CHECKSUMS, default="none",
        help="of each inner chunk (Zarr) or page (Parquet): every reader reads it whole and checks it (default: none)",
    )  # fmt: skip
    writing.add_argument(
        "--overwrite", action="store_true",
        help="remove the store that stands at the output first; anything else there is left alone (default: off)",
    )  # fmt: skip
    add_take_over_argument(writing)
    computing = parser.add_argument_group("computing")
    computing.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="of products: float32, tf32 (GPU), bfloat16 (up to 1.8 × as fast where a CPU has it; cosine to float32 0.9999), "
        "int8 (CPUs with VNNI: faster and rougher, see docs/development/performance.md); "
        "auto = float32 on a CPU, tf32 on a GPU (default: auto)",
    )
    computing.add_argument(
        "--start-state", choices=("warm", "zero"), default="warm",
        help="what every sentence starts from: one state frozen with the model, or zeros (default: warm)",
    )  # fmt: skip
    computing.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto",
        help="auto takes a GPU where the worker has one; ask for cuda on a cluster (default: auto)",
    )  # fmt: skip
    computing.add_argument(
        "--lanes", type=int, metavar="N", help="sentences side by side in a step (default: the engine's choice)"
    )
    computing.add_argument(
        "--threads", type=int, metavar="N",
        help="CPU threads of a worker process (default: this machine's cores, shared among its processes)",
    )  # fmt: skip
    computing.add_argument(
        "--accelerator", default=DEFAULT_ACCELERATOR, metavar="HINT",
        help="with --device cuda: Beam's resource hint for workers that embed, for runners that read hints "
        f"(default: {DEFAULT_ACCELERATOR})",
    )  # fmt: skip
    storage = parser.add_argument_group("storage and screen")
    storage.add_argument(
        "--storage-options", type=json_object, metavar="JSON",
        help='what fsspec needs for the output, such as \'{"endpoint_url": "http://…"}\' (default: {})',
    )  # fmt: skip
    storage.add_argument(
        "--input-storage-options", type=json_object, metavar="JSON",
        help="the same for the inputs (default: those of --storage-options)",
    )  # fmt: skip
    add_engine_arguments(parser)
    storage.add_argument("--verbose", action="store_true", help="also what Beam logs about itself (default: off)")
    storage.add_argument("--report", action="store_true", help="write report.html beside the finished store (default: off)")
    storage.add_argument("--quiet", action="store_true", help="no progress, only the summary (default: off)")


def add_take_over_argument(parser: argparse._ActionsContainer) -> None:
    """For an output that another run may still write to."""
    parser.add_argument(
        "--take-over", action="store_true",
        help="take the output from another run at once; what is left of that run stops before its next write (default: refuse "
        "while its heartbeats come)",
    )  # fmt: skip


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """What concerns jobs that a cluster or a cloud runs, of every command that is a Beam job."""
    engine = parser.add_argument_group("clusters and clouds")
    engine.add_argument(
        "--no-wait", action="store_true",
        help="submit, print the job's id and console address, and end; elmo-store watch follows it (default: wait for its end)",
    )  # fmt: skip
    engine.add_argument(
        "--shared-disk", action="store_true",
        help="the workers' machines have the local paths of this command mounted (default: off, such paths are refused)",
    )  # fmt: skip


def add_sizing_arguments(parser: argparse.ArgumentParser) -> None:
    """What is asked before the work: a look at the text, the size of the job."""
    sizing = parser.add_argument_group("before the work")
    sizing.add_argument(
        "--preview", type=int, metavar="N", help="print ids and tokens of the first N sentences and end (default: off)"
    )
    sizing.add_argument(
        "--dry-run", action="store_true",
        help="read a sample of the input, print tokens, shards, bytes, time and cost, and end; nothing is written (default: off)",
    )  # fmt: skip
    sizing.add_argument("--exact", action="store_true", help="with --dry-run: read all of the input (default: a sample)")
    sizing.add_argument(
        "--tokens-per-second", type=float, metavar="N",
        help="with --dry-run: what one worker computes (default: measured here for some seconds)",
    )  # fmt: skip
    sizing.add_argument(
        "--price-per-hour", type=float, metavar="X", help="with --dry-run: of one worker, in any currency (default: no cost)"
    )
    sizing.add_argument(
        "--workers", type=int, metavar="N",
        help="processes on this machine, each with a model and its share of the cores; with --dry-run: of any kind (default: 1)",
    )  # fmt: skip


def json_object(text: str) -> dict[str, Any]:
    """``text`` as a JSON object. ArgumentTypeError, which is bad usage, that does not repeat it: it may hold secrets."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        raise argparse.ArgumentTypeError(f"not JSON{where} (not shown, it may hold secrets)") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object (not shown, it may hold secrets)")
    return value


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


def problems(options: EmbedOptions) -> Sequence[str]:
    """What is wrong with ``options`` before anything is opened, each with its remedy."""
    found = []
    rows = options.shard_rows
    if rows < 1 or (rows > ZARR_CHUNK_ROWS and rows % ZARR_CHUNK_ROWS):
        near = max(ZARR_CHUNK_ROWS, round(rows / ZARR_CHUNK_ROWS) * ZARR_CHUNK_ROWS)
        found.append(f"--shard-rows {rows} is no multiple of {ZARR_CHUNK_ROWS} rows: take {near}")
    for name in ("lanes", "threads", "workers", "preview", "tokens_per_second"):
        value = getattr(options, name)
        if value is not None and value < 1:
            option = name.replace("_", "-")
            found.append(f"--{option} {value} leaves nothing to compute with: give 1 or more, or leave it out")
    if not options.dry_run:
        given = {"exact": options.exact, "tokens-per-second": options.tokens_per_second, "price-per-hour": options.price_per_hour}
        found += [f"--{name} belongs to --dry-run: leave it out, or add that" for name, value in given.items() if value]
    if (names := options.named_states) is not None and (not names or len(set(names)) < len(names)):
        found.append(f"--states {options.states}: name one or more states, each once, such as x,fwd2,bwd2")
    if options.input_format != "auto":
        found += unused_options(options, [options.input_format])
    if options.encoding is not None and not _is_text_encoding(options.encoding):
        found.append(f"--encoding {options.encoding} is no text encoding that Python knows: try utf-8, latin-1 or utf-16")
    for name in ("max_sentence_tokens", "max_sentences"):
        value = getattr(options, name)
        if value is not None and value < 1:
            found.append(f"--{name.replace('_', '-')} {value} leaves nothing: give 1 or more, or leave it out")
    if not 0 <= options.max_reject_rate <= 1:
        found.append(f"--max-reject-rate {options.max_reject_rate} is no share: give 0 to 1, such as 0.1")
    if options.sample is not None and not 0 < options.sample <= 1:
        found.append(f"--sample {options.sample} is no share: give more than 0 and at most 1, such as 0.01")
    if not options.output.strip() and not options.dry_run and options.preview is None:
        found.append("--output is empty: name the folder or URL of the store to write")
    return found


def unused_options(options: EmbedOptions, formats: Iterable[str]) -> list[str]:
    """A sentence for each option that was given and that none of the input's ``formats`` uses."""
    found = sorted(set(formats))
    return [
        f"--{name.replace('_', '-')} belongs to {', '.join(users)}; the input is {', '.join(found)}: leave it out, or say "
        "another --input-format"
        for name, users in USED_BY.items()
        if getattr(options, name) is not None and not set(found) & set(users)
    ]


def _is_text_encoding(name: str) -> bool:
    try:
        return isinstance(b"".decode(name), str)
    except (LookupError, ValueError):
        return False
