"""An approximate index of all rows of a store, for any mix of its layers: one FAISS inverted file, kept beside the store.

A row is kept as all its states side by side, each layer divided by its length, in 8 bits a number; the lengths stand in a file
of their own. One inner product with a query that is weighed layer by layer ranks rows by any mix, so one index serves every s;
the best are ranked again by the mix's true cosine, from the same bytes.
"""

import hashlib
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.figures.gather import evenly
from elmo_store.figures.vectors import Float
from elmo_store.format.index_record import IndexRecord, damaged, publish, read_record, withdraw
from elmo_store.format.layout import MANIFEST
from elmo_store.format.layout import VECTOR_INDEX as FOLDER
from elmo_store.format.markers import ObjectRecord
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root
from elmo_store.store import Store
from pipeline.explore.vectors import Found

INDEX, LENGTHS = f"{FOLDER}/rows.faiss", f"{FOLDER}/lengths.npy"
REMEDY = "elmo-store index STORE"
BLOCK_ROWS = 32_768
MOST_LISTS = 4096
TRAINING_ROWS_A_LIST, TRAINING_BLOCK = 40, 64  # neighbouring rows are read together
LISTS_LOOKED_AT = 24
CANDIDATES = 256


def layer_slices(n_states: int, channels: int, kind: str) -> list[slice]:
    """Columns of each layer among a row's states side by side: x, then pairs; of a mixed store one a set."""
    if kind == "mix":
        return [slice(k * channels, (k + 1) * channels) for k in range(n_states)]
    pairs = [slice((2 * j - 1) * channels, (2 * j + 1) * channels) for j in range(1, (n_states + 1) // 2)]
    return [slice(0, channels), *pairs]


def unit_rows(states: npt.NDArray[Any], kind: str) -> tuple[Float, Float]:
    """Rows with each layer divided by its length, and the lengths: [n, S, p] → [n, S·p], [n, layers]."""
    n, n_states, channels = states.shape
    rows = states.reshape(n, n_states * channels).astype(np.float32)
    slices = layer_slices(n_states, channels, kind)
    lengths = np.stack([np.linalg.norm(rows[:, one], axis=1) for one in slices], axis=1)
    for k, one in enumerate(slices):
        rows[:, one] /= np.maximum(lengths[:, k : k + 1], np.float32(1e-12))
    return rows, lengths.astype(np.float32)


def build(store: Store, tell: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Build the index of a store and put it beside it; returns the facts that stand with it. ``tell``: rows done, of how many.

    LeaseHeldError while another command writes to the store.
    """
    with LeaseHolder.take(store.root, uuid.uuid4().hex) as holder:
        return _build(holder, store, tell)


def _build(holder: LeaseHolder, store: Store, tell: Callable[[int, int], None]) -> dict[str, Any]:
    import faiss

    n, width = store.n_rows, len(store.states) * store.channels
    kind = store.manifest.kind
    n_lists = int(max(1, min(MOST_LISTS, n // TRAINING_ROWS_A_LIST, round(n**0.5))))
    index = faiss.index_factory(width, f"IVF{n_lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    blocks = evenly(-(-n // TRAINING_BLOCK), max(1, n_lists * TRAINING_ROWS_A_LIST // TRAINING_BLOCK))
    rows = np.concatenate([np.arange(b * TRAINING_BLOCK, min((b + 1) * TRAINING_BLOCK, n)) for b in blocks])
    sample = store.read(rows=rows)
    index.train(unit_rows(sample, kind)[0])
    lengths = np.empty((n, len(layer_slices(len(store.states), store.channels, kind))), np.float16)
    for first in range(0, n, BLOCK_ROWS):
        stop = min(first + BLOCK_ROWS, n)
        units, lengths[first:stop] = unit_rows(store.read(rows=slice(first, stop)), kind)
        index.add(units)
        tell(stop, n)
    facts = {"rows": n, "lists": n_lists, "store": _identity(store.root), "kind": kind, "states": list(store.states)}
    withdraw(store.root, FOLDER)
    objects = []
    with scratch_folder() as folder:
        for name, write in ((INDEX, lambda p: faiss.write_index(index, p)), (LENGTHS, lambda p: np.save(p, lengths))):
            path = folder / Path(name).name
            write(str(path))
            objects.append(ObjectRecord(name, path.stat().st_size, _sha256(path)))
            store.root.put_file(name, str(path))
    publish(holder, FOLDER, facts, objects)
    return facts


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _identity(root: Root) -> str:
    """Of the store that an index belongs to: its manifest's bytes."""
    return hashlib.sha256(root.get(MANIFEST)).hexdigest()


class Index:
    """An index that was built, opened: of a local store it is read where it lies, from elsewhere it is fetched once.

    StoreError for files that are not those of ``record``, or no index of this store.
    """

    def __init__(self, store: Store, record: IndexRecord) -> None:
        import faiss

        root = store.root
        self._scratch = ExitStack()  # kept as long as the index is: its files are read where they lie
        folder = None if root.is_local else self._scratch.enter_context(scratch_folder())
        paths = [_local(root, name, record, folder) for name in (INDEX, LENGTHS)]
        self._slices = layer_slices(len(store.states), store.channels, store.manifest.kind)
        try:
            index: Any = faiss.read_index(paths[0], faiss.IO_FLAG_MMAP)
            self._lengths = np.load(paths[1], mmap_mode="r")
        except (RuntimeError, ValueError, EOFError) as error:
            raise damaged(root, FOLDER, f"can't be read ({str(error)[:200]})", REMEDY) from error
        shape, wanted = (index.ntotal, index.d), (store.n_rows, len(store.states) * store.channels)
        if shape != wanted or self._lengths.shape != (store.n_rows, len(self._slices)):
            raise damaged(root, FOLDER, f"has {shape[0]} rows of {shape[1]}, the store {wanted[0]} of {wanted[1]}", REMEDY)
        index.nprobe = LISTS_LOOKED_AT
        self._index = index
        root.confirm()  # after they were opened
        self._doubled = store.manifest.kind == "states"
        some = self._lengths[:: max(1, len(self._lengths) // 10_000)]
        self._usual = np.asarray(some, np.float32).mean(axis=0)  # [layers]

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def nearest(self, query: Float, s: Sequence[float], n: int, without: int | None = None) -> list[Found]:
        """About the ``n`` rows nearest to the query's mix. ``query``: [L+1, 2p], as `vectors.query_layers` gives it."""
        weights = np.asarray(s, np.float32)
        m = weights @ query
        parts = [m.reshape(2, -1).sum(axis=0) if self._doubled and k == 0 else m for k in range(len(weights))]
        wanted = np.concatenate([w * usual * part for w, usual, part in zip(weights, self._usual, parts, strict=True)])
        _, rows, kept = self._index.search_and_reconstruct(wanted[None].astype(np.float32), min(CANDIDATES, len(self)))
        there = (rows[0] >= 0) & (rows[0] != (-1 if without is None else without))
        rows, kept = rows[0][there], kept[0][there]  # [c], [c, S·p] with layers of length 1
        lengths = np.asarray(self._lengths[rows], np.float32)
        mixes = np.zeros((len(rows), len(m)), np.float32)
        for k, one in enumerate(self._slices):
            layer = kept[:, one] * lengths[:, k : k + 1]
            mixes += weights[k] * (np.concatenate([layer, layer], axis=1) if self._doubled and k == 0 else layer)
        size = np.linalg.norm(mixes, axis=1) * np.linalg.norm(m)
        cosines = np.divide(mixes @ m, size, out=np.zeros(len(rows), np.float32), where=size > 1e-12)
        best = np.lexsort((rows, -cosines))[:n]
        return [Found(int(rows[i]), -1, float(cosines[i])) for i in best]


def _local(root: Root, rel: str, record: IndexRecord, folder: Path | None) -> str:
    """Where a file of the index lies on this machine (fetched into ``folder``, if any), once it was compared with the record."""
    wanted = record.objects.get(rel)
    if wanted is None or root.size(rel) != wanted.bytes:
        raise damaged(root, rel, "is missing or of another size than its record says", REMEDY)
    path = Path(root.path(rel))
    if folder is not None:
        path = folder / Path(rel).name
        root.filesystem.get_file(root.path(rel), str(path))
    if _sha256(path) != wanted.sha256:
        raise damaged(root, rel, "is not what its record says", REMEDY)
    return str(path)


def open_index(store: Store) -> Index | None:
    """The index beside a store, None without one. StoreError if it is damaged or another store's."""
    record = read_record(store.root, FOLDER, _identity(store.root), REMEDY)
    return None if record is None else Index(store, record)
