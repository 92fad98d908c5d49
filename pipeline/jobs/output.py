"""The output of every job: what stands there, whether it is this very job, who holds it, and what may be removed."""

import platform
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from elmo_store.errors import (
    TAKE_OVER,
    JobMismatchError,
    LeaseHeldError,
    ManifestError,
    StoreError,
    StoreFeatureError,
    StoreNotFoundError,
    StoreVersionError,
)
from elmo_store.format.layout import ENDED, FOLDERS, MANIFEST, SHARDS, WORK, is_ours
from elmo_store.format.manifest import Manifest, read_inputs, read_manifest, write_manifest
from elmo_store.format.markers import marked
from elmo_store.reading.opening import REPLACE_SECONDS
from elmo_store.storage import lease
from elmo_store.storage.failures import retry
from elmo_store.storage.lease import (
    LEASE,
    LEASES,
    LOCAL_PATIENCE_SECONDS,
    Heartbeats,
    Lease,
    LeaseHolder,
)
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.signals import say
from pipeline.cli.terminal import in_line, quantity
from pipeline.progress.snapshot import noted
from pipeline.runners.flink import PAGES, cancel, running
from transforms.runtime.owner import owned, run_name
from transforms.runtime.work import PLAN, PROBLEM, REFUSED, START

# How long a run may be silent before another one may begin: a command that waits says something every 10 s, workers of an engine
# when they write; an engine may take its time to start any.
ENGINE_PATIENCE_SECONDS, LEFT_PATIENCE_SECONDS = 120.0, 900.0
PACKAGES = (
    "elmo-store",
    "apache-beam",
    "torch",
    "numpy",
    "pyarrow",
    "zarr",
    "nltk",
    "safetensors",
)  # that bytes depend on
FILES_SHOWN = 5  # of those that have changed
MAX_OUTAGE_SECONDS = 300.0  # of the storage, then an engine's job is cancelled
T = TypeVar("T")


def standing(root: Root, *, overwrite: bool) -> Manifest | None:
    """The manifest that stands at the output; None on an empty one, and for a store that is to be overwritten (`clear`).

    CommandError if something else stands there, or nothing can be said.
    """
    try:
        existing = read_manifest(root)
    except StoreNotFoundError:
        if any(not rel.startswith(f"{LEASES}/") for rel in root.list()):
            raise CommandError(
                Exit.REFUSED,
                f"{root} holds files but is not a store (no {MANIFEST} in it): give another --output; "
                "--overwrite removes stores only",
            ) from None
        return None
    except (ManifestError, StoreVersionError, StoreFeatureError) as error:
        raise CommandError(Exit.REFUSED, f"{error}\nGive another --output.") from error
    return None if overwrite else existing


def clear(root: Root) -> None:
    """Remove the store that stands at the output, object by object, with its lease in hand; what is not ours stays.

    The manifest stays too, to be written over, incomplete: whenever this ends, what is left is known as a store.
    CommandError if something can't be removed.
    """
    try:
        try:
            write_manifest(root, replace(read_manifest(root), complete=False))
        except StoreNotFoundError:
            return
        if not root.is_local:
            own = lease.read_lease(root)
            counted = (
                own.since + lease.look_seconds(root) if own else 0.0
            )  # till then what workers of a run before saw may count
            # Readers may have looked just before, too: see elmo_store.reading.opening.
            time.sleep(max(REPLACE_SECONDS, counted - time.time()))
        root.remove(*[rel for rel in root.list() if is_ours(rel) and rel != MANIFEST])
        for folder in FOLDERS:  # one that was killed here before left empty ones
            root.remove_empty(folder)
    except Exception as error:  # filesystems raise what they like
        raise CommandError(
            Exit.BAD_LOCATION,
            f"the store at {root} can't be removed: {type(error).__name__}: {error}",
        ) from error


def problem_of(root: Root) -> dict[str, Any]:
    """What a stage, or a command that was stopped, left about the end of the job; empty if none did."""
    return noted(root, PROBLEM) or {}


def is_same_job(
    root: Root, existing: Manifest, now: Manifest, files: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the job on the output is the one that is asked for; False if it is another one that may be replaced.

    JobMismatchError for another one: with both sides, field by field, and what has changed in the input.

    As long as no shard stands, the input may be another, and damaged files may be rejected that ended the job before: what
    was read of unchanged files is used, the rest is read anew. ``files``: of the input as it is now.
    """
    different = differences(existing, now)
    mended = all(
        name == "input" or (name, change) == ("on_bad_file", ("stop", "reject"))
        for name, change in different.items()
    )
    if mended and different and not existing.complete and not marked(root, SHARDS):
        return True
    if (
        different and not existing.complete and problem_of(root).get("kind") == REFUSED
    ):  # of its input
        return False
    changes: list[str] = []
    if "input" in different:
        recorded: list[dict[str, Any]] = []
        with suppress(StoreError):
            recorded = read_inputs(root)
        changes = input_changes(recorded, files)
    if "model" in different:
        different["model name"] = (existing.model.name, now.model.name)
    if different:
        raise JobMismatchError(str(root), different, changes)
    return True


def input_changes(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return what has changed in a job's input, one sentence for each file, at most `FILES_SHOWN` of them.

    Args:
        before: the files of the job on the output, as `read_inputs` returns them.
        now: the files that are requested, as `describe_files` returns them.
    """
    files_before = {str(file["url"]): file for file in before}
    files_now = {str(file["url"]): file for file in now}
    changes = []
    for url in sorted({*files_before, *files_now}):
        change = _file_change(files_before.get(url), files_now.get(url))
        if change:
            changes.append(f"{in_line(url)} {change}")
    if not changes:
        return ["the same files, in another order or cut into other pieces"]
    if len(changes) > FILES_SHOWN:
        n_more = len(changes) - FILES_SHOWN
        return [*changes[:FILES_SHOWN], f"{quantity(n_more, 'more file')} changed"]
    return changes


def _file_change(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    """Return how a file differs from what it was, "" if it does not."""
    if before is None:
        return "is new"
    if now is None:
        return "is missing now"
    if before["bytes"] != now["bytes"]:
        return f"has changed: {before['bytes']:,} bytes before, {now['bytes']:,} bytes now"
    if before["version"] != now["version"]:
        return f"has changed: {_dated(before['version'])} before, {_dated(now['version'])} now"
    if before["format"] != now["format"]:
        return f"was read as {before['format']} before, and as {now['format']} now"
    return ""


def _dated(version: str) -> str:
    """Return a file's version with its time, where it is one, as a date."""
    name, _, value = version.partition("=")
    with suppress(ValueError, OverflowError, OSError):
        if name == "mtime":
            return f"written {datetime.fromtimestamp(float(value)).isoformat(' ', 'milliseconds')}"
    return version


def differences(existing: Manifest, now: Manifest) -> dict[str, tuple[Any, Any]]:
    """Field → both sides, of the jobs of two manifests; an option that one side does not know is off there.

    But for the card, which a complete store names and ``now`` can't know: workers see to it that a job's shards come from one.
    """
    different = _different(existing.job, now.job)
    different.pop("gpu", None)
    return different


def _different(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (left.get(name), right.get(name)) for name in sorted({*left, *right})}
    return {
        name: pair
        for name, pair in pairs.items()
        if pair[0] != pair[1] and pair not in ((None, False), (False, None))
    }


@dataclass(frozen=True)
class LeaseTerms:
    """How a command holds its output."""

    local: bool  # workers are processes of this machine
    alone: bool  # nothing of the job goes on without this command
    waits: bool  # this process stays until the job ends
    take_over: bool  # push another run aside
    flink: str | None = (
        None  # address of the Flink that the job goes to; what an output says of a Flink is believed of it alone
    )

    def is_ours(self, heard: Heartbeats) -> bool:
        """Whether the job that an output's heartbeats name is on the Flink that this one goes to."""
        return bool(heard.job) and heard.console.partition(PAGES)[0] == self.flink


def put_start(root: Root, *, n_pieces: int, waits: bool) -> None:
    """Leave word that a run begins, of input in so many pieces; what an earlier one left of its end goes."""
    root.remove_tree(ENDED)
    for name in (PLAN, PROBLEM):
        root.remove(name)
    root.put_json(
        START, {"run": run_name(root), "started": time.time(), "n_pieces": n_pieces, "waits": waits}
    )


def take_lease(root: Root, terms: LeaseTerms) -> LeaseHolder:
    """The lease for a new run. LeaseHeldError if another one has it."""
    patience = (
        LOCAL_PATIENCE_SECONDS
        if terms.alone
        else ENGINE_PATIENCE_SECONDS
        if terms.waits
        else LEFT_PATIENCE_SECONDS
    )
    try:
        before = lease.read_lease(root)
        heard = Heartbeats() if before is None else lease.read_heartbeats(root, before.run)
        holder = LeaseHolder.take(
            root, uuid.uuid4().hex, local=terms.alone, patience_seconds=patience, take_over=terms.take_over,
            max_outage_seconds=MAX_OUTAGE_SECONDS, on_progress=say,
        )  # fmt: skip
    except LeaseHeldError as error:
        raise LeaseHeldError(error.where, error.holder, TAKE_OVER) from error
    cancelled = False
    with suppress(CommandError, OSError):  # a Flink that does not answer
        cancelled = (
            terms.flink is not None and terms.is_ours(heard) and cancel(terms.flink, heard.job)
        )
    if cancelled:
        # Its workers would fail, and be tried again, until it gives up.
        say(f"cancelled job {heard.job} of the run before")
    return holder


def adopted(root: Root, terms: LeaseTerms) -> LeaseHolder | None:
    """The lease of a run whose job goes on though its command is gone; the lease of one whose job has ended too is given back."""
    run = lease.read_lease(root)
    if run is None or terms.flink is None or terms.take_over or not terms.waits:
        return None
    heard = lease.read_heartbeats(root, run.run)
    if not terms.is_ours(heard) or not lease.launcher_is_gone(root, run):
        return None
    if not running(terms.flink, heard.job):
        lease.release(root, run.run)
        return None
    say(f"the command that submitted job {heard.job} is gone, and the job goes on: following it")
    return LeaseHolder.adopt(root, run.run, MAX_OUTAGE_SECONDS, heard.job, heard.console)


def claim(
    root: Root,
    terms: LeaseTerms,
    manifest: Manifest,
    files: Sequence[Mapping[str, Any]],
    begin: Callable[[LeaseHolder, Manifest | None], T],
    *,
    overwrite: bool,
) -> tuple[LeaseHolder | None, T | None]:
    """Take the lease of the output, make room, and ``begin`` the job there; neither if the job is complete already.

    Nothing is begun (None) where this very job goes on without the command that submitted it: its lease is `adopted`.

    ``manifest``: of the job that is asked for; ``files``: of its input. ``begin`` gets the manifest of an earlier run of it, None
    for an empty output or a store to be overwritten; that is looked for again once the lease is held: another run may just have
    ended. Errors are those of `standing`, `is_same_job`, ``begin``, the lease and `clear`; after one the lease is given back.
    """

    def look() -> Manifest | None:
        existing = standing(root, overwrite=overwrite)
        return (
            existing
            if existing is not None and is_same_job(root, existing, manifest, files)
            else None
        )

    existing = look()
    if existing is not None and existing.complete:
        return None, None
    if existing is not None and (orphan := adopted(root, terms)) is not None:
        return orphan, None
    with _writing(root):
        holder = take_lease(root, terms)
        try:
            existing = look()
            if existing is not None and existing.complete:
                holder.end()
                return None, None
            if existing is None:
                clear(owned(root, holder.run))
            return holder, begin(holder, existing)
        except BaseException:
            holder.end()
            raise


@contextmanager
def _writing(root: Root) -> Iterator[None]:
    """If the block fails, remove the folders that it made down to ``root`` of a local disk and left empty.

    CommandError if the output can't be written.
    """
    path = Path(root.path())
    missing = (
        [folder for folder in (path, *path.parents) if not folder.exists()] if root.is_local else []
    )
    try:
        yield
    except BaseException as error:
        with suppress(OSError):  # something was written
            for folder in missing:
                folder.rmdir()
        if isinstance(error, OSError):
            raise CommandError(
                Exit.BAD_LOCATION, f"the output {root} can't be written: {error}"
            ) from error
        raise


def tidy(root: Root) -> None:
    """Remove what a run that was killed at its very end left beside its complete store, unless it may still live.

    Nothing happens where nothing is left, and in a place that can only be read.
    """
    own = Lease.of_this_process(
        uuid.uuid4().hex, local=True, patience_seconds=LOCAL_PATIENCE_SECONDS
    )

    fenced = root.owned_by(lease.Fence(root, own.run))

    def remove() -> None:
        root.sweep()
        if not {WORK, LEASES} & set(root.names("")):  # an empty folder is something too
            return
        held = lease.read_lease(root)
        if held is None or held.run != own.run:  # not taken by an attempt before
            lease.acquire(root, own, wait_seconds=0.0)
        if read_manifest(root).complete:
            fenced.remove_tree(WORK)
            fenced.remove(
                *[rel for rel in root.list(LEASES) if rel != LEASE]
            )  # heartbeats of the dead
            root.sweep(LEASES)
        lease.release(root, own.run)

    with suppress(
        OSError, StoreError
    ):  # LeaseHeldError: whoever has it is not done, or will be believed dead later
        retry(remove, local=root.is_local)


def versions() -> dict[str, str]:
    """Name → version of Python and of each package; "unknown" for one that was not installed as a package."""
    known = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            known[name] = version(name)
        except PackageNotFoundError:
            known[name] = "unknown"
    return known
