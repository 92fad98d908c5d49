"""Sentences that a collection already has, left out of what is read: by the record's own id, otherwise by their tokens.

What is refused, and sentences without tokens, stay.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from elmo_store.format import layout
from elmo_store.format.texts import hash_texts
from elmo_store.format.version import read_version
from elmo_store.reading.collection import CollectionReader
from elmo_store.storage.root import Root
from transforms.inputs.records import ReadSentence, ReadSettings, Record, id_within

_RECORDS_AT_ONCE = 1024


class SkipKnown:
    """Leaves out what one version of a collection has. ``n_skipped``: sentences so far."""

    def __init__(self, member: Root, settings: ReadSettings) -> None:
        """``member``: the store that is written; version 0 of its collection has no sentence."""
        self.n_skipped = 0
        self._store: CollectionReader | None = None
        if settings.skip_version:
            root = Root(str(member).rpartition(f"/{layout.MEMBERS}/")[0], member.storage_options)
            version = read_version(root, settings.skip_version)
            self._store = CollectionReader(root, version, version.store.forms[0])

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

    def _known(self, store: CollectionReader, batch: list[Record]) -> set[int]:
        """Places in ``batch`` of the sentences that the store has."""
        asked = [
            (place, record)
            for place, record in enumerate(batch)
            if isinstance(record, ReadSentence) and record.tokens
        ]
        named = [
            (place, id_within(record.id, record.within)) for place, record in asked if record.id
        ]
        plain = [(place, record.tokens) for place, record in asked if not record.id]
        by_id = store.find_ids([own for _, own in named]) if named else []
        by_text = (
            store.find(hash_texts([tokens for _, tokens in plain], store.cut_bytes), texts=True)
            if plain
            else []
        )
        known = {place for (place, _), numbers in zip(named, by_id, strict=True) if numbers}
        return known | {
            place for (place, _), numbers in zip(plain, by_text, strict=True) if numbers
        }
