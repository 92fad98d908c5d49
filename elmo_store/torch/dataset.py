"""The sentences of a store as items of a map-style PyTorch dataset, and their padding."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from elmo_store.format.numbers import Array, Empty
from elmo_store.reading.rows import Readable, offsets_of
from elmo_store.store import open as open_store

Item = dict[str, Any]


class SentenceDataset(Dataset[Item]):
    """The sentences of a store as PyTorch items; picklable, so DataLoader workers may read side by side.

    Item i is sentence i, also where it has no tokens, unless ``indices`` says otherwise; nothing is read to make the dataset.

    An item is a dict: `index` (number of the sentence), `id`, `tokens` (strings), and `states` [n_rows, states, channels] in the
    store's dtype: what travels from a worker to the device, where `ScalarMix(states=…)` forms the layers and mixes in float32.
    In memory it is as in the store, one state after the other, and no copy; ``contiguous()`` makes one.

    Args:
        store: an open store (or a view of one), or its URL.
        states: names to read instead of all states; the others are not read from the store.
        indices: numbers of the sentences to take, in that order; by default every sentence, those without tokens too.
        text: False leaves out `id` and `tokens`: in random order they cost more than the vectors.
        raw: of an int8 store, whether 8 bits travel: `states` are int8 then, and `scale` [n_rows, states] is beside them; give
            both to `ScalarMix`, or the batch to `Elmo`. By default False: `states` are float32. StoreError of another store.
    """

    def __init__(
        self,
        store: Readable | str,
        *,
        states: Sequence[str] | None = None,
        indices: Sequence[int] | None = None,
        text: bool = True,
        raw: bool = False,
    ) -> None:
        self.store: Readable = open_store(store) if isinstance(store, str) else store
        self.states = tuple(states) if states is not None else self.store.states
        self.text, self.raw = text, raw
        self.store._check_raw(raw)
        self.indices: Sequence[int] = range(len(self.store)) if indices is None else indices

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} sentences of {self.store!r}, states {', '.join(self.states)}>"

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> Item:
        store, number = self.store, int(self.indices[item])
        rows = store._read(store.state_indices(self.states), [store._span(number)], self.raw)
        states, scale = rows if self.raw else (rows, None)
        made = {"index": number, "states": torch.from_numpy(states)}
        if scale is not None:
            made["scale"] = torch.from_numpy(scale)
        if self.text:
            (record,) = store._records([number])
            made |= {"id": record.id, "tokens": record.tokens}
        return made

    def __getitems__(self, items: Sequence[int]) -> list[Item]:
        """The items of a batch, all of them read at once, in the order of the store."""
        numbers = [int(self.indices[item]) for item in items]
        sentences = ReadSentences(self.store, numbers, self.states, self.text, self.raw)
        return PaddedItems(sentences.batch(numbers))


class ReadSentences:
    """Sentences that were read, each once, in the order of the store: batches of them are made without another read.

    Memory: their rows. ``empty`` makes arrays as numpy.empty does.
    """

    def __init__(
        self, store: Readable, numbers: Iterable[int], states: Sequence[str], text: bool, raw: bool, empty: Empty = np.empty
    ) -> None:
        self._numbers = np.unique(np.asarray(numbers, np.int64))
        spans = store._spans(self._numbers)
        rows: Any = store._read(store.state_indices(states), spans, raw, empty)
        self._states: Array = rows.values if raw else rows
        self._scale: Array | None = rows.scale if raw else None
        self._first, self._lengths = offsets_of(spans)[:-1], spans[:, 1] - spans[:, 0]
        self._records = store._records(self._numbers.tolist()) if text else None

    def batch(self, numbers: Sequence[int], empty: Empty = np.empty) -> Item:
        """The sentences of these numbers, of those that were read, as `collate` gives them."""
        places = np.searchsorted(self._numbers, numbers)
        first, lengths = self._first[places], self._lengths[places]  # [B]
        along = np.arange(int(lengths.max(initial=0)))
        mask = along < lengths[:, None]  # [B, n_max]
        rows = (first[:, None] + along).reshape(-1)
        made: Item = {"index": list(numbers), "states": _taken(self._states, rows, mask, empty)}
        if self._scale is not None:
            made["scale"] = _taken(self._scale, rows, mask, empty)
        if self._records is not None:
            records = [self._records[place] for place in places.tolist()]
            made |= {"id": [record.id for record in records], "tokens": [record.tokens for record in records]}
        return made | {"mask": torch.from_numpy(mask)}


def _taken(values: Array, rows: Array, mask: Array, empty: Empty) -> torch.Tensor:
    """Rows [B × n_max] of values [rows, states, …], zeros where the mask [B, n_max] is False: [B, n_max, states, …].

    One state after the other in memory, as readers give them.
    """
    by_state = values.swapaxes(0, 1)
    out = empty((len(by_state), len(rows), *by_state.shape[2:]), values.dtype)
    if len(values):
        np.take(by_state, rows, axis=1, out=out, mode="clip")
    out[:, np.flatnonzero(~mask)] = 0
    return torch.from_numpy(out.reshape(len(by_state), *mask.shape, *by_state.shape[2:])).movedim(0, 2)


class PaddedItems(list[Item]):
    """Items of a batch whose `states` and `scale` are views of what `collate` gives."""

    def __init__(self, batch: Item) -> None:
        super().__init__({} for _ in batch["index"])
        self._batch: Item = {name: batch[name] for name in ("states", "scale", "mask") if name in batch}
        self._views: dict[str, list[torch.Tensor]] = {}
        lengths = batch["mask"].numpy().sum(1).tolist()
        for name, values in batch.items():
            if name != "mask":
                padded = name in self._batch
                own = [rows[:n] for rows, n in zip(values.unbind(), lengths, strict=True)] if padded else values
                for item, value in zip(self, own, strict=True):
                    item[name] = value
                if padded:
                    self._views[name] = own

    def together(self) -> Item | None:
        """`states`, `scale` and `mask` of all; None if items were changed since."""
        for name, own in self._views.items():
            if len(own) != len(self) or any(item.get(name) is not value for item, value in zip(self, own, strict=True)):
                return None
        return self._batch


def padded(items: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Items [n_i, …] as one tensor [B, n_max, …] with zeros behind each, and the mask [B, n_max], True for real rows."""
    lengths = torch.tensor([len(rows) for rows in items])  # [B]
    longest = int(lengths.max())
    together = items[0].new_empty((len(items), longest, *items[0].shape[1:]))
    for own, rows in zip(together, items, strict=True):  # zeros are written behind them only: half the time of pad_sequence
        own[: len(rows)] = rows
        own[len(rows) :] = 0
    return together, torch.arange(longest)[None] < lengths[:, None]


def collate(items: Sequence[Item]) -> Item:
    """A batch of `SentenceDataset` items: `states` padded with zeros [B, n_max, states, channels], `mask` [B, n_max].

    `scale`, where there is one, is padded likewise [B, n_max, states]. Other entries become lists, so labels that a dataset of
    yours adds travel along.
    """
    batch: Item = {name: [item[name] for item in items] for name in items[0]}
    together = items.together() if isinstance(items, PaddedItems) else None
    if together is not None:
        return batch | together
    batch["states"], batch["mask"] = padded(batch["states"])
    if "scale" in batch:
        batch["scale"], _ = padded(batch["scale"])
    return batch
