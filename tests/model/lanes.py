"""Lanes of sentences whose state is carried on from one to the next, as the goldens were made: the goldens themselves (see
docs/development/data.md: the original TensorFlow code's top layer of 30 sentences in 3 lanes), and such lanes through the plain
model and through the engine, which has no such calls: a lane of sentences is one long sequence to it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.bilm import read_sentence
from model.engine.embedder import Embedder, Text
from model.engine.planning.host import Group, planned
from model.engine.planning.sequences import IntArray, Rows, Sequences, WordArray, bounded, ranges
from model.engine.planning.text import BOS_ID, EOS_ID
from model.files.weights import BiLMWeights
from model.start_state import StartState


def golden_lanes(shared_dir: Path) -> list[list[list[str]]]:
    """Tokens of each sentence of each lane."""
    text: list[list[str]] = json.loads(
        (shared_dir / "golden" / "sentences.json").read_text(encoding="utf-8")
    )
    return [[sentence.split() for sentence in lane] for lane in text]


def golden_top_layers(shared_dir: Path) -> list[list[npt.NDArray[np.float32]]]:
    """[2, n, 16] (forward, backward) of each sentence of each lane; no boundary rows."""
    result = []
    for k in range(3):
        with h5py.File(shared_dir / "golden" / f"lm_embeddings_{k}.hdf5", "r") as file:
            result.append([np.asarray(file[str(i)][()]) for i in range(10)])
    return result


def plain_lane(
    weights: BiLMWeights,
    sentences: Sequence[Sequence[str]],
    start: StartState | None = None,
    carry: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """States [n+2, 2L+1, p] of each sentence; from `start` each, or carried from one to the next."""
    start = start or StartState.zero(weights.options)
    tensors = {name: tensor.to(dtype) for name, tensor in weights.tensors.items()}
    h = h_0 = start.h.to(dtype)  # [2, L, p]
    c = c_0 = start.c.to(dtype)  # [2, L, d]
    result = []
    for words in sentences:
        states, h, c = read_sentence(tensors, weights.options, words, h, c)
        result.append(states)
        if not carry:
            h, c = h_0, c_0
    return result


def part_of(sentences: Sequence[Sequence[str]], first: Sequence[int], stop: Sequence[int]) -> Text:
    """Of each sentence the rows from first to stop."""
    return replace(
        Text.of(sentences), first=np.array(first, np.int64), stop=np.array(stop, np.int64)
    )


def sequences_of(sequences: Iterable[Sequence[int]]) -> Sequences:
    """Lists of numbers as the engine has them."""
    listed = list(sequences)
    words = np.array([word for sequence in listed for word in sequence], np.int32)
    return Sequences(words, np.cumsum([0, *map(len, listed)], dtype=np.int64))


def embed_carried(
    embedder: Embedder, lanes: Sequence[Sequence[Sequence[str]]]
) -> list[list[npt.NDArray[np.floating]]]:
    """For each lane and sentence float32 [n, 2L+1, p], without boundary rows; the first of a lane from the start state.

    Backward, each sentence runs from its end to its start, and the state left at its start goes on to the end of the next.
    """
    text = Text.of([sentence for lane in lanes for sentence in lane])
    prepared = embedder.prepare(text)
    sentences = bounded(prepared.text.words, text.lengths, BOS_ID, EOS_ID)
    forward, backward, words = carried_rows(sentences, [len(lane) for lane in lanes])
    group = Group(0, words, [planned(side, prepared.limits) for side in (forward, backward)])
    states = np.asarray(embedder.run(replace(prepared, groups=[group]), dtype="float32").result())
    each = iter(np.split(states, np.cumsum(text.lengths)[:-1]))
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
    read_back = sentences.words[
        np.repeat(2 * begin + length - 1, length) - np.arange(len(sentences.words))
    ]

    def side(words: WordArray, row: IntArray, row_step: int) -> Rows:
        sequences = Sequences.cut(words, lane_begin[used], lane_length[used])
        # Within a sentence the two directions meet at the same place counted from either end.
        return Rows(sequences, place[lane], begin - lane_begin[lane] + 1, row, count, row_step)

    forward, backward = side(sentences.words, row, 1), side(read_back, row + count - 1, -1)
    return forward, backward, sentences.words[ranges(begin + 1, count)]
