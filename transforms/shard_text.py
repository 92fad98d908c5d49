"""The text of a shard: which sentences it needs, cut to its rows. Reads scratch parts of the store, keeps the last few at hand.

May import elmo_store, model (the engine's request type), NumPy and pyarrow.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.layout import BOS_TOKEN, EOS_TOKEN
from elmo_store.storage import Root
from model.engine.embedder import SentenceRows
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
        self._parts: OrderedDict[str, tuple[Int64, pa.ListArray]] = OrderedDict()

    def read(self, piece: PartSlice) -> tuple[Int64, pa.ListArray]:
        """Tokens per sentence [n] and the tokens themselves, as Arrow holds them: a list of words takes ten times the room."""
        if piece.scratch not in self._parts:
            source = BytesIO(self._root.get(piece.scratch))
            table = pq.read_table(source, columns=["tokens", "n_tokens"], use_threads=False)
            lengths = table["n_tokens"].to_numpy().astype(np.int64)
            self._parts[piece.scratch] = (lengths, table["tokens"].combine_chunks())
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
        if not len(found):
            continue
        some = texts.slice(found[0], found[-1] + 1 - found[0]).to_pylist()
        for i, first, stop in zip((found - found[0]).tolist(), lo.tolist(), hi.tolist(), strict=True):
            words: Sequence[str] = some[i]
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
