"""The sentences of a store as items of a map-style PyTorch dataset, and their padding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from elmo_store.reading.rows import Readable
from elmo_store.store import open as open_store

Item = dict[str, Any]


class SentenceDataset(Dataset[Item]):
    """The sentences of a store as PyTorch items; picklable, so DataLoader workers may read side by side.

    Item i is sentence i, also where it has no tokens, unless ``indices`` says otherwise; nothing is read to make the dataset.

    An item is a dict: `index` (number of the sentence), `id`, `tokens` (strings), and `states` [n_rows, states, channels] in the
    store's dtype: what travels from a worker to the device, where `ScalarMix(states=…)` forms the layers and mixes in float32.

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
        return f"<{type(self).__name__}: {len(self)} sentences of {self.store!r}, states {', '.join(self.states)}>"

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> Item:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[Item]:
        """The items of a batch, all of them read at once, in the order of the store."""
        return read_items(self.store, [int(self.indices[item]) for item in items], self.states, self.text, self.raw)


def read_items(store: Readable, numbers: Sequence[int], states: Sequence[str], text: bool, raw: bool) -> list[Item]:
    """The items (see `SentenceDataset`) of these sentences, in this order; read once each, in the order of the store."""
    wanted = sorted(set(numbers))
    batch = store.read_sentences(wanted, states=states, raw=raw)
    # One copy: rows one after the other, which readers give as one state after the other.
    vectors = torch.from_numpy(batch.states).contiguous()  # [rows, states, channels]
    edges = batch.offsets.tolist()
    read: dict[int, Item] = {}
    for index, number in enumerate(wanted):
        read[number] = {"index": number, "states": vectors[edges[index] : edges[index + 1]]}
        if batch.scale is not None:
            read[number]["scale"] = torch.from_numpy(batch.scale[edges[index] : edges[index + 1]])
    if text:
        for record in store._records(wanted):
            read[record.index] |= {"id": record.id, "tokens": record.tokens}
    return [read[number] for number in numbers]


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
    batch["states"], batch["mask"] = padded(batch["states"])
    if "scale" in batch:
        batch["scale"], _ = padded(batch["scale"])
    return batch
