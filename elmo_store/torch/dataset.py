"""The sentences of a store as items of a map-style PyTorch dataset, and their padding."""

from collections.abc import MutableSequence, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from elmo_store.format.numbers import Empty
from elmo_store.reading.row_readers import Block, Job
from elmo_store.reading.rows import Int64, Readable
from elmo_store.store import open as open_store
from elmo_store.torch.fields import check_fields, read_fields, stacked

Item = dict[str, Any]
PADDED = frozenset(("states", "scale"))  # entries of a batch


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
        text: False leaves out `id` and `tokens`, and reads none of them.
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
            (made["id"],), (made["tokens"],) = self.store.texts([sentence.index])
        if self.fields:
            (made["fields"],) = read_fields(self.store, [sentence.index], [sentence.n_rows], self.fields)
        return made

    def __getitems__(self, items: Sequence[int]) -> MutableSequence[Item]:
        """The items of a batch, all of them read at once."""
        numbers = np.array([int(self.indices[item]) for item in items], np.int64)
        sentences = np.column_stack([numbers, self.store.spans(numbers)])
        return PaddedItems(ReadBatches(self.store, [sentences], self.states, self.text, self.raw, fields=self.fields).batch(0))


class ReadBatches:
    """Batches of sentences, read together to their places in the batches; each is what `collate` gives but for `fields`."""

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
        indices, jobs, self._read = store.state_indices(states), list[Job](), list[tuple[Int64, Block, npt.NDArray[np.bool_]]]()
        for sentences in batches:
            lengths = sentences[:, 2] - sentences[:, 1]
            longest = int(lengths.max(initial=0))
            mask = np.arange(longest) < lengths[:, None]  # [B, n_max]
            block = store.block(len(indices), mask.size, empty)
            places = range(0, mask.size, longest) if longest else [0] * len(sentences)
            spans = zip(sentences[:, 1].tolist(), sentences[:, 2].tolist(), strict=True)
            jobs += [(first, stop, block, place) for (first, stop), place in zip(spans, places, strict=True)]
            self._read.append((sentences, block, mask))
        store.fill(indices, sorted(jobs, key=itemgetter(0)))
        self._raw, numbers = raw, np.concatenate(batches)[:, 0]
        self._ends = np.cumsum([len(own) for own in batches])
        self._texts = store.texts(numbers) if text else None
        self._fields = None
        if fields:
            lengths = np.concatenate([own[:, 2] - own[:, 1] for own in batches])
            self._fields = read_fields(store, numbers.tolist(), lengths.tolist(), fields)

    def batch(self, number: int) -> Item:
        """The batch of this number, counted from 0."""
        sentences, (values, scale), mask = self._read[number]
        padding = np.flatnonzero(~mask)
        values[:, padding] = 0
        made: Item = {"index": sentences[:, 0].tolist()}
        if scale is not None:
            scale[padding] = 0
        rows: Any = Block(values, scale).rows(self._raw)
        arrays = {"states": rows.values, "scale": rows.scale} if self._raw else {"states": rows}
        made |= {name: torch.from_numpy(array.reshape(*mask.shape, *array.shape[1:])) for name, array in arrays.items()}
        own = slice(self._ends[number] - len(sentences), self._ends[number])
        if self._texts is not None:
            ids, tokens = self._texts
            made |= {"id": ids[own], "tokens": tokens[own]}
        if self._fields is not None:
            made["fields"] = self._fields[own]
        return made | {"mask": torch.from_numpy(mask)}


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
