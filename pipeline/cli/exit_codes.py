"""The exit codes of ``elmo-store``: the contract with scripts that call it."""

from enum import IntEnum

from elmo_store.errors import (
    ExportRefusedError,
    JobMismatchError,
    LeaseHeldError,
    LeaseLostError,
    MemberMismatchError,
    MissingPackageError,
    OverlapError,
    StoreError,
    StoreIncompleteError,
    WeightSetError,
)


class Exit(IntEnum):
    """What the process tells its caller."""

    COMPLETE = 0
    BAD_USAGE = 2  # options that make no sense (argparse's own code)
    BAD_LOCATION = 3  # an input, output or store that is not there or can't be used
    INCOMPLETE = 4  # work is left: the command that writes the output continues it
    REFUSED = 5  # another job stands on that output, or something that is not a store of ours
    DAMAGED = 6  # verify found faults


class CommandError(Exception):
    """An end of a command that its user can mend: a message without a traceback, and the exit code."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: CommandError | StoreError) -> Exit:
    """How a command ends that this error ended."""
    if isinstance(error, CommandError):
        return error.code
    if isinstance(
        error,
        JobMismatchError
        | MemberMismatchError
        | ExportRefusedError
        | LeaseHeldError
        | LeaseLostError,
    ):
        return Exit.REFUSED
    if isinstance(error, StoreIncompleteError):
        return Exit.INCOMPLETE
    if isinstance(error, OverlapError | WeightSetError | MissingPackageError):
        return Exit.BAD_USAGE
    return Exit.BAD_LOCATION
