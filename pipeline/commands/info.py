"""``elmo-store info`` and ``watch``: what a store holds, finished or not, and how far the job is that writes it."""

import argparse
import json
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pipeline.cli import locations
from pipeline.cli.arguments import add_option, add_storage_options, port
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import human_bytes, in_line, quantity

if TYPE_CHECKING:
    from elmo_store.format.manifest import Manifest
    from elmo_store.format.version import Version
    from elmo_store.storage.root import Root

VERSIONS_SHOWN = 20  # of a collection, the newest

LOOK_SECONDS = 1.0  # between looks of `watch`


def _add_info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "store", metavar="STORE", help="a store or a collection, finished or not; any fsspec URL"
    )
    add_option(parser, "--json", "print JSON, sizes in bytes", False, "text")
    add_storage_options(parser, "the store")


def _info(args: argparse.Namespace) -> int:
    """Print what is known; 0 for a complete store, 4 for an unfinished one."""
    from elmo_store.errors import StoreNotFoundError
    from elmo_store.format.manifest import read_manifest

    root = locations.reached(args.store, args.storage_options, "store")
    try:
        manifest = read_manifest(root)
    except StoreNotFoundError:
        if (found := _of_collection(root)) is None:
            raise
        facts, lines, code = found
    else:
        facts = gather(root, manifest)
        lines, code = (
            _lines(root, manifest, facts),
            Exit.COMPLETE if manifest.complete else Exit.INCOMPLETE,
        )
    print(
        json.dumps(facts, indent=2, ensure_ascii=False)
        if args.json
        else "\n".join(map(in_line, lines))
    )
    return code


def _of_collection(root: "Root") -> tuple[dict[str, Any], list[str], Exit] | None:
    """The newest version as a store, and what the last ones changed: facts, lines, exit code. None if no collection is there."""
    from elmo_store.collecting import unversioned
    from elmo_store.format import version as versions
    from pipeline.progress.summary import described

    numbers = versions.numbers(root)
    every = [versions.read_version(root, number) for number in numbers]
    begun = list(
        unversioned(root, {member.name for version in every for member in version.members})
    )
    told = [f"  members/{name}" for name in begun]
    if begun:
        told.insert(
            0,
            "unfinished members (rerun the command that started one to resume it; to give it up, remove its folder):",
        )
    if not numbers:
        facts: dict[str, Any] = {"url": str(root), "version": None, "unfinished": begun}
        return (
            (facts, [f"{root}: a collection without a version yet", *told], Exit.INCOMPLETE)
            if begun
            else None
        )
    newest, changes = every[-1], [_change(version) for version in every[-VERSIONS_SHOWN:]]
    names = [member.name for member in newest.members]
    facts = {
        "url": str(root),
        "version": newest.number,
        **newest.store.to_json(),
        "members": names,
        "versions": changes,
    }
    lines = [
        f"{described(str(root), newest)}: a collection",
        *_model_lines(newest.store),
        "versions:",
    ]
    for one in changes:
        holds = f"{quantity(one['members'], 'member')}, {quantity(one['sentences'], 'sentence')}"
        removed = (
            f", bytes of {held:,} removed ones"
            if (held := one["sentences_held_but_removed"])
            else ""
        )
        lines.append(f"  {one['version']:>4}  {one['written']}  {one['change']:<8}{holds}{removed}")
    return (
        {**facts, "unfinished": begun},
        [*lines, *told, *_opening_lines(root, newest.store)],
        Exit.COMPLETE,
    )


def _change(version: "Version") -> dict[str, Any]:
    """What a version is: its number, the change that made it, when, and what it holds."""
    return {
        "version": version.number,
        "change": version.change,
        "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(version.written)),
        "members": len(version.members),
        "sentences": version.store.sizes.sentences,
        "sentences_held_but_removed": sum(
            run.n_sentences for member in version.members for run in member.removed
        ),
        "tokens": version.store.sizes.tokens,
    }


def gather(root: "Root", manifest: "Manifest") -> dict[str, Any]:
    """Everything of the manifest; bytes by kind of object, shards done and who writes, as the store holds them now."""
    from elmo_store.storage.lease import described, read_heartbeats, read_lease

    sizes = root.sizes()
    folders = {
        "zarr": "states.zarr",
        "parquet": "states",
        "sentences": "sentences",
        "indexes": "indexes",
        "rejects": "rejects",
    }
    by_kind = {
        kind: sum(size for name, size in sizes.items() if name.startswith(f"{f}/"))
        for kind, f in folders.items()
    }
    lease = read_lease(root)
    return {
        "url": str(root),
        **manifest.to_json(),
        "bytes": {kind: size for kind, size in by_kind.items() if size},
        "shards_done": sum(name.startswith("_shards/") for name in sizes),
        "writer": None
        if lease is None or lease.has_ended()
        else described(lease, read_heartbeats(root, lease.run)),
    }


def _lines(root: "Root", manifest: "Manifest", facts: dict[str, Any]) -> list[str]:
    """The same for people."""
    counts = manifest.counts
    status = "complete" if manifest.complete else "incomplete"
    lines = [f"{root}: {status} store of {manifest.kind}, format {manifest.format_version}"]
    if counts is None:
        lines.append("counts:      not known yet, the job is still reading its input")
    else:
        lines += [
            f"counts:      {quantity(counts.sentences, 'sentence')}, {quantity(counts.tokens, 'token')}, "
            f"{quantity(counts.rows, 'row')}, {quantity(counts.rejected, 'record')} refused, "
            f"{counts.words_cut:,} words truncated",
            f"shards:      {facts['shards_done']:,} of {counts.shards:,}, {quantity(manifest.shard_rows, 'row')} each",
        ]
    lines += [*_model_lines(manifest), f"tokenizer:   {manifest.tokenizer}"]
    if manifest.fields:
        lines.append(f"fields:      {', '.join(map(str, manifest.fields))}")
    lines.append(
        "bytes:       "
        + (
            ", ".join(f"{kind} {human_bytes(n)}" for kind, n in facts["bytes"].items())
            or "none yet"
        )
    )
    if facts["writer"]:
        lines.append(f"writer:      {facts['writer']}")
    if manifest.complete:
        return lines + _opening_lines(root, manifest)
    if facts["writer"]:
        return [*lines, f"follow it:   elmo-store watch {root}"]
    return [*lines, "continue it: give the command that began it once more"]


def _model_lines(manifest: "Manifest") -> list[str]:
    device = manifest.job.get("gpu") or manifest.job.get("device")
    return [
        f"model:       {manifest.model.name} ({manifest.model.fingerprint[:23]}…), start state {manifest.start_state.kind}",
        f"states:      {', '.join(manifest.states)}; {manifest.channels} wide, {manifest.dtype}, "
        f"computed in {manifest.precision}" + (f" on {device}" if device else ""),
    ]


def _opening_lines(root: "Root", manifest: "Manifest") -> list[str]:
    from pipeline.progress.summary import next_steps

    return ["open it in Python:", *(f"    {line}" for line in next_steps(root, manifest))]


def _add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "store", metavar="STORE", help="the job's output, which need not exist yet; any fsspec URL"
    )
    add_option(parser, "--once", "print one line and end", False, "follow the job to its end")
    add_storage_options(parser, "the store")
    add_option(
        parser, "--metrics-port", "also serve Prometheus metrics at http://HOST:PORT/metrics; needs the extra metrics",
        unset="off", type=port, metavar="PORT",
    )  # fmt: skip


def _check_watch(args: argparse.Namespace) -> None:
    if args.once and args.metrics_port is not None:
        raise CommandError(
            Exit.BAD_USAGE, "--metrics-port needs a command that keeps running; drop --once"
        )


def _watch(args: argparse.Namespace) -> int:
    """Show progress; 0 when the store is complete, 4 with ``--once`` while it is not. Waits for a job that has not begun."""
    from elmo_store.errors import ManifestError, StoreNotFoundError
    from elmo_store.format.layout import MEMBERS
    from elmo_store.format.manifest import read_manifest
    from pipeline.progress.bars import Screen, follow
    from pipeline.progress.metrics import exported
    from pipeline.progress.snapshot import ProgressReader

    root = locations.reached(args.store, args.storage_options, "store")
    try:
        with suppress(ManifestError):  # damage is for verify to tell
            read_manifest(
                root
            )  # StoreVersionError: what a later version's markers say is not known here
    except StoreNotFoundError:
        if root.names(MEMBERS):
            raise CommandError(
                Exit.BAD_USAGE,
                f"{args.store} is a collection: `elmo-store info {args.store}` names the members that are being written; "
                f"watch one, {root.url(MEMBERS)}/NAME",
            ) from None
        if args.once:
            raise
        print(
            f"no job has started at {args.store} yet; waiting for one (Ctrl-C ends this)",
            file=sys.stderr,
            flush=True,
        )
    if args.once:
        snapshot = ProgressReader(root).look()
        print(snapshot.line())
    else:
        with exported(args.metrics_port) as meter:
            snapshot = follow(root, Screen(sys.stderr), meter, seconds=LOOK_SECONDS)
        print(snapshot.line())
    return Exit.COMPLETE if snapshot.stage == "complete" else Exit.INCOMPLETE


COMMANDS = {
    "info": Command(_add_info_arguments, _info, locations.read_store),
    "watch": Command(_add_watch_arguments, _watch, locations.read_store, _check_watch),
}
