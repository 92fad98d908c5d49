"""Random and mutated records through the whole local job: each is a sentence in its place, or a reject in its place.

What each record must become is worked out here by other means than the readers'.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import elmo_store
from benchmarks.chaos.job import Command, Found, SmallJob, faults_of

WORDS = [
    "the", "cat", "sat", "naïve", "東京", "a\u00a0b", "\u2028", "x" * 70, "]", '"', "\\", "{", "'", "\u202e", "\U0001f408", ".",
]  # fmt: skip
BYTES = [
    b"\0", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"\xef\xbb\xbf", b"\t", b"\r", b"\x0b", b"\x1c", b"\xc2\x85", b"\xf8", b'"',
]  # fmt: skip

COLUMNS = ("records", "sentences with tokens", "without", "refused")
Expected = Callable[[bytes], list[str] | None]


def run(folder: Path, n_records: int, seed: int = 0) -> Found:
    """Half of the records as lines, half as JSON lines."""
    draw = random.Random(seed)
    job = SmallJob.make(folder / "input", n_files=1, n_lines=1)
    found = Found("format", COLUMNS)
    for kind, make, expected in (("lines", line, tokens_of_line), ("jsonl", json_line, tokens_of_json)):
        records = [make(draw) for _ in range(n_records // 2)]
        records[0] = records[0].removeprefix(b"\xef\xbb\xbf")
        records[-1] = b'{"text": ["last"]}' if kind == "jsonl" else b"last"
        text = folder / f"fuzz.{kind}"
        text.write_bytes(b"\n".join(records) + b"\n")
        output = folder / f"fuzzed-{kind}"
        arguments = [
            "embed", str(text), "--output", str(output), "--model", str(job.folder / "model.safetensors"), "--input-format", kind,
            "--tokenizer", "whitespace", "--shard-rows", "4096", "--threads", "1", "--quiet", "--max-reject-rate", "1",
            *(["--split-sentences", "no"] if kind == "jsonl" else []),
        ]  # fmt: skip
        command = Command(arguments, folder / f"log-{kind}")
        if code := command.wait(3600):
            found.count(kind, (), f"exit code {code}\n{command.said()[-2000:]}")
            continue
        _compare(kind, records, output, expected, found)
    return found


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
        place = draw.randint(0, len(changed))
        what = draw.randrange(4)
        if what == 0:
            changed[place:place] = draw.choice(BYTES)
        elif what == 1:
            changed[place : place + draw.randint(1, 5)] = b""
        elif what == 2 and changed:
            changed[place % len(changed)] = draw.randrange(256)
        else:
            changed[place:place] = changed[: draw.randint(0, len(changed))]
    return bytes(changed).replace(b"\n", b"")


def tokens_of_line(data: bytes) -> list[str] | None:
    """What a line must become; None if it must be refused."""
    try:
        text = data.removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else [token for token in text.replace("\t", " ").split(" ") if token]


def tokens_of_json(data: bytes) -> list[str] | None:
    """What a line of JSON must become; None if it must be refused."""
    try:
        text = data.removesuffix(b"\r").decode()
        value = json.loads(text)
    except ValueError:
        return None
    if "\0" in text or not isinstance(value, dict) or "text" not in value:
        return None
    given = value["text"]
    strings = [given] if isinstance(given, str) else given
    if not isinstance(strings, list) or not all(isinstance(one, str) for one in strings):
        return None
    if any("\0" in one or any("\ud800" <= c <= "\udfff" for c in one) for one in strings):
        return None
    if isinstance(given, str):
        return [token for token in given.replace("\t", " ").split(" ") if token]
    return strings if all(strings) else None


def _compare(kind: str, records: list[bytes], output: Path, expected: Expected, found: Found) -> None:
    store = elmo_store.open(str(output))
    rejects = [
        json.loads(one) for path in sorted((output / "rejects").rglob("*.jsonl")) for one in path.read_bytes().splitlines()
    ]
    refused = {one["sentence"]: one["position"] for one in rejects}
    if store.n_sentences != len(records):
        found.count(kind, (), f"{store.n_sentences} sentences of {len(records)} records")
    full = 0
    for sentence, record in zip(store, records, strict=False):
        wanted = expected(record)
        there = list(sentence.tokens)
        full += bool(there)
        place = refused.get(sentence.index)
        if (wanted is None) != (place is not None) or there != (wanted or []) or place not in (None, sentence.index):
            found.count(kind, (), f"record {sentence.index} {record!r}: {there} {place}, wanted {wanted}")
    for fault in faults_of(str(output)):
        found.count(kind, (), fault)
    found.count(kind, dict(zip(COLUMNS, (len(records), full, len(records) - full - len(refused), len(refused)), strict=True)))
