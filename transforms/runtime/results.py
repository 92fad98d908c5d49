"""What tasks come to, the Beam counters they add to, and what leaves a job incomplete.

Results are small and picklable: numbers and a few errors, however large the corpus. A problem (input files that can't be read,
too many refused records, missing shards) is raised, and left as text in the scratch area: on a cluster the launcher sees no
worker's exception.
"""

import json
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import apache_beam as beam

from elmo_store.errors import StoreError
from elmo_store.storage.root import Root
from transforms.inputs.records import InputError, ScratchPart
from transforms.runtime.owner import run_of
from transforms.runtime.work import BAD, PROBLEM, REFUSED

NAMESPACE = (
    "elmo_store"  # of our Beam counters, which Flink, Spark and Dataflow show on their own pages
)
ERRORS_SHOWN = 5
SHARDS_SHOWN = 10
FILES_SHOWN = 20
REASONS_SHOWN = 3


class IncompleteJobError(RuntimeError):
    """Work is left; the same command again continues with it."""


@dataclass(frozen=True)
class Outcome:
    """What tasks of a run came to, and what a look at the store found: digests of runs of shards, sums over shards' markers."""

    errors: tuple[str, ...] = ()  # a few of them
    counts: Counter[str] = field(
        default_factory=Counter
    )  # for Beam's counters of these names, see `counted`
    digests: tuple[tuple[int, str], ...] = ()  # first shard of a run, digest of its markers
    n_missing: int = 0
    missing: tuple[int, ...] = ()  # a few of these shards
    faulty: tuple[
        str, ...
    ] = ()  # part groups and runs of id tables whose objects are not what their markers say: a few
    n_bytes: int = 0
    everything: Counter[str] = field(default_factory=Counter)  # sums of the markers' numbers
    this_run: Counter[str] = field(default_factory=Counter)  # of those that this run wrote
    devices: frozenset[str] = frozenset()  # what computed the shards, as far as their markers say

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            tuple(sorted({*self.errors, *other.errors}))[:ERRORS_SHOWN],
            self.counts + other.counts,
            self.digests + other.digests,
            self.n_missing + other.n_missing,
            tuple(sorted(self.missing + other.missing)[:SHARDS_SHOWN]),
            tuple(sorted(self.faulty + other.faulty)[:SHARDS_SHOWN]),
            self.n_bytes + other.n_bytes,
            self.everything + other.everything,
            self.this_run + other.this_run,
            self.devices | other.devices,
        )

    @classmethod
    def failed(cls, shard: int, doing: str, error: Exception) -> "Outcome":
        """That of a shard which is not in the store."""
        text = f"shard {shard}, {doing}: {type(error).__name__}: {error}"
        last = traceback.extract_tb(error.__traceback__)[-1:]
        if last and not isinstance(error, OSError | StoreError):  # those say all that a user needs
            text += f" ({Path(last[0].filename).name}:{last[0].lineno})"
        return cls((text,), Counter(shards_failed=1))

    @classmethod
    def written(cls, n_tokens: int) -> "Outcome":
        """That of a shard which is in the store."""
        return cls(counts=Counter(shards_written=1, tokens=n_tokens))

    @classmethod
    def retried(cls, root: Root) -> "Outcome":
        """The calls of the storage of ``root`` that this process retried since it was last asked."""
        run = run_of(root)
        return cls(counts=Counter(storage_retries=run.take_retries() if run else 0))


def total(outcomes: Iterable[Outcome]) -> Outcome:
    return sum(outcomes, Outcome())


def counted(outcome: Outcome) -> Outcome:
    """``outcome``, its counts added to the Beam counters; by the thread of a DoFn, the only one that Beam listens to."""
    for name, n in outcome.counts.items():
        beam.metrics.Metrics.counter(NAMESPACE, name).inc(n)
    return outcome


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
    bad_files = sorted(
        {(str(url), str(reason)) for name in root.list(BAD) for url, reason in root.get_json(name)}
    )
    if not bad_files:
        return
    n = len(bad_files)
    lines = [f"{n} input file{'s' if n > 1 else ''} can't be read:"]
    lines += (f"  {_one_line(url)}: {reason}" for url, reason in bad_files[:FILES_SHOWN])
    if n > FILES_SHOWN:
        lines.append(f"… and {n - FILES_SHOWN} more")
    lines.append(
        "Repair or replace them, then rerun the same command: the other files are not read again. Or add --on-bad-file reject, "
        "which keeps everything before the damage."
    )
    stop(root, lines)


def stop_for_rejects(root: Root, parts: Sequence[ScratchPart], max_rate: float) -> None:
    """IncompleteJobError if more than ``max_rate`` of the records of ``parts`` were refused, blank ones not counted."""
    n_rejected = sum(part.n_rejected for part in parts)
    n_records = n_rejected + sum(part.n_nonempty for part in parts)
    if n_rejected <= max_rate * n_records:
        return
    first = next(part.rejects for part in parts if part.rejects)
    rejects = [
        json.loads(line) for line in root.get(first).decode().split("\n")[:REASONS_SHOWN] if line
    ]
    lines = [
        f"{n_rejected:,} of {n_records:,} records were refused ({n_rejected / n_records:.1%}), more than "
        f"--max-reject-rate {max_rate:g} allows; the first ones:"
    ]
    lines += (
        f"  {_one_line(reject['source'])}: {_one_line(reject['reason'])}: {reject['raw'][:80]!r}"
        for reject in rejects
    )
    lines.append(
        "Look at the input, --input-format, --encoding and the names of fields. If they are right, raise --max-reject-rate "
        "(1 allows all) and give the command again: nothing is read twice."
    )
    stop(root, lines, REFUSED)


def stop_for_no_sentence(root: Root, n_sentences: int, n_skipped: int) -> None:
    """IncompleteJobError if no input file has a sentence; those that a collection has already count too."""
    if not n_sentences + n_skipped:
        stop(
            root,
            ["no input file has a sentence, so there is nothing to embed: check the input"],
            REFUSED,
        )


def _one_line(text: str) -> str:
    """A name or a reason among a message's lines: as it is, quoted where it would break one."""
    return text if text.isprintable() else repr(text)
