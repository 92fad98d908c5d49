"""One bit flipped in a random file of a store: `verify` names the file or the bytes read are unchanged; no reader is wrong.

May import benchmarks.chaos.job and elmo_store.
"""

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import elmo_store
from benchmarks.chaos.job import Command, SmallJob, table
from elmo_store.errors import StoreError
from elmo_store.layout import MANIFEST
from elmo_store.storage import Root
from elmo_store.verify import verify

STORES = {
    "zarr, crc32c": ("zarr", "--checksum", "crc32c"),
    "zarr, crc32c, zstd": ("zarr", "--checksum", "crc32c", "--compression", "zstd"),
    "zarr, crc32c, blosc": ("zarr", "--checksum", "crc32c", "--compression", "blosc"),
    "zarr, int8, crc32c": ("zarr", "--dtype", "int8", "--checksum", "crc32c"),
    "parquet, crc32c": ("parquet", "--checksum", "crc32c"),
    "parquet, zstd": ("parquet", "--compression", "zstd"),
    "both, no checksum": ("both",),
}
UNCHECKED = frozenset({"both, no checksum"})  # a flipped bit of a state is another number there, and `verify` says so
OUTCOMES = ("named by verify", "changes nothing", "missed", "readers refused", "read as before", "read wrong")


@dataclass
class BitFlips:
    """What became of the flips."""

    by_store: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def table(self) -> str:
        """A row a kind of store."""
        rows = [[name, sum(c[o] for o in OUTCOMES[:3]), *(c[o] for o in OUTCOMES)] for name, c in self.by_store.items()]
        head = ["store", "flips", *OUTCOMES]
        return f"{table(head, rows)}\n\nflips that were missed, or read wrong with checksums on: {len(self.wrong)}"


def run(folder: Path, n_flips: int, seed: int = 0, stores: tuple[str, ...] = tuple(STORES)) -> BitFlips:
    """So many flips, spread over the kinds of stores; each is undone before the next."""
    draw = random.Random(seed)
    job = SmallJob.make(folder / "input", n_files=3, n_lines=20)
    found = BitFlips()
    roots = {}
    for name in stores:
        form, *options = STORES[name]
        output = folder / name.replace(", ", "-")
        if Command(job.arguments(output, form, *options), folder / "log").wait():
            raise RuntimeError(f"the job of {name} fails without any fault")
        roots[name] = Root(output)
        found.by_store[name] = Counter()
    before = {name: _everything(root) for name, root in roots.items()}
    for number in range(n_flips):
        name = stores[number % len(stores)]
        root = roots[name]
        rel = draw.choice(root.list())
        whole = root.get(rel)
        place = draw.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        root.put(rel, bytes(flipped))
        try:
            seen, read = _verified(root, rel, whole, bytes(flipped)), _read(root, before[name])
        except Exception as error:  # anything but our own errors is a fault of ours
            found.wrong.append(f"{name}: bit {place} of {rel}: {error!r}")
            continue
        finally:
            root.put(rel, whole)
        found.by_store[name].update((seen, read))
        if seen == "missed" or (read == "read wrong" and (name not in UNCHECKED or "states" not in rel)):
            found.wrong.append(f"{name}: bit {place} of {rel}: {seen}, {read}")
    return found


def _verified(root: Root, rel: str, whole: bytes, flipped: bytes) -> str:
    try:
        faults = "\n".join(fault.text for fault in verify(elmo_store.open(str(root))).faults)
    except StoreError as error:  # damage where everything begins
        faults = str(error)
    if faults:
        # A flipped marker may accuse the object that it names.
        return "named by verify" if rel in faults or rel.startswith("_") or rel == MANIFEST else "missed"
    return "changes nothing" if _says_the_same(rel, whole, flipped) else "missed"


def _says_the_same(rel: str, whole: bytes, flipped: bytes) -> bool:
    """JSON that says the same in other bytes, or numbers of a marker that nobody reads as part of the store."""
    if not rel.endswith(".json"):
        return False
    try:
        was, now = json.loads(whole), json.loads(flipped)
    except ValueError:
        return False
    return {k: v for k, v in now.items() if k != "stats"} == {k: v for k, v in was.items() if k != "stats"}


def _everything(root: Root) -> Any:
    """All that a reader gives: states, tokens, ids."""
    store = elmo_store.open(str(root))
    sentences = [(one.id, one.source, list(one.tokens)) for one in store]
    return store.read().tobytes(), sentences, [store.sentence(id=one).index for one, _, _ in sentences[:3]]


def _read(root: Root, before: Any) -> str:
    try:
        return "read as before" if _everything(root) == before else "read wrong"
    except StoreError:
        return "readers refused"
