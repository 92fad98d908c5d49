"""The sentences of a store as a stream of batches: an iterable PyTorch dataset that reads shards in long runs, shuffled."""

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from elmo_store.reading.scan import read_ahead
from elmo_store.store import Store
from elmo_store.torch import order
from elmo_store.torch.dataset import Item, Pool, WantedColumns
from elmo_store.torch.epochs import EpochCounter
from elmo_store.torch.fields import with_fields
from elmo_store.torch.order import Int64, Uneven

SPANS_AT_ONCE = 1 << 16
MIXED_SHARDS = 8  # that a pool's runs come from
POOLS_AHEAD = 1  # that are read while one is used
ORDER_SETTINGS = ("seed", "shuffle", "bucket", "uneven", "batch_sentences", "pool_sentences")


class Position(NamedTuple):
    """A place in an epoch: how many batches were given, and whether there are no more."""

    epoch: int
    batches: int
    ended: bool


class SentenceStream(IterableDataset[Item]):
    """Batches of a store's sentences, each epoch in another order; ``DataLoader(stream, batch_size=None)`` adds workers.

    Each iteration is the epoch after the one before it, from 0 on, with workers too; `set_epoch` says otherwise. Ranks must
    iterate equally often, or call `set_epoch` before each iteration. Workers that a DataLoader starts anew take an iteration
    for a new one by the seed that it draws for them, so do not seed PyTorch with the same number before each.

    A batch is what `collate` gives: `states` [B, n_max, states, channels] in the store's dtype, `mask`, `index`, and with text
    `id` and `tokens`. Order and batches follow from seed, epoch, and the
    numbers of ranks and workers alone. Shards are shuffled, then runs of 256 sentences among eight of them, then sentences
    in a pool; so a store is read in few, long requests. Each rank of torch.distributed, and each of its DataLoader's
    workers, takes a stretch of the epoch of its own. Without workers a thread reads ahead; with them each worker does.

    `state_dict` and `load_state_dict` resume in the middle of an epoch and read nothing that was given before. With workers
    torchdata's StatefulDataLoader keeps the state of each.

    Memory: a few batches; where rows are not mapped also three pools, of the rows of ``pool_sentences`` sentences each.

    Args:
        store: an open store (or a view of one), or its URL.
        batch_sentences: sentences of a batch, at most.
        states: names to read instead of all states.
        text: False leaves out `id` and `tokens`.
        fields: kept fields to read too, as of `SentenceDataset`, in `fields` as `collate` gives them.
        shuffle: False goes through the store in its order.
        seed: with the epoch, of all orders.
        bucket: sentences of like length in a batch (of those in the pool), batches in random order.
        pool_sentences: sentences in memory that are shuffled and bucketed together; a multiple of batch_sentences wastes no
            batch.
        uneven: what ranks do with sentences that don't divide among them: "repeat" some (all ranks have as many batches),
            "drop" them, or "keep" each exactly once, as evaluation wants.
        rank: which of the `ranks` readers this is; by default what torch.distributed says, or the only one.
        ranks: how many readers there are; by default as for `rank`.

    Raises:
        ValueError: a number that makes no sense.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        *,
        batch_sentences: int = 32,
        states: Sequence[str] | str | None = None,
        text: bool = True,
        fields: Sequence[str] | str = (),
        shuffle: bool = True,
        seed: int = 0,
        bucket: bool = True,
        pool_sentences: int = 2048,
        uneven: Uneven = "repeat",
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in {
            "batch_sentences": batch_sentences,
            "pool_sentences": pool_sentences,
        }.items():
            if value < 1:
                raise ValueError(f"{name}={value}: give 1 or more")
        if uneven not in ("repeat", "drop", "keep"):
            raise ValueError(f"uneven={uneven!r} is none of 'repeat', 'drop', 'keep'")
        if (rank is None) != (ranks is None):
            raise ValueError(f"rank={rank}, ranks={ranks}: give both rank and ranks")
        self.wanted = WantedColumns(store, states, text, fields)
        self.store, self.states = self.wanted.store, self.wanted.states
        self.shuffle, self.seed, self.bucket, self.uneven = shuffle, seed, bucket, uneven
        self.batch_sentences, self.pool_sentences = batch_sentences, pool_sentences
        self._place = _distributed() if rank is None or ranks is None else (rank, ranks)
        self._epochs = EpochCounter()
        self._in_workers = torch.tensor([False]).share_memory_()
        self._position = Position(0, 0, False)  # of the iteration that began last, or is to begin
        self._resumed: Mapping[str, Any] | None = None  # the state that the next one begins from
        self._resumed_by = os.getpid()  # the process that loaded it
        self._is_resumed = torch.tensor(
            [False]
        ).share_memory_()  # until an iteration begins from it

    def __repr__(self) -> str:
        return f"<SentenceStream of {self.store!r}: batches of {self.batch_sentences} sentences, states {', '.join(self.states)}>"

    def __getstate__(self) -> dict[str, Any]:
        # A DataLoader's workers are not members of the process group: they are told who their process is.
        return self.__dict__ | {"_place": self._place or _distributed()}

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        if self._resumed is not None and self._is_resumed.item():
            return int(self._resumed["epoch"])
        return self._epochs.upcoming

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` that of the next iteration, in every worker; the iterations after it count on from there.

        The same number gives the same order.
        """
        self._epochs.set(epoch)
        if self._resumed is None or self._resumed["epoch"] != epoch:
            self._position, self._resumed = Position(epoch, 0, False), None

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch that was given, and what the order follows from: numbers and strings, fit for JSON.

        RuntimeError where workers of a plain DataLoader read: this process does not know their places.
        """
        if get_worker_info() is None and self._in_workers.item():
            raise RuntimeError(
                "workers read this stream: take the state of torchdata's StatefulDataLoader, or use no workers"
            )
        return self._order() | self._position._asdict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration after the batch that `state_dict` was taken after; `set_epoch` to another epoch undoes it.

        ValueError if other batches would follow: another store, setting, rank, or number of ranks or workers.
        """
        self._position, self._resumed = self._place_in(state), state
        self._resumed_by = os.getpid()
        self._is_resumed.fill_(True)
        if not state["ended"]:
            self._epochs.set(state["epoch"])
        elif (
            not self._epochs.is_set
        ):  # otherwise the epoch that was set comes after the empty rest of this one
            self._epochs.set(state["epoch"] + 1)

    def _place_in(self, state: Mapping[str, Any]) -> Position:
        for name, value in self._order().items():
            if state.get(name) != value:
                here = f"this stream has {name}={value!r}, the saved state {state.get(name)!r}"
                raise ValueError(
                    f"{here}, so it can't resume: batches would differ; restore the original setting"
                )
        return Position(*(state[name] for name in Position._fields))

    def _order(self) -> dict[str, Any]:
        """What the order follows from, but the epoch."""
        (rank, ranks), (worker, workers) = self._reader(), _worker()
        return {name: getattr(self, name) for name in ORDER_SETTINGS} | {
            "sentences": len(self.store), "rows": self.store.n_rows, "shards": len(self._shard_edges) - 1,
            "rank": rank, "ranks": ranks, "worker": worker, "workers": workers,
        }  # fmt: skip

    def _reader(self) -> tuple[int, int]:
        return self._place or _distributed() or (0, 1)

    def __iter__(self) -> Iterator[Item]:
        self._in_workers.fill_(get_worker_info() is not None)
        state = self._take_resumed()
        if state is None:
            self._position = Position(self._epochs.begin(get_worker_info()), 0, False)
        else:
            self._position = self._place_in(state)  # compared again: this may be a worker
            if not state["ended"]:
                self._epochs.begin(get_worker_info())
        return self._batches(self._position)

    def _take_resumed(self) -> Mapping[str, Any] | None:
        """Return the state that this iteration begins from, once; None if it begins at the start of an epoch."""
        state, self._resumed = self._resumed, None
        is_inherited = (
            self._resumed_by != os.getpid()
        )  # each worker gets what the main process loaded
        if state is None or (is_inherited and not self._is_resumed.item()):
            return None
        self._is_resumed.fill_(False)
        return state

    def _batches(self, begin: Position) -> Iterator[Item]:
        given, rows_a_page = (
            begin.batches,
            max(1, mmap.PAGESIZE // (self.store.channels * self.store.dtype.itemsize)),
        )

        def read(pool: tuple[Int64, list[Int64]]) -> Pool:
            spans = self.wanted.view.spans(pool[0])
            runs = order.joined(spans)
            for rows in self.wanted.view.plain_spans(self.wanted.places, runs) or ():
                np.count_nonzero(
                    rows[::rows_a_page, :, 0]
                )  # a pool is no copy of them: here the system reads each page
            return Pool(self.wanted, pool[0], spans, runs)

        for (_, batches), pool in read_ahead(
            read, () if begin.ended else self._pools(begin), POOLS_AHEAD
        ):
            for places in batches:
                given += 1
                self._position = Position(begin.epoch, given, False)
                yield with_fields(pool.batch(places))
            del pool  # so that its memory is free for the next
        self._position = Position(begin.epoch, given, True)

    def _pools(self, begin: Position) -> Iterator[tuple[Int64, list[Int64]]]:
        """The sentences of each pool, from the first batch on that is wanted, and the places of each batch's sentences in it."""
        (rank, ranks), (worker, workers), epoch, skipped = (
            self._reader(),
            _worker(),
            begin.epoch,
            begin.batches,
        )
        edges = self._shard_edges
        runs = order.epoch_runs(
            edges, shuffle=self.shuffle, seed=self.seed, epoch=epoch, mixed_shards=MIXED_SHARDS
        )
        own = order.share(order.share(runs, rank, ranks, self.uneven), worker, workers, "keep")
        random = order.generator(self.seed, epoch, 1 + rank, worker) if self.shuffle else None
        for numbers in order.pools(own, self.pool_sentences):
            spans = self.wanted.view.spans(numbers)
            lengths = spans[:, 1] - spans[:, 0]
            batches = order.batches(
                lengths, random, sentences=self.batch_sentences, bucket=self.bucket
            )
            if wanted := batches[skipped:]:
                left = np.sort(np.concatenate(wanted))
                yield numbers[left], [np.searchsorted(left, places) for places in wanted]
            skipped = max(0, skipped - len(batches))

    @cached_property
    def _shard_edges(self) -> Int64:
        """The first sentence of each shard, and the number of sentences: [shards + 1]. Reads 8 bytes a sentence, once."""
        shard_rows = self.wanted.view.stores[0].manifest.shard_rows
        n, shards = len(self.store), max(1, -(-self.store.n_rows // shard_rows))
        counts = np.zeros(shards, np.int64)
        for start in range(0, n, SPANS_AT_ONCE):
            firsts = self.wanted.view.spans(range(start, min(n, start + SPANS_AT_ONCE)))[:, 0]
            counts += np.bincount(np.minimum(firsts // shard_rows, shards - 1), minlength=shards)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _distributed() -> tuple[int, int] | None:
    """This process's rank and how many there are, as torch.distributed says; None without a process group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def _worker() -> tuple[int, int]:
    """Which of a DataLoader's workers this process is, and how many there are; (0, 1) without workers."""
    worker = get_worker_info()
    return (0, 1) if worker is None else (worker.id, worker.num_workers)
