"""Random and mutated records through the whole local job: each is a sentence in its place, or a reject in its place.

What each record must become is worked out here by other means than the readers'.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import elmo_store
from benchmarks.chaos.job import Command, Outcomes, SmallJob, faults_of

WORDS = [
    "the", "cat", "sat", "naïve", "東京", "a\u00a0b", "\u2028", "x" * 70, "]", '"', "\\", "{", "'", "\u202e", "\U0001f408", ".",
]  # fmt: skip
BYTES = [
    b"\0", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"\xef\xbb\xbf", b"\t", b"\r", b"\x0b", b"\x1c", b"\xc2\x85", b"\xf8", b'"',
]  # fmt: skip
TokensOf = Callable[[bytes], list[str] | None]  # what a record must become; None if it must be refused
COLUMNS = ("records", "sentences with tokens", "without", "refused")


def fuzz(folder: Path, n_records: int, seed: int = 0) -> Outcomes:
    """Half of the records as lines, half as JSON lines."""
    draw = random.Random(seed)
    model = str(SmallJob.make(folder / "input", n_files=1, n_lines=1).folder / "model.safetensors")
    outcomes = Outcomes("format", COLUMNS)
    for kind, make, last, tokens_of in KINDS:
        records = [make(draw) for _ in range(n_records // 2)]
        records[0] = records[0].removeprefix(b"\xef\xbb\xbf")
        records[-1] = last
        text, output = folder / f"fuzz.{kind}", folder / f"fuzzed-{kind}"
        text.write_bytes(b"\n".join(records) + b"\n")
        arguments = [
            "embed", str(text), "--output", str(output), "--model", model, "--input-format", kind, "--tokenizer", "whitespace",
            "--shard-rows", "4096", "--threads", "1", "--quiet", "--max-reject-rate", "1",
            *(["--document", "sentence"] if kind == "jsonl" else []),
        ]  # fmt: skip
        command = Command(arguments, folder / f"log-{kind}")
        if code := command.wait(3600):
            outcomes.count(kind, (), f"exit code {code}\n{command.output()[-2000:]}")
            continue
        _compare(kind, records, output, tokens_of, outcomes)
    return outcomes


def line(draw: random.Random) -> bytes:
    """A line of words, mutated or not; without a line feed."""
    data = " ".join(draw.choices(WORDS, k=draw.randint(0, 12))).encode()
    return _mutated(data, draw) if draw.random() < 0.4 else data


def json_line(draw: random.Random) -> bytes:
    """A JSON object with a string, a list, or something else as its text, mutated or not."""
    words = draw.choices(WORDS, k=draw.randint(0, 8))
    text = draw.choice([*[" ".join(words)] * 8, *[words] * 8, None, 7, {"a": words}, [words], [1], True, "a\0b", "\ud800"])
    value: Any = draw.choice([{"text": text}] * 8 + [{"other": text}, [text], text, {"text": text, "id": 3, "more": [[[]]]}])
    data = json.dumps(value, ensure_ascii=draw.random() < 0.5 or text == "\ud800").encode("utf-8", "backslashreplace")
    return _mutated(data, draw) if draw.random() < 0.4 else data


def _mutated(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randint(0, len(changed))
        mutation = draw.randrange(4)
        if mutation == 0:
            changed[at:at] = draw.choice(BYTES)
        elif mutation == 1:
            changed[at : at + draw.randint(1, 5)] = b""
        elif mutation == 2 and changed:
            changed[at % len(changed)] = draw.randrange(256)
        else:
            changed[at:at] = changed[: draw.randint(0, len(changed))]
    return bytes(changed).replace(b"\n", b"")


def tokens_of_line(data: bytes) -> list[str] | None:
    try:
        text = data.removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else _words(text)


def tokens_of_json(data: bytes) -> list[str] | None:
    try:
        text = data.removesuffix(b"\r").decode()
        value = json.loads(text)
    except ValueError:
        return None
    if "\0" in text or not isinstance(value, dict) or "text" not in value:
        return None
    of = value["text"]
    if isinstance(of, list) and len(of) == 1 and isinstance(of[0], list):  # a document of one tokenised sentence
        of = of[0]
    strings = [of] if isinstance(of, str) else of
    if not isinstance(strings, list) or not all(isinstance(string, str) for string in strings):
        return None
    if any("\0" in string or any("\ud800" <= c <= "\udfff" for c in string) for string in strings):
        return None
    if isinstance(of, str):
        return _words(of)
    return strings if all(strings) else None


def _words(text: str) -> list[str]:
    return [token for token in text.replace("\t", " ").split(" ") if token]


KINDS: tuple[tuple[str, Callable[[random.Random], bytes], bytes, TokensOf], ...] = (
    ("lines", line, b"last", tokens_of_line),
    ("jsonl", json_line, b'{"text": ["last"]}', tokens_of_json),
)


def _compare(kind: str, records: list[bytes], output: Path, tokens_of: TokensOf, outcomes: Outcomes) -> None:
    store = elmo_store.open(str(output))
    lines = [line for path in sorted((output / "rejects").rglob("*.jsonl")) for line in path.read_bytes().splitlines()]
    refused = {reject["sentence"]: reject["position"] for reject in map(json.loads, lines)}
    if store.n_sentences != len(records):
        outcomes.count(kind, (), f"{store.n_sentences} sentences of {len(records)} records")
    full = 0
    for sentence, record in zip(store, records, strict=False):
        wanted, tokens, position = tokens_of(record), list(sentence.tokens), refused.get(sentence.index)
        full += bool(tokens)
        if (wanted is None) != (position is not None) or tokens != (wanted or []) or position not in (None, sentence.index):
            outcomes.count(kind, (), f"record {sentence.index} {record!r}: {tokens} {position}, wanted {wanted}")
    for fault in faults_of(str(output)):
        outcomes.count(kind, (), fault)
    counts = (len(records), full, len(records) - full - len(refused), len(refused))
    outcomes.count(kind, dict(zip(COLUMNS, counts, strict=True)))
