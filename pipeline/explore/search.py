"""Sentences by their words."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from elmo_store.store import Store

BLOCK_SENTENCES = 1 << 16  # that are read at a time


def find(store: Store, words: str, offset: int, limit: int) -> list[dict[str, Any]]:
    """Sentences whose tokens, joined by spaces, hold ``words``, whatever the case: as whole words first; in order. StoreError.

    No more of the store is read than it takes to find them.
    """
    asked, most = pc.utf8_lower(words).as_py(), offset + limit
    whole: list[dict[str, Any]] = []
    within: list[dict[str, Any]] = []  # another word
    for first in range(0, len(store), BLOCK_SENTENCES):
        block = slice(first, first + BLOCK_SENTENCES)
        table = store.table(["sentence", "id", "tokens"], block)
        text = pc.utf8_lower(pc.binary_join(table["tokens"].cast(pa.list_(pa.string())), " "))
        holds = pc.match_substring(text, asked)
        table, text = table.filter(holds), text.filter(holds)
        as_words = pc.match_substring(pc.binary_join_element_wise(" ", text, " ", ""), f" {asked} ")
        whole += _hits(table.filter(as_words), most - len(whole))
        within += _hits(table.filter(pc.invert(as_words)), most - len(within))
        if len(whole) >= most:
            break
    return [*whole, *within][offset:most]


def _hits(table: pa.Table, most: int) -> list[dict[str, Any]]:
    rows = table.slice(0, most).to_pylist()
    return [{"number": row["sentence"], "id": row["id"], "tokens": row["tokens"]} for row in rows]
