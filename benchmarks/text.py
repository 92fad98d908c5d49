"""The reading stage alone: seconds of processor of one process for running text, lines and JSON lines, read to scratch parts.

    python -m benchmarks.text [--megabytes 6] [--rounds 3]

Kinds take turns, medians are shown; tables of words are cold at each start. The text is the data folder's, of several genres,
none of it twice, or else the repository's sample, repeated. Running text is read by the rules over whole sentences too, without a
table of words, and so are addresses, none of which comes twice.
"""

import json
import lzma
import statistics
import time
from io import BytesIO
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.support import Table, machine, options_of, working_folder
from benchmarks.texts import SAMPLE
from elmo_store.storage.root import Root
from tests.data import data_folder
from transforms.inputs.records import ReadSettings
from transforms.stages.split import plan_splits, read_tasks
from transforms.stages.tokenise import tokenise_task
from transforms.text import ptb, tokenizers

GENRES = ("wikipedia.00", "gutenberg.00", "us_gov_web.00", "us_presidential_speeches.00", "masc.00", "openstax.00")


def running_text(characters: int) -> list[str]:
    """About so many characters of paragraphs."""
    files = [data_folder() / "corpus" / "raw" / f"{name}.txt.xz" for name in GENRES]
    if all(file.is_file() for file in files):
        texts = [lzma.decompress(file.read_bytes()).decode()[: characters // len(files)] for file in files]
    else:
        sample = "\n\n".join(path.read_text("utf-8") for path in sorted(SAMPLE.glob("*.txt")))
        texts = [sample] * max(1, round(characters / len(sample)))
    return [line for text in texts for line in text.split("\n") if line.strip()]


def write_kinds(folder: Path, characters: int) -> dict[str, Path]:
    """The same paragraphs as running text, as documents of JSON lines, and as lines of tokens; and addresses."""
    paragraphs = running_text(characters)
    texts = {
        "text": "\n\n".join(paragraphs),
        "jsonl": "\n".join(json.dumps({"text": paragraph}, ensure_ascii=False) for paragraph in paragraphs),
        "addresses": addresses(characters // 6),
        "lines": "\n".join(" ".join(tokenizers.get("ptb", "text").record(paragraph)) for paragraph in paragraphs),
    }
    for kind, text in texts.items():
        (folder / kind).write_text(text, "utf-8")
    return {kind: folder / kind for kind in texts}


def read(path: Path, kind: str, store: Path) -> tuple[int, float]:
    """Tokens, and seconds of processor of this process."""
    settings = ReadSettings()
    tasks = list(read_tasks(plan_splits([str(path)], "text" if kind == "addresses" else kind, settings)))
    began = time.process_time()
    results = [tokenise_task(Root(store), task, settings) for task in tasks]
    return sum(part.n_tokens for result in results for part in result.parts), time.process_time() - began


def read_by_rules(path: Path, kind: str, store: Path) -> tuple[int, float]:
    """`read` without tables of words."""
    with mock.patch.object(ptb.PennTreebank, "sentence", staticmethod(ptb.tokens_by_rules)):
        return read(path, kind, store)


def addresses(characters: int) -> str:
    """About so many characters of paragraphs of addresses that differ, ten in each."""
    many = [f"https://example.org/{i:x}?q={i * i:x}&page={i}" for i in range(characters // 43)]
    return "\n\n".join(" ".join(many[first : first + 10]) for first in range(0, len(many), 10))


def limit(path: Path, kind: str, store: Path) -> tuple[int, float]:
    """The least that reading does, for lines: split them, make Arrow lists, write one Parquet file in memory."""
    began = time.process_time()
    rows = [line.split(" ") for line in path.read_text("utf-8").split("\n")]
    pq.write_table(pa.table({"tokens": pa.array(rows, pa.list_(pa.string()))}), BytesIO(), compression="zstd")
    return sum(map(len, rows)), time.process_time() - began


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--megabytes", type=float, default=6, help="of text (default: 6)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    args = parser.parse_args()
    print(machine())
    table = Table("read, tokenise, write scratch parts", "kind", "MB", "tokens", "CPU seconds", "tokens/s")
    with working_folder() as folder:
        paths = write_kinds(folder, round(args.megabytes * 1e6))  # imports what reading needs
        kinds = {kind: (path, kind, read) for kind, path in paths.items()}
        kinds |= {f"{kind}, by the rules": (paths[kind], kind, read_by_rules) for kind in ("text", "addresses")}
        kinds["lines, the least"] = (paths["lines"], "lines", limit)
        taken: dict[str, list[float]] = {name: [] for name in kinds}
        tokens: dict[str, int] = {}
        for number in range(args.rounds):
            for name, (path, kind, work) in kinds.items():
                tokens[name], spent = work(path, kind, folder / f"store-{name}-{number}")
                taken[name].append(spent)
        for name, (path, _, _) in kinds.items():
            spent = statistics.median(taken[name])
            table.row(name, path.stat().st_size / 1e6, tokens[name], spent, tokens[name] / spent)


if __name__ == "__main__":
    main()
