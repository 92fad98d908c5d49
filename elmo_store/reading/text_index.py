"""From a sentence's tokens to its number: an optional index of hashes beside a store, for readers that are keyed by text.

The hash of a sentence is the first 16 bytes of the SHA-256 of its tokens, each followed by the byte 0xFF, which UTF-8 never
has; of each token the bytes that the model reads, the first 48 where the model's options say 50 characters a token (lone
surrogates are left out): sentences of one hash have the same vectors. Files: ``indexes/text/NNNNN.parquet`` are tables as those
of ids (docs/store-format.md), with each text's first sentence alone. ``indexes/text/facts.json`` names the store that it is of,
and each table with its size and CRC-32C. It is put last: without it the index is absent.

Without the files up to a million sentences' hashes are gathered in memory when the first text is looked for (some seconds for a
million, 24 bytes each). ``elmo-store index STORE`` or `build` writes them, in memory that does not grow with the
store.
"""

import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo_store.errors import ShardCorruptError, ShardMissingError, StoreError
from elmo_store.format import ids, layout
from elmo_store.format.manifest import Manifest, own_sha256
from elmo_store.format.markers import ObjectRecord, put_objects
from elmo_store.format.typed import converted
from elmo_store.reading.sentences import SentenceTable
from elmo_store.storage.lease import LeaseHolder
from elmo_store.storage.process import scratch_folder
from elmo_store.storage.recent import ForkLock
from elmo_store.storage.root import Root

UInt64 = npt.NDArray[np.uint64]
Text = str | Sequence[str | bytes]
Table = tuple[UInt64, UInt64, npt.NDArray[np.int64]]  # high, low, sentence, sorted
REMEDY = "elmo-store index STORE"
RECORD = f"{layout.TEXT_INDEX}/facts.json"
MOST_IN_MEMORY = 1 << 20  # sentences whose hashes are gathered without an index
BUCKET_ROWS = 1 << 22  # hashes that are sorted at a time: 100 MB
_END = b"\xff"  # of a token


def words(text: Text) -> list[str | bytes]:
    """The tokens of a text: a string's are what stands between single spaces, none of the empty string. TypeError."""
    if isinstance(text, str):
        return list(text.split(" ")) if text else []
    tokens = list(text)
    strange = [token for token in tokens if not isinstance(token, str | bytes)]
    if strange:
        raise TypeError(f"a text is a string, or a sequence of tokens; {strange[0]!r} is not a token")
    return tokens


def cut_bytes(manifest: Manifest) -> int | None:
    """How many bytes of a token the store's model reads; None where its options don't say."""
    cnn = manifest.model.options.get("char_cnn")
    of_bytes = isinstance(cnn, dict) and cnn.get("alphabet", "bytes") == "bytes"  # others read characters, and more than 48 bytes
    characters = cnn.get("max_characters_per_token") if isinstance(cnn, dict) and of_bytes else None
    return int(characters) - 2 if isinstance(characters, int) and characters > 2 else None


def hash_tokens(lists: pa.ListArray, cut: int | None) -> UInt64:
    """(high, low) of each list of tokens, strings or bytes: [n, 2]. ``cut``: bytes of a token that count, all without one."""
    import pyarrow.compute as pc  # which an import of this package need not pay for

    tokens = lists.values.cast(pa.binary())
    if cut is not None:
        tokens = pc.binary_slice(tokens, 0, cut)
    joined = pc.binary_join(pa.ListArray.from_arrays(lists.offsets, tokens), _END)
    filled = pc.list_value_length(lists).to_pylist()
    sha256 = hashlib.sha256
    digests = [sha256(text + _END if n else b"").digest()[:16] for text, n in zip(joined.to_pylist(), filled, strict=True)]
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64).reshape(-1, 2)


def hash_texts(texts: Iterable[Text], cut: int | None) -> UInt64:
    """(high, low) of each text: [n, 2]."""
    encoded = [
        [token if isinstance(token, bytes) else token.encode("utf-8", "ignore") for token in words(text)] for text in texts
    ]
    return hash_tokens(pa.array(encoded, pa.list_(pa.binary())), cut)


def first_of_each(rows: npt.NDArray[Any]) -> Table:
    """Sorted, the first sentence of each hash alone. ``rows``: [n, (high, low, sentence)] as uint64."""
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
    kept = rows[new]
    return kept[:, 0].copy(), kept[:, 1].copy(), kept[:, 2].astype(np.int64)


class GatheredTexts:
    """Texts found without an index: the hashes of all sentences, in memory."""

    def __init__(
        self, lists: Iterable[tuple[int, pa.ListArray]], cut: int | None, without: Sequence[tuple[int, int]] = ()
    ) -> None:
        """``lists``: number of a first sentence, and the tokens of it and those after it; ``without``: spans of numbers."""
        rows = [_numbered(hash_tokens(tokens, cut), first) for first, tokens in lists]
        for first, stop in without:
            rows = [own[(own[:, 2] < first) | (own[:, 2] >= stop)] for own in rows]
        self._table = first_of_each(np.concatenate([np.zeros((0, 3), np.uint64), *rows]))

    def find(self, pairs: UInt64) -> list[int | None]:
        """The number of the first sentence that has each hash [n, 2], None without one."""
        return ids.first_in(self._table, pairs)


class TextIndex:
    """Finds a store's sentences by their tokens, by its index or without one. Safe for threads."""

    def __init__(self, root: Root, manifest: Manifest, sentences: SentenceTable, without: Sequence[tuple[int, int]] = ()) -> None:
        """``without``: spans of sentences that are not to be found."""
        self._root, self._manifest, self._sentences, self._without = root, manifest, sentences, without
        self._opened: ids.HashTables | GatheredTexts | None = None
        self._lock = ForkLock()

    def find(self, pairs: UInt64) -> list[int | None]:
        """The number of the first sentence that has each hash [n, 2], None without one.

        StoreError for an index that is damaged or of another store, or if there is none and the store is unfinished or too large
        to do without.
        """
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
        try:
            return self._opened.find(pairs)
        except (ShardMissingError, ShardCorruptError) as error:
            raise StoreError(f"{error}. Of an index: run `{REMEDY}` again") from error

    def _open(self) -> ids.HashTables | GatheredTexts:
        if not self._manifest.complete:
            raise StoreError(f"{self._root}: texts are found when the job is complete; read by number until then")
        # An index knows a text's first sentence alone, which may be one that is not to be found.
        record = None if self._without else _read_record(self._root, self._manifest)
        if record is not None:
            return ids.HashTables(self._root, self._manifest.sizes.sentences, layout.text_table, record[1])
        check_size(self._manifest.sizes.sentences, f"{self._root.url()}{', of which some are removed,' * bool(self._without)}")
        return GatheredTexts(self._sentences.token_lists(), cut_bytes(self._manifest), self._without)


def check_size(sentences: int, where: str) -> None:
    """StoreError for more sentences than hashes are gathered of in memory."""
    if sentences > MOST_IN_MEMORY:
        raise StoreError(
            f"{where} has {sentences:,} sentences and no index of their texts, without which {MOST_IN_MEMORY:,} are the most: "
            f"run `{REMEDY}` once, for the whole store"
        )


def build(root: Root, manifest: Manifest, on_progress: Callable[[int], None] = lambda done: None) -> dict[str, Any]:
    """Write the index of a complete store, in place of one that is there; returns the facts that stand with it.

    ``on_progress``: called with the number of sentences hashed. Memory is bounded; on disk a sentence takes 24 bytes meanwhile.
    LeaseHeldError while another command writes to the store.
    """
    if not manifest.complete:
        raise StoreError(f"{root} is not complete: run its job again to continue it, then index it")
    n, cut = manifest.sizes.sentences, cut_bytes(manifest)
    bits = layout.id_bits(n)
    bucket_bits = min(bits, max(0, (-(-n // BUCKET_ROWS) - 1).bit_length()))
    tables_of_bucket = 1 << (bits - bucket_bits)
    texts = 0
    objects: list[ObjectRecord] = []
    with LeaseHolder.take(root, uuid.uuid4().hex) as holder, scratch_folder() as folder:
        holder.root.remove(RECORD)
        holder.root.remove(*[rel for rel in holder.root.list(layout.TEXT_INDEX) if layout.is_ours(rel)])
        holder.root.sweep(layout.TEXT_INDEX)
        paths = [folder / str(bucket) for bucket in range(1 << bucket_bits)]
        with ExitStack() as open_files:
            files = [open_files.enter_context(path.open("wb")) for path in paths]
            for first, tokens in SentenceTable(root, manifest).token_lists():
                rows = _numbered(hash_tokens(tokens, cut), first)
                bucket_of = ids.tables_of(rows[:, 0], bucket_bits)
                for bucket, file in enumerate(files):
                    file.write(rows[bucket_of == bucket].tobytes())
                on_progress(first + len(tokens))
        holder.root.confirm(now=True)  # no index of this store beside another one
        for bucket, path in enumerate(paths):
            high, low, numbers = first_of_each(np.fromfile(path, np.uint64).reshape(-1, 3))
            path.unlink()
            texts += len(numbers)
            tables = range(bucket * tables_of_bucket, (bucket + 1) * tables_of_bucket)
            encoded = ids.encode_tables(np.stack([high, low], axis=1), numbers, bits, tables, layout.text_table)
            objects += put_objects(holder.root, encoded)[0]
        facts = {"store": _identity(manifest), "sentences": n, "texts": texts, "cut_bytes": cut}
        holder.check()
        holder.root.put_json(RECORD, {**facts, "objects": [vars(record) for record in objects]})
    return facts


def ensure(root: Root, manifest: Manifest, on_progress: Callable[[int], None] = lambda done: None) -> Mapping[str, Any]:
    """The facts of a complete store's index, which is written if there is none. Errors as `build`'s."""
    record = _read_record(root, manifest)
    return build(root, manifest, on_progress) if record is None else record[0]


def _read_record(root: Root, manifest: Manifest) -> tuple[Mapping[str, Any], Mapping[str, ObjectRecord]] | None:
    """The index's facts, and its files by path; None without an index. StoreError for a damaged one, or another store's."""
    try:
        facts = root.get_json(RECORD)
        objects = [converted(record, ObjectRecord) for record in facts["objects"]]
        store = facts["store"]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{root.url(RECORD)} is not a record of an index ({error!r}): run `{REMEDY}` again") from error
    if store != _identity(manifest):
        raise StoreError(f"{root.url(layout.TEXT_INDEX)} is the index of another store: run `{REMEDY}` again")
    return facts, {record.path: record for record in objects}


def _numbered(pairs: UInt64, first: int) -> UInt64:
    """Hashes [n, 2] with the sentences' numbers beside them: [n, 3]."""
    return np.concatenate([pairs, np.arange(first, first + len(pairs), dtype=np.uint64)[:, None]], axis=1)


def _identity(manifest: Manifest) -> str:
    """Of the store that an index belongs to: its manifest's own hash."""
    return own_sha256(manifest.to_json())
