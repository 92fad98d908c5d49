"""Damage to files of finished stores: `verify` names the file, or readers refuse, or the bytes read are unchanged."""

import json
import random
import re
from pathlib import Path
from typing import Any

import elmo_store
from benchmarks.chaos.job import Command, Outcomes, SmallJob
from elmo_store.checking.verify import verify
from elmo_store.errors import StoreError
from elmo_store.format.layout import MANIFEST
from elmo_store.storage.root import Root

STORES = {
    "zarr, crc32c": ("zarr", "--checksum", "crc32c"),
    "zarr, crc32c, zstd": ("zarr", "--checksum", "crc32c", "--compression", "zstd"),
    "zarr, crc32c, blosc": ("zarr", "--checksum", "crc32c", "--compression", "blosc"),
    "zarr, int8, crc32c": ("zarr", "--dtype", "int8", "--checksum", "crc32c"),
    "parquet, crc32c": ("parquet", "--checksum", "crc32c"),
    "parquet, zstd": ("parquet", "--compression", "zstd"),
    "both, no checksum": ("both",),
}
KINDS = ("flipped", "swapped", "truncated", "older", "deleted", "added")  # a bit flipped; the others are of whole files
COLUMNS = ("files", "named by verify", "changes nothing", "missed", "readers refused", "read as before", "read wrong")

Change = dict[str, bytes | None]  # object → what it holds now; None: nothing, it is gone


def damage(
    folder: Path, n_damages: int, seed: int = 0, kinds: tuple[str, ...] = KINDS, stores: tuple[str, ...] = tuple(STORES)
) -> Outcomes:
    """So many damages of each kind in ``kinds``, spread over the stores; each is undone before the next."""
    draw, outcomes = random.Random(seed), Outcomes("damage" if len(kinds) > 1 else "store", COLUMNS)
    roots = {name: _made(folder / "stores", name, 7) for name in stores}
    olds = {name: _made(folder / "older", name, 8) for name in stores}
    before = {name: _everything(root) for name, root in roots.items()}
    for kind in kinds:
        for number in range(n_damages):
            name = stores[number % len(stores)]
            root, row = roots[name], kind if len(kinds) > 1 else name
            change = _change(root, olds[name], kind, draw)
            whole: Change = {rel: root.get(rel) if root.exists(rel) else None for rel in change}
            try:
                _put(root, change)
                verified, read = _verified(root, whole, change), _read(root, before[name])
            except Exception as error:  # anything but our own errors is a fault of ours
                outcomes.count(row, ["files"], f"{[*change]}: {error!r}")
                continue
            finally:
                _put(root, whole)
            checked = name != "both, no checksum" or not any("states" in rel for rel in change)
            wrong = verified == "missed" or (kind == "flipped" and read == "read wrong" and checked)
            outcomes.count(row, ("files", verified, read), f"{[*change]}: {verified}, {read}" if wrong else "")
    return outcomes


def _made(folder: Path, name: str, text_seed: int) -> Root:
    job = SmallJob.make(folder / "input", n_files=3, n_lines=20, text_seed=text_seed)
    output = folder / name.replace(", ", "-")
    Command(job.arguments(output, *STORES[name]), folder / "log").succeed()
    return Root(output)


def _change(root: Root, old: Root, kind: str, draw: random.Random) -> Change:
    """One damage of a random object."""
    names = sorted(root.list())
    rel = draw.choice(names)
    whole = root.get(rel)
    if kind == "flipped":
        bit, flipped = draw.randrange(8 * len(whole)), bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        return {rel: bytes(flipped)}
    if kind == "truncated":
        return {rel: whole[: draw.randrange(len(whole))]}
    if kind == "deleted":
        return {rel: None}
    if kind == "added" and re.search(r"\d", rel):  # a copy under a number that the store has not
        return {re.sub(r"\d+", lambda number: f"{int(number[0]) + 1000:0{len(number[0])}}", rel, count=1): whole}
    if kind == "older" and old.exists(rel) and old.get(rel) != whole:
        return {rel: old.get(rel)}
    if kind == "swapped":
        alike = [name for name in names if Path(name).parent == Path(rel).parent and root.get(name) != whole]
        if alike:
            other = draw.choice(alike)
            return {rel: root.get(other), other: whole}
    return _change(root, old, kind, draw)  # this one can't be damaged so


def _put(root: Root, change: Change) -> None:
    for rel, data in change.items():
        if data is None:
            root.remove(rel)
        else:
            root.put(rel, data)


def _verified(root: Root, whole: Change, change: Change) -> str:
    try:
        faults = "\n".join(fault.text for fault in verify(elmo_store.open(str(root))).faults)
    except StoreError as error:  # damage where everything begins
        faults = str(error)
    if faults:
        # A damaged marker may accuse the object that it names.
        named = any(rel in faults or rel.startswith("_") or rel == MANIFEST for rel in change)
        return "named by verify" if named else "missed"
    return "changes nothing" if all(_says_the_same(rel, whole[rel], now) for rel, now in change.items()) else "missed"


def _says_the_same(rel: str, whole: bytes | None, now: bytes | None) -> bool:
    """JSON that says the same in other bytes; of a marker, of the same objects, by whichever run."""
    try:
        values = [json.loads(data or b"") for data in (whole, now)]
    except ValueError:
        return False
    if rel.startswith("_"):
        values = [{key: value for key, value in marker.items() if key not in ("plan", "stats", "sha256")} for marker in values]
    return rel.endswith(".json") and values[0] == values[1]


def _everything(root: Root) -> Any:
    """All that a reader gives: states, tokens, ids."""
    store = elmo_store.open(str(root))
    sentences = [(sentence.id, sentence.source, list(sentence.tokens)) for sentence in store]
    return store.read().tobytes(), sentences, [store.sentence(id=id).index for id, _, _ in sentences[:3]]


def _read(root: Root, before: Any) -> str:
    try:
        return "read as before" if _everything(root) == before else "read wrong"
    except StoreError:
        return "readers refused"
