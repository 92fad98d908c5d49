"""Sentences that a collection already has, left out of what is read: by the record's own id, otherwise by their tokens.

What is refused, and sentences without tokens, stay.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from elmo_store.collecting import known_sentences
from elmo_store.format import layout
from elmo_store.format.version import read_version
from elmo_store.reading.view import View
from elmo_store.storage.root import Root
from transforms.inputs.records import ReadSentence, ReadSettings, Record, id_within

_RECORDS_AT_ONCE = 1024


class SkipKnown:
    """Leaves out what one version of a collection has. ``n_skipped``: sentences so far."""

    def __init__(self, member: Root, settings: ReadSettings) -> None:
        """``member``: the store that is written; version 0 of its collection has no sentence."""
        self.n_skipped = 0
        self._store: View | None = None
        if settings.skip_version:
            root = Root(str(member).rpartition(f"/{layout.MEMBERS}/")[0], member.storage_options)
            version = read_version(root, settings.skip_version)
            self._store = View.of_version(root, version, version.store.forms[0])

    def new(self, records: Iterable[Record]) -> Iterator[Record]:
        """Those of ``records`` that the version does not have, in order. They are read some ahead."""
        if self._store is None:
            yield from records
            return
        remaining = iter(records)
        while batch := list(islice(remaining, _RECORDS_AT_ONCE)):
            known = self._known(self._store, batch)
            self.n_skipped += len(known)
            yield from (record for place, record in enumerate(batch) if place not in known)

    def _known(self, store: View, batch: list[Record]) -> set[int]:
        """Places in ``batch`` of the sentences that the store has."""
        sentences = [
            (place, record)
            for place, record in enumerate(batch)
            if isinstance(record, ReadSentence)
        ]
        ids = [id_within(record.id, record.within) if record.id else "" for _, record in sentences]
        are_known = known_sentences(store, ids, [record.tokens for _, record in sentences])
        return {place for (place, _), known in zip(sentences, are_known, strict=True) if known}
