"""In which order an epoch goes through a store's sentences, and who takes which: pure numbers.

An epoch is a row of runs: up to `RUN_SENTENCES` consecutive sentences of one shard each, which one read fetches. Shards are
shuffled, runs are shuffled among the shards of a window, sentences are shuffled in the pool that a reader has in memory. Every
step depends on seed and epoch alone, so all ranks and workers make the same row, and each takes its own stretch of it.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Literal

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Run = tuple[int, int]  # first sentence, and the one after the last
Uneven = Literal["repeat", "drop", "keep"]
RUN_SENTENCES = 256


def generator(seed: int, epoch: int, *more: int) -> np.random.Generator:
    """The same numbers for the same arguments, on every machine."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch, *more])))


def epoch_runs(
    edges: Int64, *, shuffle: bool, seed: int, epoch: int, mixed_shards: int
) -> list[Run]:
    """The runs of an epoch, each sentence in exactly one; without ``shuffle`` in the order of the store.

    ``edges``: [shards + 1], the first sentence of each shard, and at last the number of sentences; ``mixed_shards``: so many
    shards' runs are shuffled together.
    """
    random = generator(seed, epoch)
    shards = random.permutation(len(edges) - 1) if shuffle else np.arange(len(edges) - 1)
    runs: list[Run] = []
    for start in range(0, len(shards), mixed_shards):
        window: list[Run] = []
        for shard in shards[start : start + mixed_shards]:
            stop = int(edges[shard + 1])
            window += [
                (first, min(stop, first + RUN_SENTENCES))
                for first in range(int(edges[shard]), stop, RUN_SENTENCES)
            ]
        runs += [window[i] for i in random.permutation(len(window))] if shuffle else window
    return runs


def share(runs: Sequence[Run], part: int, parts: int, uneven: Uneven) -> list[Run]:
    """The runs of one of ``parts`` readers: a stretch of the row, cut to the sentence.

    ``uneven``: what happens to sentences that don't divide: "repeat" gives some from the row's begin again, so that every
    reader has as many; "drop" leaves the last ones out; "keep" gives each sentence once, and some readers one more.
    """
    if not 0 <= part < parts:
        raise ValueError(f"part {part} of {parts}: parts are counted from 0")
    total = sum(stop - first for first, stop in runs)
    if uneven == "keep":
        return _stretch(runs, part * total // parts, (part + 1) * total // parts)
    size = total // parts if uneven == "drop" else -(-total // parts)
    taken = []
    begin, end = part * size, (part + 1) * size
    while begin < end:  # beyond the end the row begins again
        turn = begin // total * total
        taken += _stretch(runs, begin - turn, min(end - turn, total))
        begin = turn + total
    return taken


def _stretch(runs: Sequence[Run], begin: int, end: int) -> list[Run]:
    """Sentences ``begin … end`` of the row, counted along it."""
    taken, before = [], 0
    for first, stop in runs:
        low, high = max(begin - before, 0), min(end - before, stop - first)
        if low < high:
            taken.append((first + low, first + high))
        before += stop - first
    return taken


def pools(runs: Sequence[Run], size: int) -> Iterator[Int64]:
    """The sentences of runs, ``size`` at a time (the last time fewer)."""
    sentences = chain.from_iterable(range(*run) for run in runs)
    while len(pool := np.fromiter(islice(sentences, size), np.int64)):
        yield pool


def joined(spans: Int64) -> Int64:
    """The spans [n, 2] with those that touch as one."""
    if not len(spans):
        return spans
    begins = np.flatnonzero(np.append(True, spans[1:, 0] != spans[:-1, 1]))
    return np.stack([spans[begins, 0], spans[np.append(begins[1:], len(spans)) - 1, 1]], axis=1)


def batches(
    lengths: Int64, random: np.random.Generator | None, *, sentences: int, bucket: bool
) -> list[Int64]:
    """A pool's sentences, by their places in it, as batches of at most ``sentences``.

    ``lengths``: rows of each sentence [n]; ``random`` shuffles sentences and batches, None leaves the order; ``bucket``:
    sentences of like length together, which saves padding.
    """
    order = np.arange(len(lengths)) if random is None else random.permutation(len(lengths))
    if bucket:
        order = order[np.argsort(lengths[order], kind="stable")]
    made = [order[start : start + sentences] for start in range(0, len(order), sentences)]
    if random is not None and bucket:
        made = [made[i] for i in random.permutation(len(made))]
    return made
