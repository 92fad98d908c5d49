"""Kept fields of sentences as items and batches for PyTorch have them: numbers as tensors, all else as it is."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from elmo_store.format.fields import TOKEN, KeptField
from elmo_store.reading.view import View

# Type of a field → of its tensor, and what stands for null, BOS, EOS, and behind a shorter sentence: cross_entropy ignores -100.
NUMBERS: Mapping[Any, tuple[torch.dtype, float]] = {
    "bool": (torch.int64, -100),
    "int64": (torch.int64, -100),
    "float64": (torch.float32, float("nan")),
}
Values = dict[str, Any]


def read_fields(
    store: View, numbers: Sequence[int], lengths: Sequence[int], names: Sequence[str]
) -> list[Values]:
    """The fields of each sentence. Numbers are tensors: of a sentence [], of its tokens as long as its rows, ``lengths``."""
    made: list[Values] = [{} for _ in numbers]
    # With the column of counts the store compares them with the rows: values of tokens are put beside rows.
    table = store.table(numbers, [*names, "n_tokens"])
    for name in names:
        field = store.fields[name]
        is_number = isinstance(field.type, str) and field.type in NUMBERS
        for item, value, n_rows in zip(made, table[name].to_pylist(), lengths, strict=True):
            item[name] = _tensor(value, field, n_rows) if is_number else value
    return made


def _tensor(value: Any, field: KeptField, n_rows: int) -> torch.Tensor:
    dtype, null = NUMBERS[field.type]
    if field.per != TOKEN:
        return torch.tensor(null if value is None else value, dtype=dtype)
    made = torch.full((n_rows,), null, dtype=dtype)
    if value:
        edge = (n_rows - len(value)) // 2  # the rows of BOS and EOS
        made[edge : edge + len(value)] = torch.tensor(
            [null if one is None else one for one in value], dtype=dtype
        )
    return made


def with_fields(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with its `fields` together: tensors of sentences as one [B], of tokens as one [B, n_max], others as lists."""
    if "fields" not in batch:
        return batch
    items: Sequence[Values] = batch["fields"]
    fields: Values = {name: [item[name] for item in items] for name in items[0]}
    for name, values in fields.items():
        if all(isinstance(value, torch.Tensor) for value in values):
            filling = float("nan") if values[0].dtype.is_floating_point else -100.0
            of_tokens = values[0].ndim
            fields[name] = (
                torch.nn.utils.rnn.pad_sequence(values, True, filling)
                if of_tokens
                else torch.stack(values)
            )
    return batch | {"fields": fields}
