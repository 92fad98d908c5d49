"""The sentences of a store as items of a map-style PyTorch dataset, and their padding."""

from collections.abc import MutableSequence, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from elmo_store.format.numbers import Array, Empty
from elmo_store.forms.runs import Places, offsets_of
from elmo_store.reading.rows import Int64, Readable
from elmo_store.store import open as open_store
from elmo_store.torch.fields import check_fields, read_fields, stacked

Item = dict[str, Any]
PADDED = frozenset(("states", "scale"))  # entries of a batch
MOST_PADDING = 2  # times the rows of several batches that are padded together


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
        fields: kept fields to read too, by column: an item's `fields` has them by name. Numbers are tensors, of tokens as long as
            `states`, int64 (null, BOS and EOS: -100, which cross_entropy ignores) or float32 (NaN); others as they are.
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
        fields: Sequence[str] = (),
        raw: bool = False,
    ) -> None:
        self.store: Readable = open_store(store) if isinstance(store, str) else store
        self.states = tuple(states) if states is not None else self.store.states
        self.text, self.fields, self.raw = text, tuple(fields), raw
        self.store.check_raw(raw)
        check_fields(self.store, self.fields)
        self.indices: Sequence[int] = range(len(self.store)) if indices is None else indices

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} sentences of {self.store!r}, states {', '.join(self.states)}>"

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> Item:
        sentence = self.store.sentence(int(self.indices[item]))
        states, scale = sentence.read_raw(self.states) if self.raw else (sentence.read(self.states), None)
        made = {"index": sentence.index, "states": torch.from_numpy(states)}
        if scale is not None:
            made["scale"] = torch.from_numpy(scale)
        if self.text:
            made |= {"id": sentence.id, "tokens": sentence.tokens}
        if self.fields:
            (made["fields"],) = read_fields(self.store, [sentence.index], [sentence.n_rows], self.fields)
        return made

    def __getitems__(self, items: Sequence[int]) -> MutableSequence[Item]:
        """The items of a batch, all of them read at once."""
        numbers = np.array([int(self.indices[item]) for item in items], np.int64)
        sentences = np.column_stack([numbers, self.store.spans(numbers)])
        return PaddedItems(ReadBatches(self.store, [sentences], self.states, self.text, self.raw, fields=self.fields).batch(0))


class ReadBatches:
    """Batches of sentences that were read together, in the order of the store; each is what `collate` gives but for `fields`.

    Numbers that are stored as they are were read to their places in the batches. What must be decoded is padded when a batch is
    asked for; so are batches that padding makes much larger than what was read.
    """

    def __init__(
        self,
        store: Readable,
        batches: Sequence[Int64],
        states: Sequence[str],
        text: bool,
        raw: bool,
        empty: Empty = np.empty,
        *,
        fields: Sequence[str] = (),
    ) -> None:
        """``batches``: int64 [B, 3] each, of each sentence its number, its first row, and the row after its last."""
        sentences, indices = np.concatenate(batches), store.state_indices(states)
        numbers, spans = sentences[:, 0], sentences[:, 1:]
        sizes = np.array([len(own) for own in batches])
        self._batches, self._ends = batches, np.cumsum(sizes)
        self._records = store.records(numbers.tolist()) if text else None
        lengths = (spans[:, 1] - spans[:, 0]).tolist()
        self._fields = read_fields(store, numbers.tolist(), lengths, fields) if fields else None
        self._padded = None if raw else read_padded(store, indices, spans, sizes, empty)
        if self._padded is None:
            _, once, place = np.unique(numbers, return_index=True, return_inverse=True)
            rows: Any = store.read_spans(indices, spans[once], raw, empty)
            self._rows: tuple[Array, Array | None] = (rows.values, rows.scale) if raw else (rows, None)
            self._firsts = np.split(offsets_of(spans[once])[place], self._ends[:-1])

    def batch(self, number: int, empty: Empty = np.empty) -> Item:
        """The batch of this number, counted from 0."""
        sentences = self._batches[number]
        lengths = sentences[:, 2] - sentences[:, 1]
        along = np.arange(lengths.max(initial=0))
        mask = along < lengths[:, None]  # [B, n_max]
        made: Item = {"index": sentences[:, 0].tolist()}
        if self._padded is not None:
            made["states"] = torch.from_numpy(self._padded[number])
        else:
            rows = (self._firsts[number][:, None] + along).reshape(-1)
            states, scale = self._rows
            made["states"] = _taken(states, rows, mask, empty)
            if scale is not None:
                made["scale"] = _taken(scale, rows, mask, empty)
        own = slice(self._ends[number] - len(sentences), self._ends[number])
        if self._records is not None:
            records = self._records[own]
            made |= {"id": [record.id for record in records], "tokens": [record.tokens for record in records]}
        if self._fields is not None:
            made["fields"] = self._fields[own]
        return made | {"mask": torch.from_numpy(mask)}


def read_padded(store: Readable, states: Sequence[int], spans: Int64, sizes: Int64, empty: Empty) -> list[Array] | None:
    """Batches of so many sentences each, with these rows [n, 2]: [B, n_max, states, channels], zeros behind a sentence.

    All of them are one array of ``empty``, a batch after the other, laid out in memory as the store is. None where rows must be
    decoded, or if several batches would be much larger than their rows.
    """
    lengths, starts = spans[:, 1] - spans[:, 0], np.cumsum(sizes) - sizes
    longest = np.maximum.reduceat(np.append(lengths, 0), starts)
    part_rows = sizes * longest  # of each batch: all of its rows, or those of one state
    if len(sizes) > 1 and part_rows.sum() > MOST_PADDING * lengths.sum():
        return None
    parts = len(states)
    ends = parts * np.cumsum(part_rows)
    most, step = np.repeat(longest, sizes), np.repeat(part_rows, sizes)
    first = np.repeat(ends - parts * part_rows - starts * longest, sizes) + np.arange(len(spans)) * most
    order = np.argsort(spans[:, 0])
    order = order[lengths[order] > 0]
    out = empty((int(part_rows.sum()) * parts, store.channels), store.dtype)
    if not store.read_into(states, spans[order], Places(first[order], step[order]), out):
        return None
    behind = most - lengths
    zeros = np.arange(behind.sum()) + np.repeat(first + lengths - (np.cumsum(behind) - behind), behind)
    out[zeros[:, None] + np.repeat(step, behind)[:, None] * np.arange(parts)] = 0
    shapes = [(parts, size, n, store.channels) for size, n in zip(sizes.tolist(), longest.tolist(), strict=True)]
    batches = [rows.reshape(shape) for rows, shape in zip(np.split(out, ends[:-1]), shapes, strict=True)]
    return [batch.transpose(1, 2, 0, 3) for batch in batches]


def _taken(values: Array, rows: Array, mask: Array, empty: Empty) -> torch.Tensor:
    """Rows [B × n_max] of values [rows, states, …], zeros where the mask [B, n_max] is False: [B, n_max, states, …].

    In memory as the values are: states side by side, or one after the other.
    """
    axis = 0 if values.flags.c_contiguous else 1
    ordered = values.swapaxes(0, axis)  # of another order take would copy all values
    shape = list(ordered.shape)
    shape[axis] = len(rows)
    out = empty(tuple(shape), values.dtype)
    if len(values):
        np.take(ordered, rows, axis=axis, out=out, mode="clip")
    out[(slice(None),) * axis + (np.flatnonzero(~mask),)] = 0
    return torch.from_numpy(out.swapaxes(0, axis).reshape(*mask.shape, *values.shape[1:]))


class PaddedItems(MutableSequence[Item]):
    """The items of a padded batch; made when they are asked for, `states` and `scale` views of the batch's."""

    def __init__(self, batch: Item) -> None:
        self._batch = batch
        self._views: dict[str, list[torch.Tensor]] = {}

    @cached_property
    def _items(self) -> list[Item]:
        columns = {name: values for name, values in self._batch.items() if name != "mask"}
        lengths = self._batch["mask"].sum(1).tolist()
        for name in PADDED & columns.keys():
            self._views[name] = [rows[:n] for rows, n in zip(columns[name].unbind(), lengths, strict=True)]
        columns |= self._views
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._items[index] = value

    def __delitem__(self, index: int | slice) -> None:
        del self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def insert(self, index: int, value: Item) -> None:
        """As of a list."""
        self._items.insert(index, value)

    def collated(self) -> Item | None:
        """What `collate` gives, without a copy; None if `states` or `scale` of an item were changed, or items came or went."""
        if "_items" not in self.__dict__:  # nobody looked
            return dict(self._batch)
        for name, own in self._views.items():
            if len(own) != len(self) or any(item.get(name) is not value for item, value in zip(self, own, strict=True)):
                return None
        entries = {name: [item[name] for item in self] for name in self[0]}
        return entries | {name: self._batch[name] for name in (*self._views, "mask")}


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

    `scale`, where there is one, is padded likewise [B, n_max, states]. Of `fields` numbers are one tensor, [B] or [B, n_max],
    others lists. Other entries become lists, so labels that a dataset of yours adds travel along.
    """
    whole = items.collated() if isinstance(items, PaddedItems) else None
    if whole is not None:
        return with_fields(whole)
    batch: Item = with_fields({name: [item[name] for item in items] for name in items[0]})
    batch["states"], batch["mask"] = padded(batch["states"])
    if "scale" in batch:
        batch["scale"], _ = padded(batch["scale"])
    return batch


def with_fields(batch: Item) -> Item:
    """A batch with the `fields` of all its sentences together."""
    return batch | {"fields": stacked(batch["fields"])} if "fields" in batch else batch
