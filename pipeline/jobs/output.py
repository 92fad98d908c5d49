"""The output at the door of every job: what stands there, whether it is this very job, and what may be removed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from elmo_store.errors import (
    JobMismatchError,
    ManifestError,
    StoreError,
    StoreFeatureError,
    StoreNotFoundError,
    StoreVersionError,
)
from elmo_store.format.inputs import read_inputs
from elmo_store.format.layout import FOLDERS, MANIFEST, is_ours
from elmo_store.format.manifest import Manifest, read_manifest, write_manifest
from elmo_store.format.markers import marked_shards
from elmo_store.reading.watched import REPLACE_SECONDS
from elmo_store.storage.lease import LEASES
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import CommandError, Exit
from transforms.runtime.work import PROBLEM, REFUSED


def reach(root: Root, what: str) -> None:
    """CommandError (bad location) unless the filesystem of ``root`` can be asked anything at all.

    Filesystems raise what they like when a protocol is unknown or credentials are missing, hence the broad net.
    """
    try:
        root.exists(MANIFEST)
    except Exception as error:
        raise CommandError(Exit.BAD_LOCATION, f"the {what} {root} can't be used: {type(error).__name__}: {error}") from error


def standing(root: Root, *, overwrite: bool) -> Manifest | None:
    """The manifest that stands at the output; None on an empty one, and for a store that is to be overwritten (`clear`).

    CommandError if something else stands there, or nothing can be said.
    """
    reach(root, "output")
    try:
        there = read_manifest(root)
    except StoreNotFoundError:
        if any(not rel.startswith(f"{LEASES}/") for rel in root.list()):
            raise CommandError(
                Exit.REFUSED,
                f"{root} holds files and is no store of ours (no {MANIFEST} in it): give another --output; "
                "--overwrite removes stores only",
            ) from None
        return None
    except (ManifestError, StoreVersionError, StoreFeatureError) as error:
        if not overwrite:
            raise CommandError(
                Exit.REFUSED, f"{error}\nGive another --output, or --overwrite to remove what is there."
            ) from error
        there = None
    except (OSError, ValueError, ImportError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"the output {root} can't be used: {error}") from error
    if not overwrite:
        return there
    if there is None and not _looks_like_ours(root):
        raise CommandError(
            Exit.REFUSED, f"{root.url(MANIFEST)} is not a manifest of ours; nothing was removed: give another --output"
        )
    return None


def clear(root: Root) -> None:
    """Remove the store that stands at the output, object by object; what is not ours stays.

    The manifest stays too, to be written over, incomplete: whenever this ends, what is left is known as a store.
    CommandError if something can't be removed.
    """
    try:
        changed = 0.0  # a manifest that can't be read promises nothing
        try:
            write_manifest(root, replace(read_manifest(root), complete=False))
            changed = time.monotonic()
        except StoreNotFoundError:
            return
        except (ManifestError, StoreVersionError, StoreFeatureError):
            pass
        root.remove_many([rel for rel in root.list() if is_ours(rel) and rel != MANIFEST])
        if changed and not root.is_local:  # readers may have looked just before: see elmo_store.reading.watched
            time.sleep(max(0.0, changed + REPLACE_SECONDS - time.monotonic()))
        for folder in FOLDERS:  # one that was killed here before left empty ones
            root.remove_empty(folder)
    except Exception as error:  # filesystems raise what they like
        raise CommandError(Exit.BAD_LOCATION, f"the store at {root} can't be removed: {type(error).__name__}: {error}") from error


def _looks_like_ours(root: Root) -> bool:
    """Whether a manifest that can't be read is one of ours, broken or of another version: it names its format version."""
    try:
        value = root.get_json(MANIFEST)
    except ValueError:
        return b'"format_version"' in root.get(MANIFEST)[:4096]
    return isinstance(value, dict) and "format_version" in value and "states" in value


def is_unclaimed(root: Root) -> bool:
    """Whether the job on the output ended because its input was refused: whatever is asked for next may replace it."""
    try:
        problem = root.get_json(PROBLEM)
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(problem, dict) and problem.get("kind") == REFUSED


def is_same_job(root: Root, there: Manifest, now: Manifest, files: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the job on the output is the one that is asked for; False if it is another one that may be replaced.

    JobMismatchError with both sides, field by field, for another one.

    As long as no shard stands, the input may be another, and damaged files may be rejected that ended the job before: what
    was read of unchanged files is used, the rest is read anew. ``files``: of the input as it is now.
    """
    names = sorted({*there.job, *now.job})
    different = {n: (there.job.get(n), now.job.get(n)) for n in names if there.job.get(n) != now.job.get(n)}
    if now.job.get("device") == "auto":  # whatever workers have, and a complete store says what that was
        different.pop("device", None)
    different.pop("gpu", None)  # a complete store says which it was; workers see to it that a job's shards come from one
    mended = all(name == "input" or (name, change) == ("on_bad_file", ("stop", "reject")) for name, change in different.items())
    if mended and different and not there.complete and not marked_shards(root):
        return True
    if different and not there.complete and is_unclaimed(root):
        return False
    if "input" in different:
        different |= different_files(_files_there(root), files)
    if "model" in different:
        different["model name"] = (there.model.name, now.model.name)
    if different:
        raise JobMismatchError(str(root), different)
    return True


def _files_there(root: Root) -> list[dict[str, Any]]:
    """The input's files of the job that stands on the output; none where the table can't be read."""
    try:
        return read_inputs(root)
    except StoreError:
        return []


def different_files(
    there: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], most: int = 5
) -> dict[str, tuple[Any, Any]]:
    """The first few files that are on one side only, or of another size, time or format: name → (there, now)."""

    def described(files: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        return {str(f["url"]): f"{f.get('bytes')} bytes, {f.get('version')}, {f.get('format')}" for f in files}

    left, right = described(there), described(now)
    names = [name for name in sorted({*left, *right}) if left.get(name) != right.get(name)]
    return {f"file {name}": (left.get(name), right.get(name)) for name in names[:most]}
