"""Sentences whose state is carried on from one to the next, through the engine: as the goldens were made.

The engine has no such calls: a lane of sentences is one long sequence to it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from model.engine.embedder import Embedder, EngineStats, Running, SentenceRows, Text
from model.engine.planning.host import Group
from model.engine.planning.sequences import IntArray, Rows, Sequences, WordArray, bounded, ranges
from model.engine.planning.text import BOS_ID, EOS_ID
from model.engine.states import Wanted


def embed_carried(embedder: Embedder, lanes: Sequence[Sequence[Sequence[str]]]) -> list[list[npt.NDArray[np.floating]]]:
    """For each lane and sentence float32 [n, 2L+1, p], without boundary rows; the first of a lane from the start state.

    Backward, each sentence runs from its end to its start, and the state left at its start goes on to the end of the next.
    """
    text = Text.of([SentenceRows(sentence, 0, len(sentence)) for lane in lanes for sentence in lane])
    prepared = embedder.prepare(text)
    sentences = bounded(prepared.text.words, text.lengths, BOS_ID, EOS_ID)
    forward, backward, words = carried_rows(sentences, [len(lane) for lane in lanes])
    planned = [embedder._host.planned(side) for side in (forward, backward)]
    group = Group(0, len(text), 0, words, (forward, backward), planned)
    x = embedder._x.upto(prepared.vocabulary, prepared.n_words)
    wanted = Wanted(tuple(range(embedder.options.n_states)), "float32")
    states = embedder._device.result(wanted, len(words), embedder.options.projection_dim)
    assert embedder._attempt(group, x, Running(states, EngineStats())) is None
    embedder._device.delivered()()
    each = iter(np.split(np.asarray(states.result()), np.cumsum(text.lengths)[:-1]))
    return [[next(each) for _ in lane] for lane in lanes]


def carried_rows(sentences: Sequences, per_lane: Sequence[int]) -> tuple[Rows, Rows, WordArray]:
    """What sentences ask whose state is carried on along lanes; rows are their tokens without boundaries, in order.

    Backward, each sentence is read from its end to its start, and the next one follows.

    Args:
        sentences: boundaries included, lane after lane.
        per_lane: how many of them each lane has.
    """
    begin, length = sentences.offsets[:-1], sentences.lengths
    ends = np.cumsum(per_lane, dtype=np.int64)
    lane_begin = sentences.offsets[ends - np.array(per_lane, np.int64)]  # [lanes]
    lane_length = sentences.offsets[ends] - lane_begin
    lane = np.repeat(np.arange(len(per_lane)), per_lane)  # of each sentence
    used = np.flatnonzero(lane_length)
    place = np.full(len(per_lane), -1)
    place[used] = np.arange(len(used))
    count = length - 2
    row = np.cumsum(count) - count
    read_back = sentences.words[np.repeat(2 * begin + length - 1, length) - np.arange(len(sentences.words))]

    def side(words: WordArray, row: IntArray, row_step: int) -> Rows:
        sequences = Sequences.cut(words, lane_begin[used], lane_length[used])
        # Within a sentence the two directions meet at the same place counted from either end.
        return Rows(sequences, place[lane], begin - lane_begin[lane] + 1, row, count, row_step, len(words))

    forward, backward = side(sentences.words, row, 1), side(read_back, row + count - 1, -1)
    return forward, backward, sentences.words[ranges(begin + 1, count)]
