"""Sentences by their words: DuckDB over the parts, where they lie.

What is looked for is always a bound parameter, never part of the statement; DuckDB may neither install nor load extensions, so
that nothing is asked of the network: objects elsewhere are read through the store's own filesystem.
"""

import threading
from dataclasses import dataclass

from elmo_store.format import layout
from elmo_store.storage.root import Root


@dataclass(frozen=True)
class Hit:
    """A sentence that was found."""

    number: int
    id: str
    tokens: tuple[str, ...]


class TextSearch:
    """Looks through all parts of a store, in order. For several threads, one after the other."""

    def __init__(self, root: Root, n_parts: int) -> None:
        import duckdb

        self._root = root
        self._lock = threading.Lock()
        self._connection = duckdb.connect(
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false", "threads": "2"}
        )
        names = [layout.sentences_part(part) for part in range(n_parts)]
        if root.is_local:
            self._paths = [root.path(name) for name in names]
        else:
            protocol = root.filesystem.protocol
            first = protocol if isinstance(protocol, str) else protocol[0]
            self._connection.register_filesystem(root.filesystem)
            self._paths = [f"{first}://{root.path(name).removeprefix(f'{first}://')}" for name in names]

    def find(self, words: str, offset: int = 0, limit: int = 30) -> list[Hit]:
        """Sentences whose tokens, joined by spaces, hold ``words``, whatever the case; in order."""
        if not self._paths or not words.strip():
            return []
        statement = (
            "SELECT sentence, id, tokens FROM read_parquet($paths) "
            "WHERE n_tokens > 0 AND contains(lower(array_to_string(tokens, ' ')), lower($words)) "
            "ORDER BY sentence LIMIT $limit OFFSET $offset"
        )
        parameters = {"paths": self._paths, "words": words.strip(), "limit": limit, "offset": offset}
        with self._lock:
            try:
                rows = self._connection.execute(statement, parameters).fetchall()
            finally:  # DuckDB opens the parts by itself
                self._root.confirm()
        return [Hit(int(number), sentence_id, tuple(tokens)) for number, sentence_id, tokens in rows]
