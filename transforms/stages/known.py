"""Sentences whose rows a collection has already: found by their tokens and copied, so that the engine computes the others alone.

A sentence's states follow from the model, the start state, the engine's settings and its tokens; so only members are asked that
were computed as this job computes, and what is copied is what would have been computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from elmo_store.collecting import member_root
from elmo_store.format.manifest import Manifest, read_manifest
from elmo_store.format.numbers import Array, Int8Rows
from elmo_store.format.texts import cut_bytes, hash_tokens
from elmo_store.format.version import Member, Version, read_version, with_members
from elmo_store.reading.view import View
from elmo_store.storage.root import Root
from transforms.stages.plan import sentence_rows
from transforms.stages.shards import Excerpt, KnownRows, ShardText


@dataclass(frozen=True)
class KnownSource:
    """A version of a collection, and which of its members may be asked: name → the GPUs that computed it, "" for none."""

    root: Root
    version: int
    members: Mapping[str, str]


def source_of(root: Root, version: Version, job: Mapping[str, Any]) -> KnownSource:
    """What a job may copy from a version. ``job``: of its manifest, ``device`` decided."""

    def gpus(member: Member) -> str | None:
        own = read_manifest(member_root(root, member.name)).job
        same = all(
            own.get(name) == job.get(name) for name in ("cell", "device")
        )  # which show in the last bits of states
        return str(own.get("gpu", "")) if same and "converted_from" not in own else None

    asked = {member.name: gpus(member) for member in version.members}
    return KnownSource(
        root, version.number, {name: gpu for name, gpu in asked.items() if gpu is not None}
    )


class KnownSentences:
    """Finds sentences of a job in a collection."""

    def __init__(self, source: KnownSource, manifest: Manifest, hardware: str) -> None:
        """``hardware``: what this worker computes on, as `Embedder.hardware` has it."""
        version = read_version(source.root, source.version)
        gpu = hardware.partition(" ")[2]
        asked = {
            name
            for name, computed_on in source.members.items()
            if computed_on.partition(",")[0] == gpu
        }  # less its lanes
        version = with_members(
            version, [member for member in version.members if member.name in asked]
        )
        form = "zarr" if "zarr" in version.store.forms else "parquet"
        self._store = View.of_version(source.root, version, form) if version.members else None
        self._manifest, self._cut = manifest, cut_bytes(manifest.model.options)

    def of(self, text: ShardText) -> ShardText:
        """``text`` with the rows that are known."""
        if self._store is None or not text.task.n_rows:
            return text
        lengths = np.concatenate([excerpt.lengths for excerpt in text.excerpts])
        first = np.concatenate([excerpt.first for excerpt in text.excerpts])
        stop = np.concatenate([excerpt.stop for excerpt in text.excerpts])
        pairs = np.concatenate(
            [hash_tokens(_lists(excerpt), self._cut) for excerpt in text.excerpts]
        )
        found = np.array(
            [min(numbers, default=-1) for numbers in self._store.find(pairs, texts=True)], np.int64
        )
        known = np.flatnonzero(found >= 0)
        if not len(known):
            return text
        spans = self._store.spans(found[known])
        wanted = sentence_rows(lengths[known], self._manifest.boundaries)
        if not np.array_equal(spans[:, 1] - spans[:, 0], wanted):
            raise ValueError(
                f"the collection {self._store.url} has other rows for the same tokens: verify it"
            )
        own = np.stack([spans[:, 0] + first[known], spans[:, 0] + stop[known]], axis=1)
        rows = self._store.read_spans(
            range(len(self._manifest.states)), own, self._manifest.is_int8
        )
        is_known = np.zeros(len(lengths), bool)
        is_known[known] = True
        whole = int(
            (first[known] == 0).sum()
        )  # a sentence that goes on in the next shard is counted once
        return replace(
            text,
            known=KnownRows(
                _without(text.excerpts, is_known), np.repeat(is_known, stop - first), rows, whole
            ),
        )


def _lists(excerpt: Excerpt) -> pa.ListArray:
    tokens = pa.array(excerpt.part.vocabulary[excerpt.words], pa.string())
    offsets = np.concatenate([[0], np.cumsum(excerpt.lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, tokens)


def _without(excerpts: Sequence[Excerpt], known: "np.typing.NDArray[np.bool_]") -> list[Excerpt]:
    """The excerpts' sentences that are not known; ``known``: of all of them [n]."""
    ends = np.cumsum([len(excerpt.lengths) for excerpt in excerpts])
    return [
        excerpt.some(~own)
        for excerpt, own in zip(excerpts, np.split(known, ends[:-1]), strict=True)
    ]


def merged(known: KnownRows | None, computed: Array | Int8Rows | None) -> Array | Int8Rows:
    """All rows of a shard; ``computed``: those that were not known, in order, None where there are none."""
    if known is None or computed is None:
        rows = computed if known is None else known.rows
        assert rows is not None  # a shard has rows
        return rows
    if isinstance(computed, Int8Rows) and isinstance(known.rows, Int8Rows):
        parts = (_merged(known.mask, *pair) for pair in zip(known.rows, computed, strict=True))
        return Int8Rows(*parts)
    return _merged(known.mask, known.rows, computed)


def _merged(mask: "np.typing.NDArray[np.bool_]", known: Any, computed: Any) -> Array:
    rows = np.empty((len(mask), *known.shape[1:]), known.dtype)
    rows[mask], rows[~mask] = known, computed
    return rows
