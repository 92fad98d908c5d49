"""The text of a shard: which sentences it needs, cut to its rows. Reads scratch parts of the store, keeps the last few at hand.

Words are read in Arrow's dictionary encoding, which is how Parquet keeps them: Python touches distinct words only.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.format.layout import BOS_TOKEN, EOS_TOKEN
from elmo_store.storage.root import Root
from model.engine.planning.sequences import bounded, ranges
from model.engine.planning.text import Text
from transforms.stages.plan import Int64, PartSlice, ShardTask, cut, sentence_rows

PARTS_AT_HAND = 4


@dataclass(frozen=True, eq=False)
class ShardText:
    """What the engine computes for one shard, and what the store says about each of its rows."""

    task: ShardTask
    pieces: list["Piece"]  # in row order; Σ (stop - first) = task.n_rows
    boundaries: bool  # whether BOS and EOS are rows
    sentence: Int64  # [n_rows] sentence of each row, counted over the corpus
    index: npt.NDArray[np.int32]  # [n_rows] row within its sentence
    n_tokens: int  # rows that are tokens (not BOS or EOS)

    @cached_property
    def tokens(self) -> list[str]:
        """[n_rows], made when a writer asks, in its thread: the device waits for the rest only."""
        shown: list[str] = np.concatenate([piece.shown(self.boundaries) for piece in self.pieces]).tolist()
        return shown


@dataclass(frozen=True, eq=False)
class PartWords:
    """The sentences of a part as numbers."""

    lengths: Int64  # [n] tokens of each sentence
    offsets: Int64  # [n + 1] where each begins in words
    words: npt.NDArray[np.int32]  # place in the vocabulary of each token
    vocabulary: npt.NDArray[np.object_]  # [V] distinct words


@dataclass(frozen=True, eq=False)
class Piece:
    """Sentences of one part, and which of their rows a shard holds."""

    part: PartWords
    words: npt.NDArray[np.int32]  # [Σ lengths]
    lengths: Int64  # [n]
    first: Int64  # [n]
    stop: Int64  # [n]

    @property
    def n_boundaries(self) -> int:
        """How many of the rows are BOS or EOS, if these are rows."""
        some = (self.lengths > 0) & (self.stop > self.first)
        return int((some & (self.first == 0)).sum() + (some & (self.stop == self.lengths + 2)).sum())

    def shown(self, boundaries: bool) -> npt.NDArray[np.object_]:
        """The token of each row that the shard holds: [Σ (stop - first)]."""
        vocabulary = self.part.vocabulary
        if not boundaries:
            begins = np.cumsum(self.lengths) - self.lengths
            return vocabulary[self.words[ranges(begins + self.first, self.stop - self.first)]]
        bos, eos = len(vocabulary), len(vocabulary) + 1  # as words of their own behind the vocabulary
        sentences = bounded(self.words, self.lengths, bos, eos)
        wanted = sentences.words[ranges(sentences.offsets[:-1] + self.first, self.stop - self.first)]  # [rows]
        return np.append(vocabulary, np.array([BOS_TOKEN, EOS_TOKEN], object))[wanted]


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
    vocabulary = words.dictionary.to_numpy(zero_copy_only=False)
    return PartWords(lengths, offsets, words.indices.to_numpy().astype(np.int32, copy=False), vocabulary)


def read_shard(reader: PartReader, task: ShardTask, boundaries: bool) -> ShardText:
    """The sentences of ``task``, cut to its rows. ValueError if the parts don't hold the rows that the plan says."""
    pieces: list[Piece] = []
    sentences: list[Int64] = []
    for piece in task.slices:
        part = reader.read(piece)
        rows = sentence_rows(part.lengths, boundaries)
        found, first, stop = cut(rows, piece.first_row, task.first_row, task.first_row + task.n_rows)
        lengths = part.lengths[found]
        words = part.words[ranges(part.offsets[found], lengths)]  # [Σ lengths]
        pieces.append(Piece(part, words, lengths, first, stop))
        sentences.append(np.repeat(piece.first_sentence + found, stop - first))
    n_rows = sum(map(len, sentences))
    if n_rows != task.n_rows:
        raise ValueError(
            f"shard {task.shard} needs {task.n_rows} rows and its parts {[s.scratch for s in task.slices]} hold "
            f"{n_rows}: the scratch parts changed after the plan was made; run again with --overwrite"
        )
    index = np.concatenate([ranges(piece.first, piece.stop - piece.first) for piece in pieces]).astype(np.int32)
    n_boundaries = sum(piece.n_boundaries for piece in pieces) if boundaries else 0
    return ShardText(task, pieces, boundaries, np.concatenate(sentences), index, n_rows - n_boundaries)


def call_text(shards: Sequence[ShardText]) -> Text:
    """The text of several shards as the engine takes it: one vocabulary, of the words that they use.

    Shards of one part share its vocabulary, so that Python meets a word once a part and call.
    """
    pieces = [piece for shard in shards for piece in shard.pieces]
    vocabulary: list[str] = []
    numbers: dict[int, npt.NDArray[np.int32]] = {}  # id of a part → place in the call's vocabulary of its words
    parts = {id(piece.part): piece.part for piece in pieces}
    for key, part in parts.items():
        used = np.zeros(len(part.vocabulary), bool)
        for piece in pieces:
            if piece.part is part:
                used[piece.words] = True
        numbers[key] = np.cumsum(used, dtype=np.int32) + np.int32(len(vocabulary) - 1)
        vocabulary += part.vocabulary[used].tolist()
    words = [numbers[id(piece.part)][piece.words] for piece in pieces]
    offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), *(piece.lengths for piece in pieces)]))
    none = np.zeros(0, np.int64)
    first = np.concatenate([none, *(piece.first for piece in pieces)])
    stop = np.concatenate([none, *(piece.stop for piece in pieces)])
    return Text(vocabulary, np.concatenate([np.zeros(0, np.int32), *words]), offsets, first, stop)
