"""``python -m benchmarks.text``: CPU seconds that one process takes to read running text, JSON lines and lines to scratch parts.

Kinds take turns, medians are shown. The text is the data folder's, of several genres, none of it twice, or else the repository's
sample, repeated. A task begins without tables of words, as in a job.
"""

import json
import lzma
import time
from pathlib import Path

from benchmarks.shared.support import Table, in_turns, machine, options_of, working_folder
from benchmarks.shared.texts import SAMPLE
from elmo_store.storage.root import Root
from tests.data import data_folder
from transforms.inputs.records import ReadSettings
from transforms.stages.split import plan_splits, read_tasks
from transforms.stages.tokenise import tokenise_task
from transforms.text import tokenizers

GENRES = ("wikipedia.00", "gutenberg.00", "us_gov_web.00", "us_presidential_speeches.00", "masc.00", "openstax.00")
CHARACTERS, ROUNDS = 6_000_000, 3


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
    """The same paragraphs as running text, as documents of JSON lines, and as lines of tokens."""
    paragraphs = running_text(characters)
    texts = {
        "text": "\n\n".join(paragraphs),
        "jsonl": "\n".join(json.dumps({"text": paragraph}, ensure_ascii=False) for paragraph in paragraphs),
        "lines": "\n".join(" ".join(tokenizers.get("ptb", "text").record(paragraph)) for paragraph in paragraphs),
    }
    for kind, text in texts.items():
        (folder / kind).write_text(text, "utf-8")
    return {kind: folder / kind for kind in texts}


def read(path: Path, kind: str, store: Path) -> int:
    """Tokens."""
    settings = ReadSettings()
    results = [tokenise_task(Root(store), task, settings) for task in read_tasks(plan_splits([str(path)], kind, settings))]
    return sum(part.n_tokens for result in results for part in result.parts)


def main() -> None:
    options_of(__doc__).parse_args()
    print(machine())
    table = Table("read, tokenise, write scratch parts", "kind", "MB", "tokens", "CPU seconds", "tokens/s")
    with working_folder() as folder:
        paths, tokens = write_kinds(folder, CHARACTERS), dict[str, int]()

        def work(kind: str, path: Path) -> None:
            tokens[kind] = read(path, kind, folder / f"store-{kind}")

        works = {kind: lambda kind=kind, path=path: work(kind, path) for kind, path in paths.items()}
        for kind, spent in in_turns(works, ROUNDS, clock=time.process_time).items():
            table.row(kind, paths[kind].stat().st_size / 1e6, tokens[kind], spent, tokens[kind] / spent)


if __name__ == "__main__":
    main()
