"""The sentences of a store as items of a map-style PyTorch dataset, and their padding."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from elmo_store.errors import StoreError
from elmo_store.format.numbers import Array
from elmo_store.reading.index import Index, as_names, resolve_number, resolve_numbers
from elmo_store.reading.runs import Int64
from elmo_store.store import Store
from elmo_store.store import open as open_store
from elmo_store.torch.fields import read_fields, with_fields

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
        indices: numbers of the sentences to take, in that order, as of `Store.select`: a mask of all sentences, too. By
            default every sentence, those without tokens too.
        text: False leaves out `id` and `tokens`, and reads none of them.
        fields: kept fields to read too, by column: an item's `fields` has them by name. Numbers are tensors, of tokens as long as
            `states`, int64 (null, BOS and EOS: -100, which cross_entropy ignores) or float32 (NaN); others as they are.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        *,
        states: Sequence[str] | str | None = None,
        indices: Index | None = None,
        text: bool = True,
        fields: Sequence[str] | str = (),
    ) -> None:
        self.wanted = WantedColumns(store, states, text, fields)
        self.store, self.states = self.wanted.store, self.wanted.states
        index = slice(None) if indices is None else indices
        self.indices = resolve_numbers(index, len(self.store), "sentence", self.store.url)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} sentences of {self.store!r}, states {', '.join(self.states)}>"

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int | np.integer[Any]) -> Item:
        wanted = self.wanted
        store = wanted.view
        number = int(self.indices[resolve_number(item, len(self), "sentence", "this dataset")])
        first, stop = store.span(number)
        view = (
            None if store.is_int8 else store.map_span(wanted.places, first, stop)
        )  # sooner than by read_span
        rows = store.read_span(wanted.places, first, stop) if view is None else view.copy("K")
        made: Item = {"states": torch.from_numpy(rows), "index": number}
        if wanted.text:
            (made["id"],), (made["tokens"],) = store.texts([number])
        if wanted.fields:
            (made["fields"],) = read_fields(store, [number], [stop - first], wanted.fields)
        return made

    def __getitems__(self, items: Index) -> Sequence[Item]:
        """The items of a batch, all of them read at once."""
        places = resolve_numbers(items, len(self), "sentence", "this dataset")
        at = np.asarray(places, np.int64)
        if isinstance(self.indices, range):  # which is not made an array of all sentences
            numbers = self.indices.start + self.indices.step * at
        else:
            numbers = self.indices[at]
        spans = self.wanted.view.spans(numbers)
        return PaddedItems(Pool(self.wanted, numbers, spans, spans).batch())


class WantedColumns:
    """What is read of each sentence: see `SentenceDataset`."""

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        states: Sequence[str] | str | None,
        text: bool,
        fields: Sequence[str] | str,
    ) -> None:
        """StoreError, StateNotFoundError for what the store does not have."""
        self.store: Store = open_store(store) if isinstance(store, str | os.PathLike) else store
        self.text, self.fields = text, tuple(as_names(fields))
        for name in self.fields:
            if name not in self.store.fields:
                known = ", ".join(self.store.fields) or "none"
                raise StoreError(f"{self.store.url} keeps no field {name!r}: it has {known}")
        self.view = self.store._view
        self.places = self.view.state_indices(states)
        self.states = tuple(self.store.states[place] for place in self.places)


class Pool:
    """Sentences whose rows were read together, and batches of them; each is what `collate` gives but for `fields`."""

    def __init__(self, wanted: WantedColumns, numbers: Int64, spans: Int64, runs: Int64) -> None:
        """``spans``: of the sentences with these numbers [n, 2]; ``runs``: the same rows, maybe in fewer spans."""
        store, self._wanted = wanted.view, wanted
        self._numbers, self._lengths = numbers, spans[:, 1] - spans[:, 0]
        self._rows = store.rows_of(wanted.places, spans, runs)
        self._texts = store.texts(numbers) if wanted.text else None
        self._fields = None
        if wanted.fields:
            self._fields = read_fields(
                store, numbers.tolist(), self._lengths.tolist(), wanted.fields
            )

    def batch(self, places: Int64 | None = None) -> Item:
        """A batch of the sentences at these places of the pool, by default of all in their order."""
        numbers, lengths, chosen = self._numbers, self._lengths, range(len(self._numbers))
        if places is not None:
            numbers, lengths, chosen = numbers[places], lengths[places], places.tolist()
        states, mask = self._padded(lengths, chosen)
        # Accelerate takes the size of a batch from its first entry, which must be a tensor.
        made: Item = {
            "states": torch.from_numpy(states),
            "mask": torch.from_numpy(mask),
            "index": numbers.tolist(),
        }
        if self._texts is not None:
            made["id"], made["tokens"] = (
                values if places is None else [values[i] for i in chosen] for values in self._texts
            )
        if self._fields is not None:
            made["fields"] = [self._fields[i] for i in chosen]
        return made

    def _padded(self, lengths: Int64, chosen: Sequence[int]) -> tuple[Array, Array]:
        """Rows of sentences of these lengths, with zeros behind each [B, n_max, states, channels], and the mask [B, n_max]."""
        store, rows, counts = self._wanted.view, self._rows, lengths.tolist()
        n_max = max(counts, default=0)
        mask = np.arange(n_max) < lengths[:, None]  # [B, n_max]
        shape = len(self._wanted.places), *mask.shape, store.channels
        if n_max and min(counts) == n_max:  # as often of a bucket: a third sooner than one by one
            states = np.empty(shape, store.dtype).transpose(1, 2, 0, 3)
            np.concatenate([rows[i] for i in chosen], out=states.reshape(-1, shape[0], shape[3]))
        else:
            states = np.zeros(shape, store.dtype).transpose(1, 2, 0, 3)
            together = states.reshape(-1, shape[0], shape[3])  # a view
            for start, n, i in zip(range(0, mask.size, n_max or 1), counts, chosen, strict=False):
                together[start : start + n] = rows[i]
        return states, mask


class PaddedItems(Sequence[Item]):
    """The items of a padded batch; made when they are asked for, `states` are views of the batch's."""

    def __init__(self, batch: Item) -> None:
        self._batch = batch

    @cached_property
    def _items(self) -> list[Item]:
        columns = {name: values for name, values in self._batch.items() if name != "mask"}
        lengths = self._batch["mask"].sum(1).tolist()
        columns["states"] = [
            rows[:n] for rows, n in zip(columns["states"].unbind(), lengths, strict=True)
        ]
        return [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._batch["index"])

    def collated(self) -> Item | None:
        """What `collate` gives, without a copy; None once an item was asked for, since it may have been changed."""
        return None if "_items" in self.__dict__ else dict(self._batch)


def padded(items: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Items [n_i, …] as one tensor [B, n_max, …] with zeros behind each, and the mask [B, n_max], True for real rows."""
    lengths = torch.tensor([len(rows) for rows in items])  # [B]
    longest = int(lengths.max())
    together = items[0].new_empty((len(items), longest, *items[0].shape[1:]))
    for own, rows in zip(
        together, items, strict=True
    ):  # zeros are written behind them only: half the time of pad_sequence
        own[: len(rows)] = rows
        own[len(rows) :] = 0
    return together, torch.arange(longest)[None] < lengths[:, None]


def collate(items: Sequence[Item]) -> Item:
    """A batch of `SentenceDataset` items: `states` padded with zeros [B, n_max, states, channels], `mask` [B, n_max].

    Of `fields` numbers are one tensor, [B] or [B, n_max], others lists. Other entries become lists, so labels that a dataset of
    yours adds travel along.
    """
    whole = items.collated() if isinstance(items, PaddedItems) else None
    if whole is not None:
        return with_fields(whole)
    lists: Item = {name: [item[name] for item in items] for name in items[0]}
    states, mask = padded(lists.pop("states"))
    tensors: Item = {"states": states, "mask": mask}
    return tensors | with_fields(lists) | tensors  # a tensor first, as in `Pool.batch`
