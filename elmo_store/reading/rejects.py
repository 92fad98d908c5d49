"""Refused records of a store, as its parts list them."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from elmo_store.errors import ShardCorruptError
from elmo_store.format import layout
from elmo_store.reading.sentences import read_index
from elmo_store.reading.store import Held


def rejects_of(held: Held, first: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
    """Those of the parts that hold sentences ``first … stop`` of the store, ``sentence`` as ``held`` numbers it.

    Those of sentences that are removed are left out. ShardCorruptError for a line that is none.
    """
    root, manifest = held.store.root, held.store.manifest
    for part in read_index(root, manifest) if manifest.sizes.rejected else ():
        if part.first_sentence + part.n_sentences <= first or (stop is not None and part.first_sentence >= stop):
            continue
        rel = layout.rejects_part(part.part)
        try:
            lines = root.get(rel).split(b"\n")[:-1]
        except FileNotFoundError:  # a part without any
            continue
        try:
            rejects = [json.loads(line) for line in lines]
            numbers = held.numbers_of(np.array([reject["sentence"] for reject in rejects], np.int64)).tolist()
        except (ValueError, KeyError, TypeError) as error:
            raise ShardCorruptError(f"{root.url(rel)} is no list of refused records ({error!r}): restore it") from error
        yield from (reject | {"sentence": number} for reject, number in zip(rejects, numbers, strict=True) if number >= 0)
