"""Exports that die before a file takes its name or is removed, as processes do; a program, which prints one JSON object.

    python -m tests.exports.killed_export STORE FOLDER FORMAT FILE_BYTES

For every such operation below FOLDER, as Python's audit events tell of them: an export whose process ends there, then the same
export once more, which is refused if the first had finished. Prints how many operations an export has, and what was not as the
undisturbed one: [operation, codes, names].
"""

import hashlib
import importlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import elmo_store
from elmo_store.exports import FORMATS
from elmo_store.exports.job import export
from elmo_store.exports.place import ExportRefusedError
from elmo_store.storage import lease
from elmo_store.storage.root import Root

BOUNDARIES = frozenset({"os.rename", "os.link", "os.remove", "os.rmdir"})
KILLED, REFUSED = 9, 5


def contents(folder: Path) -> dict[str, str]:
    """Name → SHA-256 of every file below ``folder``, "" of a folder."""
    return {
        str(path.relative_to(folder)): ""
        if path.is_dir()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
    }


def forked(store: str, output: Path, settings: dict[str, Any], last: int | None) -> int:
    """Export in a process of its own, which ends before operation ``last``; its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    done = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        if event in BOUNDARIES and str(arguments[0]).startswith(str(output.parent)):
            if done == last:
                os._exit(KILLED)
            done += 1

    sys.addaudithook(hook)
    try:
        export(elmo_store.open(store), output, **settings)
        (output.parent.parent / "operations").write_text(str(done))
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(REFUSED if isinstance(error, ExportRefusedError) else 1)
    os._exit(0)


def main() -> None:
    """See the module."""
    store, folder = sys.argv[1], Path(sys.argv[2])
    settings = {"format": sys.argv[3], "file_bytes": int(sys.argv[4])}
    whole, output = folder / "whole" / "out", folder / "killed" / "out"
    # Nobody competes, and there is no loss of power: what makes the test wait for the disk and the clock stays out.
    lease.LOCAL_LOOK_SECONDS = 0.0
    Root.flush = lambda self: None  # type: ignore[method-assign]
    for module in {
        form.writer.partition(".")[0] for form in FORMATS.values()
    }:  # once, not in every process
        importlib.import_module(f"elmo_store.exports.{module}")
    for one in (whole, output):
        one.parent.mkdir(parents=True)
    assert forked(store, whole, settings, None) == 0
    n, wanted, wrong = int((folder / "operations").read_text()), contents(whole.parent), []
    names = {name: digest for name, digest in wanted.items() if digest}
    for last in range(n):
        first = forked(store, output, settings, last)
        left = contents(output.parent)
        finished = names.items() <= left.items()
        half = output.is_dir() and not finished  # a folder under its own name
        codes = first, forked(store, output, settings, None)
        found = contents(output.parent)
        if codes != (KILLED, REFUSED if finished else 0) or found != wanted or half:
            wrong.append([last, codes, half, sorted({*found.items()} ^ {*wanted.items()})])
        shutil.rmtree(output.parent)
        output.parent.mkdir()
    print(json.dumps({"operations": n, "wrong": wrong}))


if __name__ == "__main__":
    main()
