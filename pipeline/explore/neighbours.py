"""Nearest rows of a store by any mix of its layers: exact over a sample in memory, approximate over all rows by an index.

The cosine of two mixes is sᵀ P s / √(sᵀ Q s · sᵀ G s), where P holds the products of the query's layers with the row's, Q and G
those of each one's layers among themselves. G is taken once for all rows, P once for each query: a new s then costs (L+1)²
numbers a row, and no row is ever mixed.

The index is one FAISS inverted file, kept beside the store. A row is kept as all its states side by side, each layer divided by
its length, in 8 bits a number; the lengths stand in a file of their own. One inner product with a query that is weighed layer by
layer ranks rows by any mix, so one index serves every s; the best are ranked again by the mix's true cosine, from the same bytes.
"""

import hashlib
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.figures.gather import VectorSample, evenly
from elmo_store.figures.vectors import Float, layer_name
from elmo_store.format.index_record import IndexRecord, damaged, publish, read_record, withdraw
from elmo_store.format.layout import MANIFEST
from elmo_store.format.layout import VECTOR_INDEX as FOLDER
from elmo_store.format.markers import ObjectRecord
from elmo_store.mixing.scalar_mix import layers_of_states
from elmo_store.storage.data import crc32c_of_file
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.root import Root
from elmo_store.store import Collection, Store
from pipeline.explore.lists import Lists

INDEX, LENGTHS = f"{FOLDER}/rows.faiss", f"{FOLDER}/lengths.npy"
REMEDY = "elmo-store index STORE"
BLOCK_BYTES = 64 << 20  # of rows in float32, added at a time
GRAM_ROWS = 1024
MOST_LISTS = 4096
TRAINING_ROWS_A_LIST, TRAINING_BLOCK, TRAINING_BYTES = 40, 64, 1 << 30  # neighbouring rows are read together
LISTS_LOOKED_AT = 24
CANDIDATES = 256
OWN_WORD = 0.9995  # cosine from which, in layer 0 and 8 bits a number, it is the query's own word
TINY = np.float32(1e-12)  # below it a vector has no direction


@dataclass(frozen=True)
class Neighbour:
    """A row of the store, its index in the sample (-1 outside of it), its cosine."""

    row: int
    index: int
    cosine: float


def layers_of(states: npt.NDArray[Any], kind: str) -> Float:
    """The layers of tokens' states [n, S, p]: [n, L+1, 2p]; of a mixed store the weight sets as they are, [n, S, channels]."""
    values = states.astype(np.float32)
    return values if kind == "mix" else layers_of_states(values)


def query_layers(states: npt.NDArray[Any], kind: str) -> Float:
    """`layers_of` one token: [S, p] → [L+1, 2p]."""
    return layers_of(states[None], kind)[0]


def layer_names(states: Sequence[str], kind: str) -> list[str]:
    """What the layers of `query_layers` are called."""
    return list(states) if kind == "mix" else [layer_name(layer) for layer in range((len(states) + 1) // 2)]


class Layers:
    """Where each layer stands among a row's states side by side: x, then pairs; of a mixed store one a set.

    Layer 0 of a states store is [x; x], of which one half is held.
    """

    def __init__(self, n_states: int, channels: int, kind: str) -> None:
        self._doubles_first = kind == "states"
        width = 2 * channels if self._doubles_first else channels
        stops = [channels + k * width for k in range((n_states + 1) // 2 if self._doubles_first else n_states)]
        self.slices = [slice(max(0, stop - width), stop) for stop in stops]

    def whole(self, k: int, block: Float) -> Float:
        """Layer ``k`` [..., 2p] of what is held of it."""
        return np.concatenate([block, block], axis=-1) if k == 0 and self._doubles_first else block

    def mixed(self, blocks: Sequence[Float], s: npt.NDArray[np.float32]) -> Float:
        """Σ s_k h_k of the layers' blocks [n, …]: [n, 2p]."""
        mixed: Float = sum(weight * self.whole(k, block) for k, (weight, block) in enumerate(zip(s, blocks, strict=True)))
        return mixed

    def queries(self, m: Float) -> list[Float]:
        """What each layer's block is to be multiplied with, so that the product is that of the whole layer and ``m`` [2p]."""
        folded = [m.reshape(2, -1).sum(axis=0)] if self._doubles_first else []
        return folded + [m] * (len(self.slices) - len(folded))

    def units(self, states: npt.NDArray[Any]) -> tuple[Float, Float]:
        """Rows with each layer divided by its length, and the lengths: [n, S, p] → [n, S·p], [n, layers]."""
        rows = states.reshape(len(states), -1).astype(np.float32)
        lengths = np.stack([np.linalg.norm(rows[:, columns], axis=1) for columns in self.slices], axis=1)
        for k, columns in enumerate(self.slices):
            rows[:, columns] /= np.maximum(lengths[:, k : k + 1], TINY)
        return rows, lengths.astype(np.float32)


class RowSample:
    """Rows of a store in memory, ready for any mix.

    Attributes:
        text: the rows' tokens, sentences and positions; its states are empty, they are held here in float32.
    """

    def __init__(self, sample: VectorSample, kind: str) -> None:
        n, n_states, channels = sample.states.shape
        self.text = replace(sample, states=sample.states[:0])
        self._layers = Layers(n_states, channels, kind)
        rows = sample.states.reshape(n, -1)
        self._blocks = [np.ascontiguousarray(rows[:, columns], np.float32) for columns in self._layers.slices]
        gram = np.empty((n, len(self._blocks), len(self._blocks)), np.float32)
        for first in range(0, n, GRAM_ROWS):
            few = slice(first, first + GRAM_ROWS)
            layers = [self._layers.whole(k, block[few]) for k, block in enumerate(self._blocks)]
            for (i, layer), (j, other) in combinations_with_replacement(enumerate(layers), 2):
                gram[few, i, j] = gram[few, j, i] = np.einsum("nd,nd->n", layer, other)
        self._index = {int(row): index for index, row in enumerate(sample.row)}
        self._gram = gram.reshape(n, -1)
        self._asked: tuple[bytes, Float] = (b"", np.empty((0, 0), np.float32))  # the last query, and its products
        self._rows_of: dict[str, list[int]] = {}
        for index, token in enumerate(sample.token):
            self._rows_of.setdefault(token, []).append(index)
        self._first_of_each = np.array([rows[0] for rows in self._rows_of.values()], np.int64)

    def __len__(self) -> int:
        return len(self.text.row)

    def index_of(self, row: int) -> int | None:
        """Where a row of the store is in the sample."""
        return self._index.get(row)

    def layers_at(self, index: int) -> Float:
        """The layers of one row: [L+1, 2p]."""
        return np.stack([self._layers.whole(k, block[index]) for k, block in enumerate(self._blocks)])

    def cosines(self, query: Float, s: Sequence[float]) -> Float:
        """Cosine of the query's mix with every row's: [n]. ``query``: [L+1, 2p]; zero where a mix has no length."""
        weights = np.asarray(s, np.float32)
        pairs = np.outer(weights, weights).reshape(-1)
        lengths = np.sqrt(np.maximum(self._gram @ pairs, 0)) * np.linalg.norm(weights @ query)
        return _divided(self._products(query) @ pairs, lengths)

    def _products(self, query: Float) -> Float:
        """Products of the query's layers with each row's: [n, layers²]. Those of the last query are kept."""
        key, products = self._asked
        if key != query.tobytes():
            folded = [
                np.stack(vectors) for vectors in zip(*map(self._layers.queries, query), strict=True)
            ]  # a layer: [layers, w]
            products = np.stack([block @ q.T for block, q in zip(self._blocks, folded, strict=True)], axis=1).reshape(
                len(self), -1
            )
            self._asked = (query.tobytes(), products)
        return products

    def nearest(
        self, query: Float, s: Sequence[float], n: int, without: int | None = None, *, types: bool = False
    ) -> list[Neighbour]:
        """The ``n`` rows nearest to the query's mix, without the row ``without`` of the store.

        ``types``: one row of each word, without that row's word: for layer 0, where all rows of a word are one vector.
        """
        cosines = self.cosines(query, s)
        left_out = None if without is None else self.index_of(without)
        if left_out is not None:
            cosines[self._rows_of[self.text.token[left_out]] if types else left_out] = -2
        rows = self._first_of_each if types else np.arange(len(self))
        rows = rows[cosines[rows] > -2]
        n = min(n, len(rows))
        if n <= 0:
            return []
        best = rows[np.argpartition(-cosines[rows], n - 1)[:n]]
        best = best[np.lexsort((best, -cosines[best]))]
        return [Neighbour(int(self.text.row[index]), int(index), float(cosines[index])) for index in best]

    def occurrences(self, word: str, most: int) -> tuple[npt.NDArray[np.int64], int]:
        """Where a word is in the sample, in order: at most so many, drawn at random (the same every time), and of how many."""
        rows = np.array(self._rows_of.get(word, ()), np.int64)
        drawn = rows if len(rows) <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
        return drawn, len(rows)

    def mixed(self, indices: npt.NDArray[np.int64], s: Sequence[float]) -> Float:
        """Σ s_k h_k of some rows: [len(indices), 2p]."""
        return self._layers.mixed([block[indices] for block in self._blocks], np.asarray(s, np.float32))


def _divided(dots: Float, lengths: Float) -> Float:
    cosines: Float = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > TINY)
    return cosines


def build(store: Store, on_progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Build the index of a store and put it beside it; returns the facts that stand with it. ``on_progress``: rows, of how many.

    LeaseHeldError while another command writes to the store.
    """
    with LeaseHolder.take(store.root, uuid.uuid4().hex) as holder:
        return _build(holder, store, on_progress)


def _build(holder: LeaseHolder, store: Store, on_progress: Callable[[int, int], None]) -> dict[str, Any]:
    n, root = store.n_rows, store.root
    layers = Layers(len(store.states), store.channels, store.manifest.kind)
    index = _trained(store, layers)
    block_rows = max(1, BLOCK_BYTES // (index.d * 4))
    with scratch_folder() as folder:
        index_path, lengths_path = (folder / Path(name).name for name in (INDEX, LENGTHS))
        lengths = np.lib.format.open_memmap(lengths_path, "w+", np.float16, (n, len(layers.slices)))
        lists = Lists(index, folder)
        for first in range(0, n, block_rows):
            stop = min(first + block_rows, n)
            units, lengths[first:stop] = layers.units(store.read(rows=slice(first, stop)))
            lists.add(units, first)
            on_progress(stop, n)
        lengths.flush()
        lists.write(index_path)
        facts = {
            "rows": n,
            "lists": index.nlist,
            "store": _identity(store),
            "kind": store.manifest.kind,
            "states": list(store.states),
        }
        withdraw(root, FOLDER)
        objects = []
        for name, path in ((INDEX, index_path), (LENGTHS, lengths_path)):
            objects.append(ObjectRecord(name, path.stat().st_size, crc32c_of_file(str(path))))
            root.put(name, path)
    publish(holder, FOLDER, facts, objects)
    return facts


def _trained(store: Store, layers: Layers) -> Any:
    """An empty index whose lists are those of a sample of the rows, of `TRAINING_BYTES` at most in float32."""
    import faiss

    n, width = store.n_rows, len(store.states) * store.channels
    most_rows = min(n, TRAINING_BYTES // (4 * width))
    n_lists = int(max(1, min(MOST_LISTS, most_rows // TRAINING_ROWS_A_LIST, round(n**0.5))))
    index = faiss.index_factory(width, f"IVF{n_lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    blocks = evenly(-(-n // TRAINING_BLOCK), max(1, n_lists * TRAINING_ROWS_A_LIST // TRAINING_BLOCK))
    rows = np.concatenate([np.arange(b * TRAINING_BLOCK, min((b + 1) * TRAINING_BLOCK, n)) for b in blocks])
    index.train(layers.units(store.read(rows=rows))[0])
    return index


def _identity(store: Store) -> str:
    """Of the store that an index belongs to: its manifest's bytes; of a collection what it holds."""
    if isinstance(store, Collection):
        return str(store.manifest.to_json()["sha256"])
    return hashlib.sha256(store.root.get(MANIFEST)).hexdigest()


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
        self._layers = Layers(len(store.states), store.channels, store.manifest.kind)
        try:
            index: Any = faiss.read_index(paths[0], faiss.IO_FLAG_MMAP)
            self._lengths = np.load(paths[1], mmap_mode="r")
        except (RuntimeError, ValueError, EOFError) as error:
            raise damaged(root, FOLDER, f"can't be read ({str(error)[:200]})", REMEDY) from error
        shape, wanted = (index.ntotal, index.d), (store.n_rows, len(store.states) * store.channels)
        if shape != wanted or self._lengths.shape != (store.n_rows, len(self._layers.slices)):
            raise damaged(root, FOLDER, f"has {shape[0]} rows of {shape[1]}, the store {wanted[0]} of {wanted[1]}", REMEDY)
        index.nprobe = LISTS_LOOKED_AT
        self._index = index
        root.confirm()  # after they were opened
        sampled = self._lengths[:: max(1, len(self._lengths) // 10_000)]
        self._usual = np.asarray(sampled, np.float32).mean(axis=0)  # [layers]

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def nearest(
        self, query: Float, s: Sequence[float], n: int, without: int | None = None, *, types: bool = False
    ) -> list[Neighbour]:
        """About the ``n`` rows nearest to the query's mix. ``query``: [L+1, 2p], as `query_layers` gives it.

        ``types``: of rows that are as near as one another the first alone, and of the query's own word none.
        """
        weights = np.asarray(s, np.float32)
        m = weights @ query
        weighed = zip(weights, self._usual, self._layers.queries(m), strict=True)
        wanted = np.concatenate([weight * usual * vector for weight, usual, vector in weighed])
        _, rows, kept = self._index.search_and_reconstruct(wanted[None].astype(np.float32), min(CANDIDATES, len(self)))
        valid = (rows[0] >= 0) & (rows[0] != (-1 if without is None else without))
        rows, kept = rows[0][valid], kept[0][valid]  # [c], [c, S·p] with layers of length 1
        lengths = np.asarray(self._lengths[rows], np.float32)
        blocks = [kept[:, columns] * lengths[:, k : k + 1] for k, columns in enumerate(self._layers.slices)]
        mixes = self._layers.mixed(blocks, weights)
        cosines = _divided(mixes @ m, np.linalg.norm(mixes, axis=1) * np.linalg.norm(m))
        best = np.lexsort((rows, -cosines))
        if types:
            best = best[np.unique(np.round(-cosines[best], 4), return_index=True)[1]]
            best = best[cosines[best] < OWN_WORD] if without is not None else best
        best = best[:n]
        return [Neighbour(int(rows[i]), -1, float(cosines[i])) for i in best]


def _local(root: Root, rel: str, record: IndexRecord, folder: Path | None) -> str:
    """Where a file of the index lies on this machine (fetched into ``folder``, if any), once it was compared with the record."""
    wanted = record.objects.get(rel)
    if wanted is None or root.size(rel) != wanted.bytes:
        raise damaged(root, rel, "is missing or of another size than its record says", REMEDY)
    path = Path(root.path(rel))
    if folder is not None:
        path = folder / Path(rel).name
        root.calls.get_file(root.path(rel), str(path))
    if crc32c_of_file(str(path)) != wanted.crc32c:
        raise damaged(root, rel, "is not what its record says", REMEDY)
    return str(path)


def open_index(store: Store) -> Index | None:
    """The index beside a store, None without one. StoreError if it is damaged or another store's."""
    record = read_record(store.root, FOLDER, _identity(store), REMEDY)
    return None if record is None else Index(store, record)
