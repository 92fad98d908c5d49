"""``elmo-store info`` and ``watch``: what a store holds, finished or not, and how far the job is that writes it."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.arguments import add_option, add_storage_options, check_metrics_port
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.terminal import human_bytes, in_line, quantity
from pipeline.jobs import spec

if TYPE_CHECKING:
    from elmo_store.format.manifest import Manifest
    from elmo_store.storage.root import Root

VERSIONS_SHOWN = 20  # of a collection, the newest

LOOK_SECONDS = 1.0  # between looks of `watch`


def _add_info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="STORE", help="a store or a collection, finished or not; any fsspec URL")
    add_option(parser, "--json", "print JSON, sizes in bytes", False, "text")
    add_storage_options(parser, "the store")


def _info_touches(args: argparse.Namespace) -> locations.Touched:
    return locations.Touched([locations.store(args.url, args.storage_options, "store")])


def _info(args: argparse.Namespace) -> int:
    """Print what is known; 0 for a complete store, 4 for an unfinished one."""
    from elmo_store.errors import StoreNotFoundError
    from elmo_store.format import version as versions
    from elmo_store.format.manifest import read_manifest
    from elmo_store.storage.root import Root
    from pipeline.progress.versions import unfinished, unfinished_lines

    root = Root(args.url, args.storage_options)
    locations.reach(root, "store")
    try:
        manifest = read_manifest(root)
    except StoreNotFoundError:
        numbers = versions.numbers(root)
        begun = unfinished(root, numbers)
        if numbers:
            return _of_collection(root, numbers, begun, as_json=args.json)
        if not begun:
            raise
        facts = {"url": str(root), "version": None, "unfinished": begun}
        lines_ = [f"{root}: a collection without a version yet", *unfinished_lines(begun)]
        print(json.dumps(facts, indent=2, ensure_ascii=False) if args.json else "\n".join(map(in_line, lines_)))
        return Exit.INCOMPLETE
    facts = gather(root, manifest)
    print(json.dumps(facts, indent=2, ensure_ascii=False) if args.json else "\n".join(lines(root, manifest, facts)))
    return Exit.COMPLETE if manifest.complete else Exit.INCOMPLETE


def _of_collection(root: "Root", numbers: Sequence[int], begun: Sequence[dict[str, Any]], *, as_json: bool) -> Exit:
    """The newest version as a store, and what the last ones changed."""
    from elmo_store.format import version as versions
    from pipeline.progress.summary import next_steps
    from pipeline.progress.versions import described, history, history_lines, unfinished_lines

    every = [versions.read_version(root, number) for number in numbers[-VERSIONS_SHOWN:]]
    newest, facts = every[-1], history(every)
    manifest = newest.store
    if as_json:
        names = [member.name for member in newest.members]
        value = {"url": str(root), "version": newest.number, **manifest.to_json(), "members": names, "versions": facts}
        value["unfinished"] = begun
        print(json.dumps(value, indent=2, ensure_ascii=False))
        return Exit.COMPLETE
    shown = [
        f"{described(str(root), newest)}: a collection",
        f"model:       {manifest.model.name} ({manifest.model.fingerprint[:23]}…), start state {manifest.start_state.kind}",
        f"states:      {', '.join(manifest.states)}; {manifest.channels} wide, {manifest.dtype}, {manifest.precision}",
        "versions:",
        *history_lines(facts),
        *unfinished_lines(begun),
        "open it in Python:",
        *(f"    {line}" for line in next_steps(root, manifest)),
    ]
    print("\n".join(in_line(line) for line in shown))
    return Exit.COMPLETE


def gather(root: "Root", manifest: "Manifest") -> dict[str, Any]:
    """Everything of the manifest; bytes by kind of object, shards done and who writes, as the store holds them now."""
    from elmo_store.storage.lease import described, read_heartbeats, read_lease

    sizes = root.sizes()
    folders = {"zarr": "states.zarr", "parquet": "states", "sentences": "sentences", "indexes": "indexes", "rejects": "rejects"}
    by_kind = {kind: sum(size for name, size in sizes.items() if name.startswith(f"{f}/")) for kind, f in folders.items()}
    lease = read_lease(root)
    return {
        "url": str(root),
        **manifest.to_json(),
        "bytes": {kind: size for kind, size in by_kind.items() if size},
        "shards_done": sum(name.startswith("_shards/") for name in sizes),
        "writer": None if lease is None or lease.has_ended() else described(lease, read_heartbeats(root, lease.run)),
    }


def lines(root: "Root", manifest: "Manifest", facts: dict[str, Any]) -> list[str]:
    """The same for people."""
    from pipeline.progress.summary import next_steps

    counts = manifest.counts
    status = "complete" if manifest.complete else "incomplete"
    shown = [f"{root}: {status} store of {manifest.kind}, format {manifest.format_version}"]
    if counts is None:
        shown.append("counts:      not known yet, the job is still reading its input")
    else:
        shown.append(
            f"counts:      {quantity(counts.sentences, 'sentence')}, {quantity(counts.tokens, 'token')}, "
            f"{quantity(counts.rows, 'row')}, "
            f"{quantity(counts.rejected, 'record')} refused, {counts.words_cut:,} words truncated"
        )
        shown.append(f"shards:      {facts['shards_done']:,} of {counts.shards:,}, {quantity(manifest.shard_rows, 'row')} each")
    bytes_ = ", ".join(f"{kind} {human_bytes(size)}" for kind, size in facts["bytes"].items()) or "none yet"
    shown += [
        f"model:       {manifest.model.name} ({manifest.model.fingerprint[:23]}…), start state {manifest.start_state.kind}",
        f"states:      {', '.join(manifest.states)}; {manifest.channels} wide, {manifest.dtype}, "
        f"computed in {manifest.precision}{_on(manifest)}",
        f"tokenizer:   {manifest.tokenizer}",
        *([f"fields:      {', '.join(map(str, manifest.fields))}"] if manifest.fields else []),
        f"bytes:       {bytes_}",
    ]
    if facts["writer"]:
        shown.append(f"writer:      {facts['writer']}")
    if manifest.complete:
        shown += ["open it in Python:", *(f"    {line}" for line in next_steps(root, manifest))]
    else:
        shown.append(
            f"follow it:   elmo-store watch {root}"
            if facts["writer"]
            else "continue it: give the command that began it once more"
        )
    return [in_line(line) for line in shown]


def _on(manifest: "Manifest") -> str:
    """What the states were computed on, as far as the job says."""
    device = str(manifest.job.get("device", "auto"))
    if device == "auto":
        return ""
    gpus = manifest.job.get("gpu")
    names = device.split(",") if gpus is None else str(gpus).split("; ")
    return f" on {' and '.join(names)}" + (": last bits of their shards differ" if len(names) > 1 else "")


def _add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="STORE", help="the job's output, which need not exist yet; any fsspec URL")
    add_option(parser, "--once", "print one line and end", False, "follow the job to its end")
    add_storage_options(parser, "the store")
    spec.add_embed_option(parser, "metrics_port")


def _check_watch(args: argparse.Namespace) -> None:
    """CommandError for metrics that can't be had."""
    if args.once and args.metrics_port is not None:
        raise CommandError(Exit.BAD_USAGE, "--metrics-port needs a command that keeps running; drop --once")
    check_metrics_port(args.metrics_port, waits=True)


def _watch_touches(args: argparse.Namespace) -> locations.Touched:
    """The store, which may still come unless one look is all."""
    if args.once:
        return locations.Touched([locations.store(args.url, args.storage_options, "store")])
    return locations.Touched([Location("store", args.url, args.storage_options)])


def _watch(args: argparse.Namespace) -> int:
    """Show progress; 0 when the store is complete, 4 with ``--once`` while it is not. Waits for a job that has not begun."""
    from elmo_store.errors import ManifestError, StoreNotFoundError
    from elmo_store.format.layout import MEMBERS
    from elmo_store.format.manifest import read_manifest
    from elmo_store.storage.root import Root
    from pipeline.progress.bars import Screen, follow
    from pipeline.progress.metrics import exported
    from pipeline.progress.snapshot import ProgressReader

    root = Root(args.url, args.storage_options)
    locations.reach(root, "store")
    try:
        with suppress(ManifestError):  # damage is for verify to tell
            read_manifest(root)  # StoreVersionError: what a later version's markers say is not known here
    except StoreNotFoundError:
        if root.names(MEMBERS):
            raise CommandError(
                Exit.BAD_USAGE,
                f"{args.url} is a collection: `elmo-store info {args.url}` names the members that are being written; watch one, "
                f"{root.url(MEMBERS)}/NAME",
            ) from None
        if args.once:
            raise
        print(f"no job has started at {args.url} yet; waiting for one (Ctrl-C ends this)", file=sys.stderr, flush=True)
    if args.once:
        snapshot = ProgressReader(root).look()
        print(snapshot.line())
    else:
        with exported(args.metrics_port) as meter:
            snapshot = follow(root, Screen(sys.stderr), meter, seconds=LOOK_SECONDS)
        print(snapshot.line())
    return Exit.COMPLETE if snapshot.stage == "complete" else Exit.INCOMPLETE


COMMANDS = {
    "info": Command(_add_info_arguments, _info, _info_touches),
    "watch": Command(_add_watch_arguments, _watch, _watch_touches, _check_watch),
}
