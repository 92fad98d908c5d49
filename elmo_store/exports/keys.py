"""Names of a file's datasets, for readers that ask by document and number in it, or by the sentence itself.

They are all made, and refused, before anything is written: a reader would take the vectors of a wrong name without a word.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from elmo_store.errors import StoreError
from elmo_store.exports.formats import Settings
from elmo_store.reading.store import StoreReader

NUMBERED = re.compile(r"(.+)[:/](0|[1-9][0-9]*)", re.DOTALL)
REMEDY = "embed the text with ids DOCUMENT:0, DOCUMENT:1, …"
Documents = Mapping[str, Mapping[int, int]]  # document → number in it → sentence; documents in the order of the store


def keys_of(store: StoreReader, settings: Settings) -> list[str | None]:
    """The dataset's name of each sentence, "/" between groups; None of one without a token where sentences are the names.

    Raises:
        StoreError: ids that do not say which sentence of which document each is; names that HDF5 can't have, or has once only.
    """
    keys: list[str | None] = [None] * store.n_sentences
    if settings.sentence_keys:
        for record in (sentence.record for sentence in store.sentences()):
            keys[record.index] = record.text or None
    else:
        between = "_" if settings.format == "dygie" else "/"
        for document, numbers in _documents_of_ids(store).items():
            name = document if settings.format == "dygie" else document.replace("/", ":")
            for number, sentence in numbers.items():
                keys[sentence] = f"{name}{between}{number}"
    check_paths(keys, lambda sentence: store[sentence].id, by_document=not settings.sentence_keys)
    return keys


def place_of(sentence_id: str) -> tuple[str, int] | None:
    """The document that a sentence's id names, and its number there; None of an id that names none.

    The number is what follows the last ":" or "/", in digits without a zero before them; the document is all before it, so that
    ``bc/cctv/00`` is not a sentence of ``bc/cctv``.
    """
    match = NUMBERED.fullmatch(sentence_id)
    if match is None:
        return None
    return match[1], int(match[2]) if len(match[2]) < 19 else 10**18  # Python refuses to read the very long ones


def _documents_of_ids(store: StoreReader) -> Documents:
    documents: defaultdict[str, dict[int, int]] = defaultdict(dict)
    before = ""
    for record in (sentence.record for sentence in store.sentences()):
        place = place_of(record.id)
        if place is None:
            beside = f", as that of sentence {record.index - 1}, {before!r}, is" if before else ""
            raise StoreError(
                f"the id of sentence {record.index}, {record.id!r}, is not DOCUMENT:NUMBER or DOCUMENT/NUMBER{beside}: {REMEDY}"
            )
        document, number = place
        other = documents[document].setdefault(number, record.index)
        if other != record.index:
            raise StoreError(
                f"the ids {store[other].id!r} and {record.id!r}, of sentences {other} and {record.index}, are both "
                f"sentence {number} of document {document!r}: {REMEDY}"
            )
        before = record.id
    for document, numbers in documents.items():
        _check_numbers(store, document, numbers)
    return documents


def _check_numbers(store: StoreReader, document: str, numbers: Mapping[int, int]) -> None:
    """StoreError unless the numbers are 0, 1, …: a reader counts a document's sentences from 0."""
    missing = next((number for number in range(len(numbers)) if number not in numbers), None)
    if missing is None:
        return
    later = numbers[min(number for number in numbers if number > missing)]
    record = store[later].record
    raise StoreError(
        f"document {document!r} has no sentence {missing} ({document}{record.id[len(document)]}{missing}), but {record.id!r} is "
        f"sentence {later} of the store: readers count a document's sentences from 0 without a gap; {REMEDY}"
    )


def check_paths(keys: Sequence[str | None], id_of: Callable[[int], str], *, by_document: bool) -> None:
    """StoreError for names that HDF5 can't hold, and for two names of which one is in the other's way.

    ``id_of``: what a message calls a sentence beside its number.
    ``by_document``: refuse also what HDF5 takes for shorter names (``a//b``, ``./a``), which would be in another group.
    """
    remedy = "embed the documents under other names" if by_document else "export without --use-sentence-keys, by number"

    def clash(first: int, second: int, what: str) -> StoreError:
        return StoreError(f"sentences {first} and {second}, {id_of(first)!r} and {id_of(second)!r}, would {what}: {remedy}")

    taken: dict[str, int] = {}
    for sentence, key in enumerate(keys):
        if key is None:
            continue
        parts = key.split("/")
        path = "/".join(part for part in parts if part not in ("", "."))
        # h5py makes the groups before the last "/", then a dataset of what follows: it can't have that empty, nor "." but first.
        if not path or not parts[-1] or "." in parts[1:] or "\0" in key or (by_document and path != key):
            raise StoreError(f"sentence {sentence} would be dataset {key!r}, a name that HDF5 can't hold: {remedy}")
        if taken.setdefault(path, sentence) != sentence:
            raise clash(taken[path], sentence, f"both be dataset {key!r}")
    for path, sentence in taken.items():
        for parent in accumulate(path.split("/")[:-1], "{}/{}".format):
            if parent in taken:
                raise clash(taken[parent], sentence, f"be dataset {parent!r} and in a group of that name")
