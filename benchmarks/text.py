"""Reading and tokenising: MB/s and tokens/s of a core, each format, both tokenizers; and of several processes.

    python -m benchmarks.text [--megabytes 8] [--processes 1,2 --text-megabytes 1000]

The text is the sample of the repository, repeated. The first table is one process; the second, with --processes, a whole
reading stage of plain text through Beam's local runner, with so many processes of each; their starts are in the seconds.
"""

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks.support import Table, machine, options_of
from benchmarks.texts import SAMPLE
from elmo_store.storage.root import Root
from transforms.inputs.records import ReadSettings, Sentence
from transforms.readers import read_split
from transforms.stages.split import plan_splits, read_tasks
from transforms.stages.tokenise import TokeniseTasks


def paragraphs(n_bytes: int) -> list[str]:
    """Paragraphs of running text of about ``n_bytes`` in all."""
    own = [p for path in sorted(SAMPLE.glob("*.txt")) for p in path.read_text("utf-8").split("\n") if p.strip()]
    taken: list[str] = []
    size = 0
    for paragraph in itertools.cycle(own):
        if size >= n_bytes:
            return taken
        taken.append(paragraph)
        size += len(paragraph.encode()) + 2
    return taken


def files(folder: Path, texts: list[str]) -> Iterator[tuple[str, str, Path]]:
    """Name, format and path of a file of each kind."""
    running = "\n\n".join(texts).encode()
    lines = "\n".join(texts).encode()
    sink = io.StringIO()
    writer = csv.writer(sink)
    writer.writerows([["text"], *([text] for text in texts)])
    conll = "".join("".join(f"{word} NN O\n" for word in text.split()) + "\n" for text in texts).encode()
    conllu = "".join(
        "".join(f"{i}\t{word}" + "\t_" * 8 + "\n" for i, word in enumerate(text.split(), 1)) + "\n" for text in texts
    ).encode()
    for name, kind, data in (
        ("lines", "lines", lines),
        ("text", "text", running),
        ("text, gzip", "text", gzip.compress(running, 6)),
        ("text, bzip2", "text", bz2.compress(running)),
        ("text, xz", "text", lzma.compress(running, preset=1)),
        ("text, zstd", "text", bytes(pa.compress(running, "zstd", asbytes=True))),
        ("jsonl", "jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()),
        ("json array", "json", json.dumps([{"text": text} for text in texts]).encode()),
        ("csv", "csv", sink.getvalue().encode()),
        ("conllu", "conllu", conllu),
        ("conll", "conll", conll),
    ):
        path = folder / f"{name.replace(', ', '.').replace(' ', '-')}.data"
        path.write_bytes(data)
        yield name, kind, path
    pq.write_table(pa.table({"text": texts}), folder / "a.parquet")
    yield "parquet", "parquet", folder / "a.parquet"


def formats(megabytes: float) -> None:
    texts = paragraphs(int(megabytes * 1e6))
    n_bytes = sum(len(text.encode()) + 2 for text in texts)
    table = Table(f"{n_bytes / 1e6:.1f} MB of text, one process", "format", "tokenizer", "MB/s", "tokens/s")
    with tempfile.TemporaryDirectory() as folder:
        for name, kind, path in files(Path(folder), texts):
            for tokenizer in ("auto",) if kind in ("conll", "conllu") else ("ptb", "whitespace"):
                settings = ReadSettings(tokenizer=tokenizer)
                (split,) = plan_splits([str(path)], kind, settings, range_bytes=1 << 40)
                began = time.perf_counter()
                tokens = sum(len(record.tokens) for record in read_split(split, settings) if isinstance(record, Sentence))
                spent = time.perf_counter() - began
                table.row(name, tokenizer, n_bytes / spent / 1e6, tokens / spent)


def stage(megabytes: float, processes: list[int]) -> None:
    title = f"{megabytes:g} MB of plain text, the whole stage: read, tokenise, write scratch parts"
    table = Table(title, "processes", "seconds", "MB/s", "tokens/s", "× first")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        block = ("\n\n".join(paragraphs(4_000_000)) + "\n\n").encode()
        with path.open("wb") as file:
            for _ in range(max(1, round(megabytes * 1e6 / len(block)))):
                file.write(block)
        settings = ReadSettings()
        tasks = list(read_tasks(plan_splits([str(path)], "text", settings)))
        first = 0.0
        for n in processes:
            root = Root(Path(folder) / f"store-{n}")
            pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
            _ = pipeline | beam.Create(tasks) | TokeniseTasks(root, settings, processes=n)
            began = time.perf_counter()
            result = pipeline.run()
            result.wait_until_finish()
            spent = time.perf_counter() - began
            counted = {counter.key.metric.name: counter.committed for counter in result.metrics().query()["counters"]}
            first = first or spent
            table.row(f"{n}", spent, path.stat().st_size / spent / 1e6, counted["tokens_read"] / spent, first / spent)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--megabytes", type=float, default=8, help="of text, of each format (default: 8)")
    parser.add_argument("--processes", default="", metavar="1,2", help="also the whole stage, with so many processes each")
    parser.add_argument("--text-megabytes", type=float, default=1000, help="of the whole stage's text (default: 1000)")
    args = parser.parse_args()
    print(machine())
    if args.megabytes:
        formats(args.megabytes)
    if args.processes:
        stage(args.text_megabytes, [int(n) for n in args.processes.split(",")])


if __name__ == "__main__":
    main()
