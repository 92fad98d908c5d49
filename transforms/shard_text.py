"""The text of a shard: which sentences it needs, cut to its rows. Reads scratch parts of the store, keeps the last few at hand.

May import elmo_store, model (the engine's text as numbers), NumPy and pyarrow. Words are read in Arrow's dictionary
encoding, which is how Parquet keeps them: Python touches distinct words only.
"""

from collections import OrderedDict
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.layout import BOS_TOKEN, EOS_TOKEN
from elmo_store.storage import Root
from model.engine.sequences import bounded, ranges
from model.engine.text import Text
from transforms.plan import Int64, PartSlice, ShardTask, cut, sentence_rows

PARTS_AT_HAND = 4


@dataclass(frozen=True)
class ShardText:
    """What the engine computes for one shard, and what the store says about each of its rows."""

    task: ShardTask
    text: Text  # in row order; Σ (stop - first) = task.n_rows
    tokens: list[str]  # [n_rows]
    sentence: Int64  # [n_rows] sentence of each row, counted over the corpus
    index: npt.NDArray[np.int32]  # [n_rows] row within its sentence
    n_tokens: int  # rows that are tokens (not BOS or EOS)


@dataclass(frozen=True)
class PartWords:
    """The sentences of a part as numbers."""

    lengths: Int64  # [n] tokens of each sentence
    offsets: Int64  # [n + 1] where each begins in words
    words: npt.NDArray[np.int32]  # place in the vocabulary of each token
    vocabulary: pa.StringArray


class PartReader:
    """Words of scratch parts, the last few kept: neighbouring shards share parts."""

    def __init__(self, root: Root, at_hand: int = PARTS_AT_HAND) -> None:
        self._root = root
        self._at_hand = at_hand
        self._parts: OrderedDict[str, PartWords] = OrderedDict()

    def read(self, piece: PartSlice) -> PartWords:
        """The words of the part that ``piece`` lies in."""
        if piece.scratch not in self._parts:
            self._parts[piece.scratch] = part_words(self._root.get(piece.scratch))
            while len(self._parts) > self._at_hand:
                self._parts.popitem(last=False)
        self._parts.move_to_end(piece.scratch)
        return self._parts[piece.scratch]


def part_words(data: bytes) -> PartWords:
    """The words of a scratch part, a Parquet file with the columns ``tokens`` and ``n_tokens``."""
    table = pq.read_table(
        BytesIO(data), columns=["tokens", "n_tokens"], use_threads=False, read_dictionary=["tokens.list.element"]
    )
    tokens = table.unify_dictionaries()["tokens"].combine_chunks()
    lengths = table["n_tokens"].to_numpy().astype(np.int64)
    words: pa.DictionaryArray = tokens.flatten()  # of the sentences themselves: an array may hold more
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return PartWords(lengths, offsets, words.indices.to_numpy().astype(np.int32, copy=False), words.dictionary)


def read_shard(reader: PartReader, task: ShardTask, boundaries: bool) -> ShardText:
    """The sentences of ``task``, cut to its rows. ValueError if the parts don't hold the rows that the plan says."""
    pieces = [_cut_piece(reader.read(piece), piece, task, boundaries) for piece in task.slices]
    text, tokens = Text.joined([one.text for one in pieces]), [token for one in pieces for token in one.tokens]
    if len(tokens) != task.n_rows:
        raise ValueError(
            f"shard {task.shard} needs {task.n_rows} rows and its parts {[s.scratch for s in task.slices]} hold "
            f"{len(tokens)}: the scratch parts changed after the plan was made; run again with --overwrite"
        )
    return ShardText(
        task,
        text,
        tokens,
        np.concatenate([one.sentence for one in pieces]),
        np.concatenate([one.index for one in pieces]),
        sum(one.n_tokens for one in pieces),
    )


def _cut_piece(part: PartWords, piece: PartSlice, task: ShardTask, boundaries: bool) -> ShardText:
    """What one part holds of ``task``."""
    rows = sentence_rows(part.lengths, boundaries)
    found, first, stop = cut(rows, piece.first_row, task.first_row, task.first_row + task.n_rows)
    lengths = part.lengths[found]
    own = part.words[ranges(part.offsets[found], lengths)]  # [Σ lengths] places in the part's vocabulary
    used = np.zeros(len(part.vocabulary), bool)
    used[own] = True
    own = (np.cumsum(used, dtype=np.int32) - np.int32(1))[own]
    vocabulary: list[str] = part.vocabulary.take(pa.array(np.flatnonzero(used))).to_pylist()
    bos, eos = len(vocabulary), len(vocabulary) + 1
    sentences = bounded(own, lengths, bos, eos)
    # Each row's word, boundaries being words of their own behind the vocabulary.
    wanted = sentences.words[ranges(sentences.offsets[:-1] + first + (0 if boundaries else 1), stop - first)]  # [rows]
    return ShardText(
        task,
        Text(vocabulary, own, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), first, stop),
        np.array([*vocabulary, BOS_TOKEN, EOS_TOKEN], object)[wanted].tolist(),
        np.repeat(piece.first_sentence + found, stop - first),
        ranges(first, stop - first).astype(np.int32),
        int((wanted < bos).sum()),
    )
