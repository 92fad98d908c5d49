"""Every error that a store raises by itself.

Messages name the value, the place and the remedy. An argument stands in backticks as Python has it,
such as `overwrite=True`: the command line shows it as its own option (`pipeline.cli.wording`). A
remedy for Python alone is a note of the exception, which tracebacks show and commands do not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

NUMBERS_SHOWN = 5  # of sentences


class StoreError(Exception):
    """Base of all errors that speak about a store. Those with attributes keep their arguments, by which they are pickled."""

    message: str | None = None  # of those that put it together from their arguments

    def __str__(self) -> str:  # KeyError would show the repr, OSError nothing
        return self.message or (str(self.args[0]) if self.args else "")


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no store at that location."""


class BucketNotFoundError(StoreError, OSError):
    """There is no such bucket or container."""


class DiskFullError(StoreError, OSError):
    """No space is left where something was to be written. What was written before stays good."""


class MissingPackageError(StoreError, ImportError):
    """A package that is needed here is not installed; the message names what installs it."""


class StoreIncompleteError(StoreError):
    """The store's job has not finished, so that rows or numbers may be missing."""


class StoreVersionError(StoreError):
    """The store has a format version that this package can't read."""

    def __init__(self, where: str, found: int, known: int) -> None:
        remedy = "upgrade elmo-store" if found > known else "write the store again"
        self.message = f"{where}: the store has format version {found}, this elmo-store reads format version {known}: {remedy}"
        self.where, self.found, self.known = where, found, known


class StoreFeatureError(StoreError):
    """The store needs something that this package does not know, such as a codec, a form or a number type of a later one."""

    def __init__(self, where: str, feature: str) -> None:
        self.message = (
            f"{where}: the store needs {feature}, which this elmo-store does not know: upgrade it"
        )
        self.where, self.feature = where, feature


class ManifestError(StoreError, ValueError):
    """The manifest is not JSON, or a field of it is missing, of a wrong type, or contradicts another one."""


class StoreReplacedError(StoreError):
    """Another store stands where this one was opened, or none: open it again. What was read before is of the first one."""


class ShardMissingError(StoreError):
    """An object that the manifest promises is not there."""


class ShardCorruptError(StoreError):
    """An object is there, but it is cut, unreadable, or not what its marker says."""


class SentenceNotFoundError(StoreError, KeyError, IndexError):
    """No sentence has that number, id or text."""


class AmbiguousIdError(StoreError, LookupError):
    """Several sentences have that id."""

    def __init__(self, where: str, sentence_id: str, numbers: Sequence[int]) -> None:
        shown = ", ".join(map(str, numbers[:NUMBERS_SHOWN])) + (
            ", …" if len(numbers) > NUMBERS_SHOWN else ""
        )
        self.message = f"{len(numbers)} sentences of {where} have the id {sentence_id!r}, {shown}: read one of them by number"
        self.where, self.sentence_id, self.numbers = where, sentence_id, numbers


class StateNotFoundError(StoreError, KeyError):
    """The store has no state of that name."""


class WeightSetError(StoreError, ValueError):
    """Mixing weights that can't be read, can't be told apart, or don't fit the store's layers."""


TAKE_OVER = (
    "`elmo-store watch` follows it. If that run is dead, or you want to replace it, add `take_over=True`; it stops "
    "before its next write."
)


class LeaseHeldError(StoreError):
    """Another run writes to this output, or may still do so. ``remedy``: `TAKE_OVER` of a command that has this option."""

    def __init__(
        self,
        where: str,
        holder: str,
        remedy: str = "Wait until it ends, then run the same command again.",
    ) -> None:
        self.message = f"{where} belongs to {holder}\n{remedy}"
        self.where, self.holder = where, holder


class LeaseLostError(StoreError):
    """This run does not own its output any more: it ended, or another one took over. Nothing more may be written."""

    def __init__(self, where: str, run: str, holder: str | None) -> None:
        now = (
            f"it belongs to {holder} now"
            if holder
            else "its lease is gone: the run ended, or the output was removed"
        )
        self.message = f"run {run[:8]} may not write to {where} any more: {now}"
        self.where, self.run, self.holder = where, run, holder


class OverlapError(StoreError, ValueError):
    """What would be written overlaps what is read, so that the one would destroy the other. Nothing was touched."""

    def __init__(self, written: str, relation: str, read: str) -> None:
        self.message = f"the {written} {relation} the {read}: give another place to write to; nothing was touched"
        self.written, self.relation, self.read = written, relation, read


class ExportRefusedError(StoreError):
    """The place of an export holds something that this export may not replace."""


class MemberMismatchError(StoreError):
    """A store can't be a member of a collection; shows both sides, field by field.

    Attributes:
        fields: name → (what the collection has, what the store has).
    """

    def __init__(self, collection: str, store: str, fields: Mapping[str, tuple[Any, Any]]) -> None:
        self.message = _difference(
            f"{store} can't join the collection {collection}",
            _sides(fields, "here"),
            "Embed it with the collection's settings, or collect it under another name.",
        )
        self.collection, self.store, self.fields = collection, store, dict(fields)


class JobMismatchError(StoreError):
    """The output belongs to another job.

    Attributes:
        fields: name → (what the job on the output has, what is requested now).
        input_changes: what has changed in the input, a sentence for each file.
    """

    def __init__(
        self,
        where: str,
        fields: Mapping[str, tuple[Any, Any]],
        input_changes: Sequence[str] = (),
    ) -> None:
        # The hashes of the input tell nobody what has changed in it.
        sides = {name: pair for name, pair in sorted(fields.items()) if name != "input"}
        lines = [*_sides(sides, "asked for"), *(f"input: {change}" for change in input_changes)]
        self.message = _difference(
            f"{where} holds another job's output",
            lines,
            "Pass another `output`, the same settings as before to continue it, or `overwrite=True` to remove it.",
        )
        self.where, self.fields, self.input_changes = where, dict(fields), tuple(input_changes)


def _sides(fields: Mapping[str, tuple[Any, Any]], second: str) -> list[str]:
    """Return a line for each field that shows both sides; ``second``: what the other side is."""
    shown = {
        name: ["not set" if value is None else repr(value) for value in pair]
        for name, pair in fields.items()
    }
    return [f"{name}: {there} there, {other} {second}" for name, (there, other) in shown.items()]


def _difference(what: str, lines: Sequence[str], remedy: str) -> str:
    """Return a message with a line for each difference."""
    count = f"{len(lines)} point{'s' if len(lines) != 1 else ''}"
    return "\n".join([f"{what}; it differs in {count}:", *(f"  {line}" for line in lines), remedy])
