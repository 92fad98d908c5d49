"""The report as a file: beside its store or elsewhere, by itself or at the end of the job that was asked for it."""

import argparse
import importlib.util
import os
from typing import TYPE_CHECKING

from pipeline.cli.exit_codes import CommandError, Exit

if TYPE_CHECKING:  # at run time when a report is written: --help and bad options take no time
    from elmo_store.storage.root import Root

REPORT = "report.html"  # in the store's folder, where no other place is named


def check_possible(args: argparse.Namespace) -> None:
    """CommandError (bad usage) if a job was asked for its report and can't draw it, or will not wait for its own end."""
    if args.report and args.no_wait:
        raise CommandError(Exit.BAD_USAGE, "--report is written at the job's end: leave out --no-wait, or give `report` later")
    if args.report and importlib.util.find_spec("matplotlib") is None:
        raise CommandError(Exit.BAD_USAGE, "--report needs Matplotlib: pip install 'elmo-store[plot]'")


def after_job(code: Exit, args: argparse.Namespace) -> Exit:
    """The exit code of a job, after its report, if that was asked for and the job is complete."""
    if args.report and code == Exit.COMPLETE:
        from elmo_store.storage.root import Root

        print(f"report: {write_report(Root(args.output, args.storage_options))}")
    return code


def write_report(root: "Root", output: str | None = None) -> str:
    """Write the report of the complete store at ``root`` to a local file, or into its folder, whole; returns where it is.

    A pipe or a device is written to as it comes. ImportError without Matplotlib, naming the extra.
    """
    from elmo_store.figures.gather import gather
    from elmo_store.store import open as open_store
    from pipeline.report.page import page

    text = page(gather(open_store(str(root), storage_options=root.storage_options))).encode("utf-8", "backslashreplace")
    if output is not None and os.path.exists(output) and not os.path.isfile(output):
        with open(output, "wb") as file:
            file.write(text)
        return output
    folder, name = (root, REPORT) if output is None else _in_folder(output)
    folder.sweep(name=name)
    folder.put(name, text)
    return output or root.url(REPORT)


def _in_folder(path: str) -> "tuple[Root, str]":
    """The folder of a local file and its name there; a link is followed."""
    from elmo_store.storage.root import Root

    folder, name = os.path.split(os.path.realpath(path))
    return Root(folder), name
