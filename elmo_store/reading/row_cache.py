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
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.numbers import Empty, Int8Rows
from elmo_store.forms.runs import Places, cut
from elmo_store.reading.rows import Array, Int64, Span, Spans
from elmo_store.reading.sentences import SentenceRecord
from elmo_store.reading.store import Held, StoreReader
from elmo_store.reading.text_index import UInt64
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import check_apart

BLOCK_ROWS = 1024
FETCH_BLOCKS = 32  # that are fetched and held at a time
_CHECKSUM_BYTES = 4
_HASH = "[0-9a-f]" * 32
_TEMPORARY = ".writing-"


class CachedStore(StoreReader):
    """A store behind a local cache of its rows; everything else is the store's own. Use `cached`."""

    def __init__(self, store: StoreReader, folder: Path, max_bytes: int) -> None:
        super().__init__(store.root, store.manifest, store.form)
        if not store.manifest.complete or store.manifest.checksums is None:
            raise StoreError(f"{store.url} is not complete: its rows may change, so they can't be kept")
        # A row of a state as it is kept: numbers, or bytes of int8 values and their scale.
        self._kept_dtype = np.dtype(np.uint8) if store.is_int8 else store.dtype
        self._width = store.channels + (layout.SCALE_BYTES if store.is_int8 else 0)
        block_bytes = self._block_bytes(BLOCK_ROWS)
        if max_bytes < block_bytes * len(store.states):
            raise ValueError(
                f"max_bytes={max_bytes}: {BLOCK_ROWS} rows of {store.url} take {block_bytes * len(store.states):,} bytes"
            )
        self.store, self.folder, self.max_bytes = store, folder, max_bytes
        own = folder / _hash(f"{store.manifest.checksums.shards} {BLOCK_ROWS}")
        self._folders = [own / _hash(state) for state in store.states]

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedStore, (self.store, self.folder, self.max_bytes)

    def __repr__(self) -> str:
        return f"<{self.store!r} cached in {self.folder}, up to {self.max_bytes:,} bytes>"

    def held(self) -> list[Held]:
        """Those of the store itself."""
        return self.store.held()

    @property
    def columns(self) -> list[str]:
        """Those of the store itself."""
        return self.store.columns

    def _span(self, number: int) -> Span:
        return self.store._span(number)

    def spans(self, numbers: Sequence[int] | Int64) -> Int64:
        """See `Readable.spans`."""
        return self.store.spans(numbers)

    def records(self, numbers: Sequence[int]) -> list[SentenceRecord]:
        """See `Readable.records`."""
        return self.store.records(numbers)

    def table(self, numbers: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """See `Readable.table`."""
        return self.store.table(numbers, columns)

    def find_ids(self, ids: Sequence[str]) -> list[list[int]]:
        """Those of the store itself."""
        return self.store.find_ids(ids)

    def find_hashes(self, pairs: UInt64) -> list[int | None]:
        """Those of the store itself."""
        return self.store.find_hashes(pairs)

    def _tokens(self, first: int, stop: int) -> list[str]:
        return self.store._tokens(first, stop)

    def read_spans(self, states: Sequence[int], spans: Spans, raw: bool = False, empty: Empty = np.empty) -> Any:
        """See `Readable.read_spans`."""
        rows = self._read_as_kept(states, np.asarray(spans, np.int64))
        if not self.is_int8:
            return rows
        scale = np.ascontiguousarray(rows[..., self.channels :]).view("<f4")[..., 0]  # [rows, states, channels + 4] bytes
        of_bytes = Int8Rows(rows[..., : self.channels].view(np.int8), scale)
        return of_bytes if raw else of_bytes.floats()

    def read_into(self, states: Sequence[int], spans: Int64, places: Places, out: Array) -> bool:
        """See `Readable.read_into`."""
        return False  # rows come from blocks of the folder

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
            spans = [self._block_rows(block) for block in lacking_blocks]
            fetched = self._fetch([states[index] for index in indices], np.array(spans, np.int64))  # [rows, states, width]
            at, new = 0, []
            for block, (first, stop) in zip(lacking_blocks, spans, strict=True):
                for i, index in enumerate(indices):
                    rows = np.ascontiguousarray(fetched[at : at + stop - first, i])
                    new.append((self._path(states[index], block), rows))
                    yield (block, index), rows
                at += stop - first
            self._keep(new)

    def _fetch(self, states: Sequence[int], spans: Int64) -> Array:
        """Rows of the store itself, as they are kept."""
        if not self.is_int8:
            rows: Array = self.store.read_spans(states, spans)
            return rows
        values, scale = self.store.read_spans(states, spans, raw=True)
        scale_bytes = np.ascontiguousarray(scale, "<f4")[..., None].view(np.uint8)
        return np.concatenate([values.view(np.uint8), scale_bytes], axis=-1)

    def _block_rows(self, block: int) -> Span:
        return block * BLOCK_ROWS, min(self.n_rows, (block + 1) * BLOCK_ROWS)

    def _block_bytes(self, n_rows: int) -> int:
        """Bytes of the file of so many rows of a state."""
        return n_rows * self._width * self._kept_dtype.itemsize + _CHECKSUM_BYTES

    def _path(self, state: int, block: int) -> Path:
        return self._folders[state] / f"{block}.rows"

    def _kept(self, state: int, block: int) -> Array | None:
        """A block's rows [n, width] from the folder; None if they are not there, or not what was written."""
        path = self._path(state, block)
        first, stop = self._block_rows(block)
        n_bytes = self._block_bytes(stop - first)
        try:
            data = path.read_bytes() if path.stat().st_size == n_bytes else b""
            os.utime(path)
        except FileNotFoundError:
            return None
        rows = memoryview(data)[:-_CHECKSUM_BYTES]
        if len(data) != n_bytes or _checksum(rows) != data[-_CHECKSUM_BYTES:]:
            return None
        return np.frombuffer(rows, self._kept_dtype).reshape(stop - first, self._width)

    def _keep(self, new: list[tuple[Path, Array]]) -> None:
        """Put blocks into the folder, the last of them that fit, after as many others have gone as the bound asks for."""
        import fcntl

        while sum(rows.nbytes + _CHECKSUM_BYTES for _, rows in new) > self.max_bytes:
            new = new[1:]
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time counts and writes
            self._make_room(sum(rows.nbytes + _CHECKSUM_BYTES for _, rows in new))
            for path, rows in new:
                data = rows.tobytes()
                path.parent.mkdir(parents=True, exist_ok=True)
                handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
                with os.fdopen(handle, "wb") as file:
                    file.write(data + _checksum(data))
                os.replace(temporary, path)

    def _make_room(self, n_bytes: int) -> None:
        """Remove what was used longest ago until so many bytes more are within the bound."""
        kept = []
        for path in chain.from_iterable(self.folder.glob(f"{_HASH}/{_HASH}/{name}") for name in ("*.rows", f"{_TEMPORARY}*")):
            with suppress(FileNotFoundError):
                status = path.stat()
                kept.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in kept) + n_bytes
        for _, size, path in sorted(kept):
            if total <= self.max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size


def cached(store: StoreReader, folder: str | os.PathLike[str], *, max_bytes: int) -> CachedStore:
    """A store whose rows, once read, stay in the local ``folder``, which never takes more than ``max_bytes``.

    For stores far away that are read again and again. Blocks of 1,024 rows of a state are fetched and kept whole, so the first
    read of a sentence costs more than its rows. Text and the rows' places are not kept. Several processes may share a folder.

    StoreError for an unfinished store, OverlapError for a folder that overlaps the store, ValueError for a bound that one block
    does not fit in.
    """
    check_apart(Location("folder", os.fspath(folder)), [Location("store", store.url, store.root.storage_options)])
    return CachedStore(store, Path(folder), max_bytes)


def _hash(text: str) -> str:
    """The name of a folder, whatever the text holds."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _checksum(data: Any) -> bytes:
    return int(google_crc32c.value(bytes(data))).to_bytes(_CHECKSUM_BYTES, "little")
