"""Rejected records of the sentences of a view, as ``rejects/`` of its stores has them."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from elmo_store.errors import ShardCorruptError
from elmo_store.format import layout
from elmo_store.reading.sentences import read_index
from elmo_store.reading.view import StoreInView, View


def rejects_in(view: View, numbers: range) -> list[dict[str, Any]]:
    """Return the rejected records of consecutive sentences of a view, one or more.

    ``sentence`` is what each is called in the view.
    """
    run, sentences = view.runs.locate(np.array(numbers, np.int64))
    found = []
    members = {member.index: member for member in view.opened_stores()}
    for index, positions in view.runs.by_store(run):
        own = sentences[positions]
        rejects = rejects_of(members[index], int(own.min()), int(own.max()) + 1)
        found += [reject for reject in rejects if reject["sentence"] in numbers]
    return sorted(found, key=lambda reject: int(reject["sentence"]))


def rejects_of(
    member: StoreInView, first: int = 0, stop: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rejected records of a store's sentences that are in a view.

    Args:
        member: the store, and the view that it is read in. ``sentence`` of what is yielded is what
            each is called in the view; a sentence that is there several times comes several times.
        first: only parts that hold sentences from this one on are read.
        stop: only parts that hold sentences before this one are read.

    Raises:
        ShardCorruptError: a line is not a rejected record.
    """
    root, manifest = member.store.root, member.store.manifest
    for part in read_index(root, manifest) if manifest.sizes.rejected else ():
        ends_before = part.first_sentence + part.n_sentences <= first
        begins_after = stop is not None and part.first_sentence >= stop
        if ends_before or begins_after:
            continue
        rel = layout.rejects_part(part.part)
        try:
            lines = root.get(rel).split(b"\n")[:-1]
        except FileNotFoundError:  # a part without any
            continue
        try:
            rejects = [json.loads(line) for line in lines]
            sentences = np.array([reject["sentence"] for reject in rejects], np.int64)
            found, numbers = member.occurrences(sentences)
        except (ValueError, KeyError, TypeError) as error:
            raise ShardCorruptError(
                f"{root.url(rel)} is not a list of rejected records ({error!r}): restore it"
            ) from error
        for position, number in zip(found.tolist(), numbers.tolist(), strict=True):
            yield rejects[position] | {"sentence": number}
