"""`cached`: a store whose rows, once read, stay in a local folder, up to a bound. For training on a remote store, epoch after
epoch.

The folder holds ``KEY/STATE/BLOCK.rows``: `BLOCK_ROWS` rows of one state as the store has them (of an int8 store the values and
then the scale of each row), and their CRC-32C in 4 bytes. KEY is a hash of what the store holds, so stores of the same vectors
share their blocks and a rewritten store has others; STATE is a hash of the state's name. Files of other names are left alone.
Several processes may use one folder. What was used longest ago goes first.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import Empty, Int8Rows
from elmo_store.forms.runs import cut
from elmo_store.reading.rows import Array, Int64, Readable, Spans
from elmo_store.reading.sentences import SentenceRecord
from elmo_store.reading.store import StoreReader
from elmo_store.reading.text_index import Text
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import check_apart

BLOCK_ROWS = 1024
FETCH_BLOCKS = 32  # that are fetched and held at a time
_CHECKSUM_BYTES = 4
_HASH = "[0-9a-f]" * 32
_TEMPORARY = ".writing-"


class CachedStore(Readable):
    """A store behind a local cache of its rows; everything else is the store's own. Use `cached`."""

    def __init__(self, store: StoreReader, folder: Path, max_bytes: int) -> None:
        if not store.manifest.complete or store.manifest.checksums is None:
            raise StoreError(f"{store.url} is not complete: its rows may change, so they can't be kept")
        # A row of a state as it is kept: numbers, or bytes of int8 values and their scale.
        self._kept_dtype = np.dtype(np.uint8) if store.is_int8 else store.dtype
        self._width = store.channels + (layout.SCALE_BYTES if store.is_int8 else 0)
        block_bytes = BLOCK_ROWS * self._width * self._kept_dtype.itemsize + _CHECKSUM_BYTES
        if max_bytes < block_bytes * len(store.states):
            raise ValueError(
                f"max_bytes={max_bytes}: {BLOCK_ROWS} rows of {store.url} take {block_bytes * len(store.states):,} bytes"
            )
        self.store, self.folder, self.max_bytes = store, folder, max_bytes
        self._is_as(store)
        self.n_sentences, self.n_tokens, self.n_rows = store.n_sentences, store.n_tokens, store.n_rows
        own = folder / _hash(f"{store.manifest.checksums.shards} {BLOCK_ROWS}")
        self._folders = [own / _hash(state) for state in store.states]

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedStore, (self.store, self.folder, self.max_bytes)

    def __repr__(self) -> str:
        return f"<{self.store!r} cached in {self.folder}, up to {self.max_bytes:,} bytes>"

    @property
    def manifest(self) -> Manifest:
        """The store's."""
        return self.store.manifest

    def _spans(self, numbers: Sequence[int] | Int64) -> Int64:
        return self.store._spans(numbers)

    def _records(self, numbers: Sequence[int]) -> list[SentenceRecord]:
        return self.store._records(numbers)

    def _find(self, ids: Sequence[str]) -> list[int]:
        return self.store._find(ids)

    def _find_text(self, texts: Sequence[Text]) -> list[int | None]:
        return self.store._find_text(texts)

    def _tokens(self, first: int, stop: int) -> list[str]:
        return self.store._tokens(first, stop)

    def _read(self, states: Sequence[int], spans: Spans, raw: bool = False, empty: Empty = np.empty) -> Any:
        rows = self._read_as_kept(states, np.asarray(spans, np.int64))
        if not self.is_int8:
            return rows
        scale = np.ascontiguousarray(rows[..., self.channels :]).view("<f4")[..., 0]  # [rows, states, channels + 4] bytes
        of_bytes = Int8Rows(rows[..., : self.channels].view(np.int8), scale)
        return of_bytes if raw else of_bytes.floats()

    def _fetch(self, states: Sequence[int], spans: Int64) -> Array:
        """Rows of the store itself, as they are kept."""
        if not self.is_int8:
            rows: Array = self.store._read(states, spans)
            return rows
        values, scale = self.store._read(states, spans, raw=True)
        scale_bytes = np.ascontiguousarray(scale, "<f4")[..., None].view(np.uint8)
        return np.concatenate([values.view(np.uint8), scale_bytes], axis=-1)

    def _read_as_kept(self, states: Sequence[int], spans: Int64) -> Array:
        pieces = cut(spans, BLOCK_ROWS)
        out = np.empty((len(states), int(pieces.rows.sum()), self._width), self._kept_dtype)
        wanted: dict[int, list[tuple[int, int, int]]] = {}  # block → rows lo … hi of it, and their place in the result
        edges = zip(pieces.first.tolist(), pieces.stop.tolist(), pieces.place.tolist(), strict=True)
        for block, own in zip(pieces.of.tolist(), edges, strict=True):
            wanted.setdefault(block, []).append(own)
        blocks = sorted(wanted)
        for start in range(0, len(blocks), FETCH_BLOCKS):
            for (block, state), rows in self._blocks(states, blocks[start : start + FETCH_BLOCKS]):
                for lo, hi, at in wanted[block]:
                    out[state, at : at + hi - lo] = rows[lo:hi]
        return out.transpose(1, 0, 2)

    def _blocks(self, states: Sequence[int], blocks: Sequence[int]) -> Iterator[tuple[tuple[int, int], Array]]:
        """Rows of each block and each of ``states`` (by its place there): from the folder, the others fetched at once."""
        missing: dict[tuple[int, ...], list[int]] = {}  # places of the states that a block lacks → such blocks
        for block in blocks:
            lacking = []
            for index, state in enumerate(states):
                rows = self._kept(state, block)
                if rows is None:
                    lacking.append(index)
                else:
                    yield (block, index), rows
            if lacking:
                missing.setdefault(tuple(lacking), []).append(block)
        for indices, lacking_blocks in missing.items():
            spans = [(block * BLOCK_ROWS, min(self.n_rows, (block + 1) * BLOCK_ROWS)) for block in lacking_blocks]
            fetched = self._fetch([states[index] for index in indices], np.array(spans, np.int64))  # [rows, states, width]
            at, new = 0, []
            for block, (first, stop) in zip(lacking_blocks, spans, strict=True):
                for i, index in enumerate(indices):
                    rows = np.ascontiguousarray(fetched[at : at + stop - first, i])
                    new.append((states[index], block, rows))
                    yield (block, index), rows
                at += stop - first
            self._keep(new)

    def _path(self, state: int, block: int) -> Path:
        return self._folders[state] / f"{block}.rows"

    def _kept(self, state: int, block: int) -> Array | None:
        """A block's rows [n, width] from the folder; None if they are not there, or not what was written."""
        path = self._path(state, block)
        n = min(self.n_rows, (block + 1) * BLOCK_ROWS) - block * BLOCK_ROWS
        n_bytes = n * self._width * self._kept_dtype.itemsize + _CHECKSUM_BYTES
        try:
            data = path.read_bytes() if path.stat().st_size == n_bytes else b""
            os.utime(path)
        except FileNotFoundError:
            return None
        rows = memoryview(data)[:-_CHECKSUM_BYTES]
        if len(data) != n_bytes or _checksum(rows) != data[-_CHECKSUM_BYTES:]:
            return None
        return np.frombuffer(rows, self._kept_dtype).reshape(n, self._width)

    def _keep(self, new: Sequence[tuple[int, int, Array]]) -> None:
        """Put blocks into the folder, after as many others have gone as the bound asks for."""
        with _locked(self.folder):
            for state, block, rows in self._fitting(new):
                path = self._path(state, block)
                path.parent.mkdir(parents=True, exist_ok=True)
                data = rows.tobytes()
                handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
                with os.fdopen(handle, "wb") as file:
                    file.write(data + _checksum(data))
                os.replace(temporary, path)

    def _fitting(self, new: Sequence[tuple[int, int, Array]]) -> Sequence[tuple[int, int, Array]]:
        """The last of the new blocks that fit within the bound, room made for them."""
        sizes = [rows.nbytes + _CHECKSUM_BYTES for _, _, rows in new]
        while sum(sizes) > self.max_bytes:
            new, sizes = new[1:], sizes[1:]
        kept = []
        for path in chain.from_iterable(self.folder.glob(f"{_HASH}/{_HASH}/{name}") for name in ("*.rows", f"{_TEMPORARY}*")):
            with suppress(FileNotFoundError):
                status = path.stat()
                kept.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in kept) + sum(sizes)
        for _, size, path in sorted(kept, key=lambda entry: entry[0]):
            if total <= self.max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
        return new


def cached(store: StoreReader, folder: str | os.PathLike[str], *, max_bytes: int) -> CachedStore:
    """A store whose rows, once read, stay in the local ``folder``, which never takes more than ``max_bytes``.

    For stores far away that are read again and again. Blocks of 1,024 rows of a state are fetched and kept whole, so the first
    read of a sentence costs more than its rows. Text and the rows' places are not kept. Several processes may share a folder.

    StoreError for an unfinished store, OverlapError for a folder that overlaps the store, ValueError for a bound that one block
    does not fit in.
    """
    check_apart(Location("folder", os.fspath(folder)), [Location("store", store.url, store.root.storage_options)])
    return CachedStore(store, Path(folder), max_bytes)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time counts and writes."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _hash(text: str) -> str:
    """The name of a folder, whatever the text holds."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _checksum(data: Any) -> bytes:
    return int(google_crc32c.value(bytes(data))).to_bytes(_CHECKSUM_BYTES, "little")
