"""Names of a file's datasets, for readers that ask by document and number in it.

They are all made, and refused, before anything is written: a reader would take the vectors of a wrong name without a word.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

from elmo_store.errors import StoreError
from elmo_store.reading.store import StoreReader

NUMBERED = re.compile(r"(.+)[:/](0|[1-9][0-9]{0,17})", re.DOTALL)
REMEDY = "embed the text with ids DOCUMENT:0, DOCUMENT:1, …"


def keys_of(store: StoreReader, format: str) -> list[str]:
    """The dataset's name of each sentence, "/" between groups.

    Raises:
        StoreError: ids that do not say which sentence of which document each is; names that HDF5 can't have, or has once only.
    """
    keys = [""] * store.n_sentences
    for document, numbers in _documents_of_ids(store).items():
        for number, sentence in numbers.items():
            keys[sentence] = f"{document}_{number}" if format == "dygie" else f"{document.replace('/', ':')}/{number}"
    check_paths(keys, "embed the documents under other names")
    return keys


def place_of(sentence_id: str) -> tuple[str, int] | None:
    """The document that a sentence's id names, and its number there; None of an id that names none.

    The number is what follows the last ":" or "/", in at most 18 digits without a zero before them; the document is all before
    it, so that ``bc/cctv/00`` is not a sentence of ``bc/cctv``.
    """
    match = NUMBERED.fullmatch(sentence_id)
    return None if match is None else (match[1], int(match[2]))


def _documents_of_ids(store: StoreReader) -> Mapping[str, Mapping[int, int]]:
    """Document → number in it → sentence."""
    documents: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for record in (sentence.record for sentence in store.sentences()):
        place = place_of(record.id)
        if place is None:
            raise StoreError(
                f"the id of sentence {record.index}, {record.id!r}, is not DOCUMENT:NUMBER or DOCUMENT/NUMBER: {REMEDY}"
            )
        document, number = place
        other = documents[document].setdefault(number, record.index)
        if other != record.index:
            raise StoreError(
                f"the ids {store[other].id!r} and {record.id!r}, of sentences {other} and {record.index}, are both "
                f"sentence {number} of document {document!r}: {REMEDY}"
            )
    for document, numbers in documents.items():
        missing = next((number for number in range(len(numbers)) if number not in numbers), None)
        if missing is not None:
            later = numbers[max(numbers)]
            raise StoreError(
                f"document {document!r} has no sentence {missing}, but {store[later].id!r} is sentence {later} of the store: "
                f"readers count a document's sentences from 0 without a gap; {REMEDY}"
            )
    return documents


def check_paths(keys: Sequence[str], remedy: str) -> None:
    """StoreError, with the remedy, for names that HDF5 can't hold, and for two of which one is in the other's way."""
    taken: dict[str, int] = {}
    for sentence, key in enumerate(keys):
        parts = key.split("/")
        if not parts[-1] or "." in parts or "\0" in key:
            raise StoreError(f"sentence {sentence} would be dataset {key!r}, a name that HDF5 can't hold: {remedy}")
        path = "/".join(filter(None, parts))  # as HDF5 takes it
        if taken.setdefault(path, sentence) != sentence:
            raise StoreError(f"sentences {taken[path]} and {sentence} would both be dataset {key!r}: {remedy}")
    for path, sentence in taken.items():
        for parent in accumulate(path.split("/")[:-1], "{}/{}".format):
            if parent in taken:
                what = f"sentences {taken[parent]} and {sentence} would be dataset {parent!r} and in a group of that name"
                raise StoreError(f"{what}: {remedy}")
