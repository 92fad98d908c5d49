"""Records with named fields → sentences: what JSON lines, JSON arrays, CSV, CoNLL and Parquet have in common.

A string is a document: it is split into sentences with the ids ``DOC:0``, ``DOC:1``, … (DOC is the record's own id, or
``FILE:POSITION``); with ``document="sentence"`` it is one sentence whatever it holds, with the id DOC. A list is one
tokenised sentence, taken as it is, with the id DOC; a list of lists is a document of such sentences, ``DOC:0``, ``DOC:1``, ….
A document without a token is a sentence of zero tokens, so that every record has its place, and a sentence of a document that
can't be used is refused by itself: the others keep their numbers.

Without a text field that was asked for, a record with ``doc_key`` and ``sentences`` is such a document, as in the files of
e2e-coref and DyGIE.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from elmo_store.format.texts import text_fault, token_fault
from transforms.inputs.records import (
    IN_RECORD,
    InDocument,
    InputError,
    ReadSentence,
    ReadSettings,
    Record,
    Reject,
)
from transforms.readers.kept import TWICE, KeptFields
from transforms.readers.lines import RAW_BYTES, Refused, cut_raw
from transforms.text.sentences import bounded, document_sentences
from transforms.text.tokenizers import Tokenizer

DEFAULT_TEXT_FIELD = "text"
DOC_KEY, SENTENCES = "doc_key", "sentences"  # fields of a document in the files of coreference
NAMES_SHOWN, NAME_SHOWN = (
    30,
    100,
)  # of a file's fields, and characters of each: in another format a name may be a whole line
_KINDS = {
    type(None): "null", bool: "a boolean", int: "a number", float: "a number",
    str: "a string", list: "a list", dict: "an object", bytes: "binary",
}  # fmt: skip


class Fields(NamedTuple):
    """Names of the fields that are read; ``own_id`` is "" without one."""

    text: str
    own_id: str
    is_document: bool  # whether the text must be a list of tokenised sentences


class RawRecord(NamedTuple):
    """A record before its text is looked at."""

    position: int
    values: dict[str, Any]
    raw: str = ""  # how a reject shows it; "" = by its text field
    id: str = ""  # unless a field has it
    document: InDocument = IN_RECORD
    fields: Fields | None = None  # None = by the settings, and what it has
    spelt: bool = False  # all values are text


def asked_fields(settings: ReadSettings) -> Fields:
    """The fields that were asked for, whatever a record has."""
    return Fields(settings.text_field or DEFAULT_TEXT_FIELD, settings.id_field, is_document=False)


def fields_of(values: Mapping[str, Any], settings: ReadSettings) -> Fields:
    """The fields to read of a record: those that were asked for, or those of a document of coreference."""
    if settings.text_field or DOC_KEY not in values or SENTENCES not in values:
        return asked_fields(settings)
    if DEFAULT_TEXT_FIELD in values and not isinstance(
        values[SENTENCES], list
    ):  # how many there are, perhaps
        return asked_fields(settings)
    return Fields(SENTENCES, settings.id_field or DOC_KEY, is_document=True)


def check_names(url: str, names: Sequence[str], fields: Fields, kept: Sequence[str] = ()) -> None:
    """Raise InputError unless ``names``, the fields of a file, has the text field and the id field.

    These and the ``kept`` fields must not be there twice: nobody could know which one is meant.
    """
    wanted = [("--text-field", fields.text)]
    wanted += [("--id-field", fields.own_id)] if fields.own_id else []
    for option, name in wanted:
        if name not in names:
            shown = ", ".join(repr(known[:NAME_SHOWN]) for known in names[:NAMES_SHOWN])
            shown += ", …" if len(names) > NAMES_SHOWN else ""
            raise InputError(url, f"it has no field {name!r}, but {shown}: name one with {option}")
    for name in (fields.text, fields.own_id, *kept):
        if names.count(name) > 1:
            raise InputError(
                url, f"{names.count(name)} of its fields are called {name!r}: rename all but one"
            )


def field_records(
    row: RawRecord | Reject, settings: ReadSettings, tokenizer: Tokenizer
) -> Iterator[Record]:
    """The sentences of a record, or one reject."""
    if isinstance(row, Reject):
        yield row
        return
    position, values, raw, own_id, document, fields, _ = row
    field, id_field, is_document = fields or fields_of(values, settings)
    what = f"field {field!r}"
    try:
        if id_field:
            own_id = _id(values, id_field)
        value = _field(values, field, what)
        if is_document and not isinstance(value, list):
            raise Refused(f"{what} is {kind_of(value)}, not a list of lists of strings")
        if isinstance(value, str):
            _check(value, what)
        kept = KeptFields(values, settings)
        if isinstance(value, str):
            yield from _document(value, own_id, position, settings, tokenizer, kept)
        elif is_document or holds_lists(value):
            yield from _given_sentences(value, what, own_id, position, raw or _shown(value), kept)
        else:
            tokens = _tokens(value, what, "a string or a list of strings")
            yield ReadSentence(tokens, own_id, position, document=document, fields=kept.of(tokens))
    except Refused as error:
        # A document's number keeps the id from being one of another document's sentences.
        within = 0 if is_document else -1
        yield Reject(
            position,
            str(error),
            raw or _shown(values.get(field)),
            own_id,
            within=within,
            document=document,
        )


def sentences_of(value: Any, *, is_document: bool) -> list[list[str]] | None:
    """The tokens of each sentence of a text, where it brings them; None of a string."""
    lists = value if is_document or holds_lists(value) else [value]
    return (
        lists
        if isinstance(lists, list) and all(isinstance(tokens, list) for tokens in lists)
        else None
    )


def holds_lists(value: Any) -> bool:
    """Whether a text is a document of tokenised sentences."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _shown(value: Any) -> str:
    return cut_raw(
        value
        if isinstance(value, bytes)
        else str(value)[:RAW_BYTES].encode("utf-8", "backslashreplace")
    )


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    return _KINDS.get(type(value), type(value).__name__)


def _document(
    text: str,
    own_id: str,
    position: int,
    settings: ReadSettings,
    tokenizer: Tokenizer,
    kept: KeptFields,
) -> Iterator[ReadSentence]:
    """The sentences of a string."""
    if not settings.split_sentences:
        tokens = tuple(tokenizer.record(text))
        yield ReadSentence(tokens, own_id, position, fields=kept.of(tokens))
        return
    within = 0
    for sentence in document_sentences(text, settings.line_ends):
        for tokens in bounded(tokenizer.sentence(sentence)):
            yield ReadSentence(tokens, own_id, position, within=within, fields=kept.of(tokens))
            within += 1
    if not within:
        yield ReadSentence((), own_id, position, within=0, fields=kept.of(()))


def _given_sentences(
    sentences: list[Any], what: str, own_id: str, position: int, raw: str, kept: KeptFields
) -> Iterator[Record]:
    """The sentences of a document that is tokenised already; one without any is a sentence of zero tokens."""
    for within, listed in enumerate(sentences or [[]]):
        try:
            tokens = _tokens(listed, f"sentence {within} of {what}", "a list of strings")
            yield ReadSentence(
                tokens, own_id, position, within=within, fields=kept.of(tokens, within)
            )
        except Refused as error:
            yield Reject(position, str(error), raw, own_id, within=within)


def _field(values: dict[str, Any], name: str, what: str) -> Any:
    """A value. Refused if it is missing or there twice, or bytes, which stand for a string of Parquet that is not UTF-8."""
    if name not in values:
        raise Refused(f"{what} is missing")
    value = values[name]
    if value is TWICE:
        raise Refused(f"{what} is there twice")
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise Refused(
            f"invalid UTF-8 at byte {error.start} of {what} (0x{value[error.start]:02x})"
        ) from error


def _tokens(value: Any, what: str, wanted: str) -> tuple[str, ...]:
    """A list of strings as tokens; ``wanted``: what the value, which is ``what``, should be."""
    if not isinstance(value, list):
        raise Refused(f"{what} is {kind_of(value)}, not {wanted}")
    for i, token in enumerate(value):
        if not isinstance(token, str):
            raise Refused(f"token {i} of {what} is {kind_of(token)}, not a string")
        if fault := token_fault(token):
            raise Refused(f"token {i} of {what} {fault}")
    return tuple(value)


def _id(values: dict[str, Any], name: str) -> str:
    """An id as a string: strings as they are, integers in decimal."""
    what = f"id field {name!r}"
    value = _field(values, name, what)
    if isinstance(value, str):
        if not value:
            raise Refused(f"{what} is empty")
        _check(value, what)
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise Refused(f"{what} is {kind_of(value)}, not a string or an integer")


def _check(text: str, what: str) -> None:
    if fault := text_fault(text):
        raise Refused(f"{what} {fault}")
