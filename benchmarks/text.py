"""``python -m benchmarks.text``: CPU seconds that one process takes to read running text, JSON lines and lines to scratch parts.

Kinds take turns, medians are shown. The text is the repository's sample, repeated.
"""

import json
import time
from pathlib import Path

from benchmarks.shared.support import Table, in_turns, machine, options_of, working_folder
from benchmarks.shared.texts import SAMPLE
from elmo_store.storage.root import Root
from transforms.inputs.records import ReadSettings
from transforms.stages.split import plan_splits, read_tasks
from transforms.stages.tokenise import tokenise_task
from transforms.text import tokenizers

CHARACTERS, ROUNDS = 6_000_000, 3


def write_kinds(folder: Path, characters: int) -> dict[str, Path]:
    """The same paragraphs as running text, as documents of JSON lines, and as lines of tokens."""
    sample = "\n".join(path.read_text("utf-8") for path in sorted(SAMPLE.glob("*.txt")))
    paragraphs = [line for line in sample.split("\n") if line.strip()] * max(
        1, characters // len(sample)
    )
    texts = {
        "text": "\n\n".join(paragraphs),
        "jsonl": "\n".join(
            json.dumps({"text": paragraph}, ensure_ascii=False) for paragraph in paragraphs
        ),
        "lines": "\n".join(
            " ".join(tokenizers.get("ptb", "text").record(paragraph)) for paragraph in paragraphs
        ),
    }
    for kind, text in texts.items():
        (folder / kind).write_text(text, "utf-8")
    return {kind: folder / kind for kind in texts}


def read(path: Path, kind: str, store: Path) -> int:
    """Tokens."""
    settings = ReadSettings()
    results = [
        tokenise_task(Root(store), task, settings)
        for task in read_tasks(plan_splits([str(path)], kind, settings))
    ]
    return sum(part.n_tokens for result in results for part in result.parts)


def main() -> None:
    options_of(__doc__).parse_args()
    print(machine())
    table = Table(
        "read, tokenise, write scratch parts", "kind", "MB", "tokens", "CPU seconds", "tokens/s"
    )
    with working_folder() as folder:
        paths, tokens = write_kinds(folder, CHARACTERS), dict[str, int]()

        def work(kind: str, path: Path) -> None:
            tokens[kind] = read(path, kind, folder / f"store-{kind}")

        works = {
            kind: lambda kind=kind, path=path: work(kind, path) for kind, path in paths.items()
        }
        for kind, spent in in_turns(works, ROUNDS, clock=time.process_time).items():
            table.row(
                kind, paths[kind].stat().st_size / 1e6, tokens[kind], spent, tokens[kind] / spent
            )


if __name__ == "__main__":
    main()
