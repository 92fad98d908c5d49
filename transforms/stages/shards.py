"""The text that a shard needs, cut to its rows.

Words are read in Arrow's dictionary encoding, which is how Parquet keeps them: Python touches distinct words only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo_store.format.layout import BOS_TOKEN, EOS_TOKEN
from elmo_store.format.numbers import Array, Int8Rows
from elmo_store.storage.root import Root
from elmo_store.writer import RowText
from model.engine.planning.sequences import bounded, ranges
from model.engine.planning.text import Text
from transforms.stages.plan import Int64, ShardTask, cut, sentence_rows

PARTS_AT_HAND = 4
WORDS_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class PartWords:
    """The sentences of a part as numbers."""

    lengths: Int64  # [n] tokens of each sentence
    offsets: Int64  # [n + 1] where each begins in words
    words: npt.NDArray[np.int32]  # place in the vocabulary of each token
    vocabulary: npt.NDArray[np.object_]  # [V] distinct words


@dataclass(frozen=True, eq=False)
class Excerpt:
    """Sentences of one part, and which of their rows a shard holds."""

    part: PartWords
    words: npt.NDArray[np.int32]  # [Σ lengths]
    lengths: Int64  # [n]
    first: Int64  # [n]
    stop: Int64  # [n]

    def some(self, mask: npt.NDArray[np.bool_]) -> "Excerpt":
        """The sentences that ``mask`` [n] chooses."""
        words = self.words[np.repeat(mask, self.lengths)]
        return Excerpt(self.part, words, self.lengths[mask], self.first[mask], self.stop[mask])

    def tokens(self, boundaries: bool) -> npt.NDArray[np.object_]:
        """The token of each row that the shard holds: [Σ (stop - first)]."""
        vocabulary = self.part.vocabulary
        if not boundaries:
            begins = np.cumsum(self.lengths) - self.lengths
            return vocabulary[self.words[ranges(begins + self.first, self.stop - self.first)]]
        bos, eos = (
            len(vocabulary),
            len(vocabulary) + 1,
        )  # as words of their own behind the vocabulary
        sentences = bounded(self.words, self.lengths, bos, eos)
        rows = sentences.words[
            ranges(sentences.offsets[:-1] + self.first, self.stop - self.first)
        ]  # [rows]
        return np.append(vocabulary, np.array([BOS_TOKEN, EOS_TOKEN], object))[rows]


@dataclass(frozen=True, eq=False)
class KnownRows:
    """Rows of a shard that are copied."""

    asked: list[Excerpt]  # the other sentences, which are computed
    mask: npt.NDArray[np.bool_]  # which of the shard's rows are copied [n_rows]
    rows: Array | Int8Rows  # these
    n_sentences: int  # that begin in the shard


@dataclass(frozen=True, eq=False)
class ShardText:
    """What the engine computes for one shard, and what the store says about each of its rows."""

    task: ShardTask
    excerpts: list[Excerpt]  # in row order; Σ (stop - first) = task.n_rows
    boundaries: bool  # whether BOS and EOS are rows
    sentence: Int64  # [n_rows] sentence of each row, counted over the corpus
    index: npt.NDArray[np.int32]  # [n_rows] row within its sentence
    known: KnownRows | None = None

    @property
    def asked(self) -> list[Excerpt]:
        """What the engine computes."""
        return self.excerpts if self.known is None else self.known.asked

    @property
    def n_asked(self) -> int:
        """Rows that the engine computes."""
        return self.task.n_rows - (0 if self.known is None else len(self.known.rows))

    def rows(self) -> RowText:
        """What the store says of the rows; a writer asks, in its thread: the device waits for the rest only."""
        tokens = np.concatenate(
            [excerpt.tokens(self.boundaries) for excerpt in self.excerpts]
        ).tolist()
        return RowText(self.task.shard, tokens, self.sentence, self.index)


def part_reader(root: Root, at_hand: int = PARTS_AT_HAND) -> Callable[[str], PartWords]:
    """A function from a part's path to its words, which keeps the last few: neighbouring shards share parts. For one thread."""
    return lru_cache(at_hand)(lambda path: part_words(root.get(path)))


def part_words(data: bytes) -> PartWords:
    """The words of a part, a Parquet file with the columns ``tokens`` and ``n_tokens``."""
    table = pq.read_table(
        BytesIO(data),
        columns=["tokens", "n_tokens"],
        use_threads=False,
        read_dictionary=["tokens.list.element"],
    )
    tokens = table.unify_dictionaries()["tokens"].combine_chunks()
    lengths = table["n_tokens"].to_numpy().astype(np.int64)
    words: pa.DictionaryArray = (
        tokens.flatten()
    )  # of the sentences themselves: an array may hold more
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    # Some words at a time: Arrow keeps the interpreter's lock while it makes their strings.
    some = (
        words.dictionary.slice(first, WORDS_AT_ONCE)
        for first in range(0, max(1, len(words.dictionary)), WORDS_AT_ONCE)
    )
    vocabulary = np.concatenate([part.to_numpy(zero_copy_only=False) for part in some])
    return PartWords(
        lengths, offsets, words.indices.to_numpy().astype(np.int32, copy=False), vocabulary
    )


def read_shard(
    read_part: Callable[[str], PartWords], task: ShardTask, boundaries: bool
) -> ShardText:
    """The sentences of ``task``, cut to its rows. ValueError if the parts don't hold the rows that the plan says."""
    excerpts: list[Excerpt] = []
    sentences: list[Int64] = []
    for path, part_range in task.parts:
        part = read_part(path)
        rows = sentence_rows(part.lengths, boundaries)
        held, first, stop = cut(
            rows, part_range.first_row, task.first_row, task.first_row + task.n_rows
        )
        lengths = part.lengths[held]
        words = part.words[ranges(part.offsets[held], lengths)]  # [Σ lengths]
        excerpts.append(Excerpt(part, words, lengths, first, stop))
        sentences.append(np.repeat(part_range.first_sentence + held, stop - first))
    n_rows = sum(map(len, sentences))
    if n_rows != task.n_rows:
        raise ValueError(
            f"shard {task.shard} needs {task.n_rows} rows and its parts {[path for path, _ in task.parts]} hold "
            f"{n_rows}: the scratch parts changed after the plan was made; run again with --overwrite"
        )
    index = np.concatenate(
        [ranges(excerpt.first, excerpt.stop - excerpt.first) for excerpt in excerpts]
    ).astype(np.int32)
    return ShardText(task, excerpts, boundaries, np.concatenate(sentences), index)


def call_text(shards: Sequence[ShardText]) -> Text:
    """The text of several shards as the engine takes it: one vocabulary, of the words that they use.

    Shards of one part share its vocabulary, so that Python meets a word once a part and call.
    """
    excerpts = [excerpt for shard in shards for excerpt in shard.asked]
    vocabulary: list[str] = []
    numbers: dict[
        int, npt.NDArray[np.int32]
    ] = {}  # id of a part → place in the call's vocabulary of its words
    for key, part in {id(excerpt.part): excerpt.part for excerpt in excerpts}.items():
        used = np.zeros(len(part.vocabulary), bool)
        for excerpt in excerpts:
            if excerpt.part is part:
                used[excerpt.words] = True
        numbers[key] = np.cumsum(used, dtype=np.int32) + np.int32(len(vocabulary) - 1)
        vocabulary += part.vocabulary[used].tolist()
    words = [numbers[id(excerpt.part)][excerpt.words] for excerpt in excerpts]
    offsets = np.cumsum(
        np.concatenate([np.zeros(1, np.int64), *(excerpt.lengths for excerpt in excerpts)])
    )
    none = np.zeros(0, np.int64)
    first = np.concatenate([none, *(excerpt.first for excerpt in excerpts)])
    stop = np.concatenate([none, *(excerpt.stop for excerpt in excerpts)])
    return Text(vocabulary, np.concatenate([np.zeros(0, np.int32), *words]), offsets, first, stop)
