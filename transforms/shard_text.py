"""The text of a shard: which sentences it needs, cut to its rows. Reads scratch parts of the store, keeps the last few at hand.

May import elmo_store, model (the engine's request type), NumPy and pyarrow.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from elmo_store.layout import BOS_TOKEN, EOS_TOKEN
from elmo_store.storage import Root
from model.embedder import SentenceRows
from transforms.plan import Int64, PartSlice, ShardTask, cut, sentence_rows

PARTS_AT_HAND = 4


@dataclass(frozen=True)
class ShardText:
    """What the engine computes for one shard, and what the store says about each of its rows."""

    task: ShardTask
    requests: list[SentenceRows]  # in row order; Σ (stop - first) = task.n_rows
    tokens: list[str]  # [n_rows]
    sentence: Int64  # [n_rows] sentence of each row, counted over the corpus
    index: npt.NDArray[np.int32]  # [n_rows] row within its sentence
    n_tokens: int  # rows that are tokens (not BOS or EOS)


class PartReader:
    """Token lists of scratch parts, the last few kept: neighbouring shards share parts."""

    def __init__(self, root: Root, at_hand: int = PARTS_AT_HAND) -> None:
        self._root = root
        self._at_hand = at_hand
        self._parts: OrderedDict[str, tuple[Int64, list[list[str]]]] = OrderedDict()

    def read(self, piece: PartSlice) -> tuple[Int64, list[list[str]]]:
        """Tokens per sentence [n] and the tokens themselves."""
        if piece.scratch not in self._parts:
            table = pq.read_table(BytesIO(self._root.get(piece.scratch)), columns=["tokens", "n_tokens"])
            lengths = table["n_tokens"].to_numpy().astype(np.int64)
            self._parts[piece.scratch] = (lengths, table["tokens"].to_pylist())
            while len(self._parts) > self._at_hand:
                self._parts.popitem(last=False)
        self._parts.move_to_end(piece.scratch)
        return self._parts[piece.scratch]


def read_shard(reader: PartReader, task: ShardTask, boundaries: bool) -> ShardText:
    """The sentences of ``task``, cut to its rows. ValueError if the parts don't hold the rows that the plan says."""
    requests: list[SentenceRows] = []
    tokens: list[str] = []
    sentences: list[Int64] = []
    indices: list[npt.NDArray[np.int32]] = []
    n_tokens = 0
    for piece in task.slices:
        lengths, texts = reader.read(piece)
        rows = sentence_rows(lengths, boundaries)
        found, lo, hi = cut(rows, piece.first_row, task.first_row, task.first_row + task.n_rows)
        for i, first, stop in zip(found.tolist(), lo.tolist(), hi.tolist(), strict=True):
            words: Sequence[str] = texts[i]
            requests.append(SentenceRows(words, first, stop))
            shown = [BOS_TOKEN, *words, EOS_TOKEN] if boundaries else words
            tokens += shown[first:stop]
            n_tokens += stop - first
            if boundaries:
                n_tokens -= (first == 0) + (stop == len(words) + 2)
        sentences.append(np.repeat(piece.first_sentence + found, hi - lo))
        indices += [np.arange(first, stop, dtype=np.int32) for first, stop in zip(lo, hi, strict=True)]
    if len(tokens) != task.n_rows:
        raise ValueError(
            f"shard {task.shard} needs {task.n_rows} rows and its parts {[s.scratch for s in task.slices]} hold "
            f"{len(tokens)}: the scratch parts changed after the plan was made; run again with --overwrite"
        )
    return ShardText(task, requests, tokens, np.concatenate(sentences), np.concatenate(indices), n_tokens)
