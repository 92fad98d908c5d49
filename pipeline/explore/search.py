"""Sentences by their words."""

import threading
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np

from elmo_store.format import layout
from elmo_store.reading.store import Held, StoreReader


class TextSearch:
    """Sentences by their words: DuckDB over the parts, where they lie. For several threads, one after the other.

    What is looked for is always a bound parameter, never part of the statement; DuckDB may neither install nor load extensions,
    so that nothing is asked of the network: objects elsewhere are read through the store's own filesystem.
    """

    def __init__(self, store: StoreReader) -> None:
        self._lock = threading.Lock()
        self._connection = duckdb.connect(
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "threads": "2"}
        )
        self._held = store.held()
        if not store.root.is_local:
            self._connection.register_filesystem(store.root.filesystem)

    def find(self, words: str, offset: int, limit: int) -> list[dict[str, Any]]:
        """Sentences whose tokens, joined by spaces, hold ``words``, whatever the case: as whole words first; in order."""
        hits: list[dict[str, Any]] = []
        for whole in (True, False):
            for held in self._held:
                if len(hits) < offset + limit:
                    hits += self._find_in(held, words, whole, offset + limit - len(hits))
        return hits[offset : offset + limit]

    def _find_in(self, held: Held, words: str, whole: bool, most: int) -> list[dict[str, Any]]:
        if not held.store.manifest.sizes.parts:
            return []
        statement = (
            "SELECT sentence, id, tokens FROM (SELECT *, ' ' || lower(array_to_string(tokens, ' ')) || ' ' AS text "
            "FROM read_parquet($paths) WHERE n_tokens > 0) WHERE contains(text, lower($words)) "
            "AND contains(text, ' ' || lower($words) || ' ') = $whole ORDER BY sentence LIMIT $limit"
        )
        parameters = {"paths": _paths(held.store), "words": words, "whole": whole, "limit": most + held.n_removed}
        with self._lock:
            try:
                rows = self._connection.execute(statement, parameters).fetchall()
            finally:  # DuckDB opens the parts by itself
                held.store.root.confirm()
        own = held.numbers_of(np.array([row[0] for row in rows], np.int64)).tolist()
        return [hit(number, *row[1:]) for number, row in zip(own, rows, strict=True) if number >= 0]


def _paths(store: StoreReader) -> list[str]:
    """The parts as DuckDB names them."""
    root = store.root
    paths = [root.path(layout.sentences_part(part)) for part in range(store.manifest.sizes.parts)]
    if root.is_local:
        return paths
    protocol = root.filesystem.protocol
    first = protocol if isinstance(protocol, str) else protocol[0]
    return [f"{first}://{path.removeprefix(f'{first}://')}" for path in paths]


def hit(number: int, sentence_id: str, tokens: Sequence[str]) -> dict[str, Any]:
    return {"number": number, "id": sentence_id, "tokens": tokens}
