"""What leaves a job incomplete: input files that can't be read, too many refused records, shards that are missing.

A problem is raised, and left as text in the scratch area: on a cluster the launcher sees no worker's exception. Files are noted
one by one while others are read, and reported together.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NoReturn

from elmo_store.storage.root import Root
from transforms.inputs.records import InputError, ScratchPart
from transforms.runtime.work import BAD, PROBLEM, REFUSED

FILES_SHOWN = 20
REASONS_SHOWN = 3


class IncompleteJobError(RuntimeError):
    """Work is left; the same command again continues with it."""


def stop(root: Root, lines: Iterable[str], kind: str = "") -> NoReturn:
    """IncompleteJobError of these lines, which are also left for the launcher, with the ``kind`` of problem that it must tell."""
    text = "\n".join(lines)
    root.put_json(PROBLEM, {"message": text, "kind": kind})
    raise IncompleteJobError(text)


def note_bad_files(root: Root, name: str, error: InputError) -> None:
    """Record the files of task ``name`` that can't be read."""
    root.put_json(f"{BAD}/{name}.json", [[bad.url, bad.reason] for bad in (error, *error.also)])


def stop_for_bad_files(root: Root) -> None:
    """IncompleteJobError that names every file that was noted; nothing happens without any."""
    bad_files = sorted({(str(url), str(reason)) for name in root.list(BAD) for url, reason in root.get_json(name)})
    if not bad_files:
        return
    n = len(bad_files)
    lines = [f"{n} input file{'s' if n > 1 else ''} can't be read:"]
    lines += (f"  {_one_line(url)}: {reason}" for url, reason in bad_files[:FILES_SHOWN])
    if n > FILES_SHOWN:
        lines.append(f"… and {n - FILES_SHOWN} more")
    lines.append(
        "Mend or replace them and give the same command again: the other files are not read again. Or --on-bad-file reject: "
        "of a damaged file what comes before the damage is taken."
    )
    stop(root, lines)


def stop_for_rejects(root: Root, parts: Sequence[ScratchPart], max_rate: float) -> None:
    """IncompleteJobError if more than ``max_rate`` of the records of ``parts`` were refused, blank ones not counted."""
    n_rejected = sum(part.n_rejected for part in parts)
    n_records = n_rejected + sum(part.n_nonempty for part in parts)
    if n_rejected <= max_rate * n_records:
        return
    first = next(part.rejects for part in parts if part.rejects)
    rejects = [json.loads(line) for line in root.get(first).decode().split("\n")[:REASONS_SHOWN] if line]
    lines = [
        f"{n_rejected:,} of {n_records:,} records were refused ({n_rejected / n_records:.1%}), more than "
        f"--max-reject-rate {max_rate:g} allows; the first ones:"
    ]
    lines += (f"  {_one_line(one['source'])}: {_one_line(one['reason'])}: {one['raw'][:80]!r}" for one in rejects)
    lines.append(
        "Look at the input, --input-format, --encoding and the names of fields. If they are right, raise --max-reject-rate "
        "(1 allows all) and give the command again: nothing is read twice."
    )
    stop(root, lines, REFUSED)


def _one_line(text: str) -> str:
    """A name or a reason among a message's lines: as it is, quoted where it would break one."""
    return text if text.isprintable() else repr(text)
