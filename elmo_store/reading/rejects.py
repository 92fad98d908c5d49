"""Refused records of a store, as its parts list them."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from elmo_store.errors import ShardCorruptError
from elmo_store.format import layout
from elmo_store.reading.collection import CollectionReader
from elmo_store.reading.sentences import read_index
from elmo_store.reading.store import Held


def rejects_in(store: CollectionReader, numbers: range) -> list[dict[str, Any]]:
    """Those of some neighbours of a collection, which are one or more."""
    edges = [numbers[0], numbers[-1]]
    (low, high), runs = store.kept.own(edges), np.searchsorted(store.kept.sentences, edges, "right") - 1
    first, last = store.kept.member[runs].tolist()
    found = []
    for member, held in enumerate(store.held()):
        if first <= member <= last:
            own = rejects_of(held, low if member == first else 0, high + 1 if member == last else None)
            found += [reject for reject in own if reject["sentence"] in numbers]
    return found


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
