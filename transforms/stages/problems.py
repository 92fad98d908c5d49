"""What leaves a job with work: input files that can't be read, too many refused records, shards that are missing.

Told as an exception, and as a text in the scratch area: on a cluster the launcher sees no worker's exception. Files are noted
one by one while others are read, and told all together.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NoReturn

from elmo_store.storage.root import Root
from transforms.inputs.records import InputError
from transforms.runtime.work import BAD, PROBLEM, REFUSED
from transforms.stages.plan import CorpusPlan

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
    """Leave word of the files of task ``name`` that can't be read."""
    root.put_json(f"{BAD}/{name}.json", [[one.url, one.reason] for one in (error, *error.also)])


def stop_for_bad_files(root: Root) -> None:
    """IncompleteJobError that names every file that was noted; nothing happens without any."""
    found = sorted({(str(url), str(reason)) for name in root.list(BAD) for url, reason in root.get_json(name)})
    if not found:
        return
    more = [f"… and {len(found) - FILES_SHOWN} more"] if len(found) > FILES_SHOWN else []
    stop(
        root,
        [
            f"{len(found)} input file{'s' if len(found) > 1 else ''} can't be read:",
            *(f"  {_one_line(url)}: {reason}" for url, reason in found[:FILES_SHOWN]),
            *more,
            "Mend or replace them and give the same command again: the other files are not read again. Or --on-bad-file reject: "
            "of a damaged file what comes before the damage is taken.",
        ],
    )


def stop_for_rejects(root: Root, plan: CorpusPlan, max_rate: float) -> None:
    """IncompleteJobError if more than ``max_rate`` of the records were refused, blank ones not counted."""
    n_records = plan.n_rejected + sum(part.counts.n_nonempty for part in plan.parts)
    if plan.n_rejected <= max_rate * n_records:
        return
    stop(
        root,
        [
            f"{plan.n_rejected:,} of {n_records:,} records were refused ({plan.n_rejected / n_records:.1%}), more than "
            f"--max-reject-rate {max_rate:g} allows; the first ones:",
            *(f"  {line}" for line in _first_reasons(root, plan)),
            "Look at the input, --input-format, --encoding and the names of fields. If they are right, raise --max-reject-rate "
            "(1 allows all) and give the command again: nothing is read twice.",
        ],
        REFUSED,
    )


def _first_reasons(root: Root, plan: CorpusPlan) -> Sequence[str]:
    paths = [part.counts.rejects for part in plan.parts if part.counts.rejects]
    rejects = [json.loads(line) for line in root.get(paths[0]).decode().split("\n")[:REASONS_SHOWN] if line] if paths else []
    return [f"{_one_line(reject['source'])}: {_one_line(reject['reason'])}: {reject['raw'][:80]!r}" for reject in rejects]


def _one_line(text: str) -> str:
    """A name or a reason among a message's lines: as it is, quoted where it would break one."""
    return text if text.isprintable() else repr(text)
