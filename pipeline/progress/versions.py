"""What commands say of a collection: its versions, and members that no version has yet."""

import time
from collections.abc import Sequence
from typing import Any

from elmo_store.collecting import unversioned
from elmo_store.format import layout
from elmo_store.format.version import Version, read_version
from elmo_store.storage.root import Root
from pipeline.cli.terminal import in_line, quantity


def described(name: str, version: Version) -> str:
    """The line that ends a command which changed a collection."""
    counts, members = version.store.sizes, quantity(len(version.members), "member")
    held = f"{quantity(counts.sentences, 'sentence')}, {quantity(counts.tokens, 'token')}"
    return in_line(f"{name}: version {version.number}, {members}, {held}")


def history(versions: Sequence[Version]) -> list[dict[str, Any]]:
    """What each version is: its number, the change that made it, when, and what it holds."""
    return [
        {
            "version": version.number,
            "change": version.change,
            "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(version.written)),
            "members": len(version.members),
            "sentences": version.store.sizes.sentences,
            "sentences_held_but_removed": sum(run.n_sentences for member in version.members for run in member.removed),
            "tokens": version.store.sizes.tokens,
        }
        for version in versions
    ]


def history_lines(facts: Sequence[dict[str, Any]]) -> list[str]:
    """The same for people."""
    lines = []
    for one in facts:
        holds = f"{quantity(one['members'], 'member')}, {quantity(one['sentences'], 'sentence')}"
        held = one["sentences_held_but_removed"]
        removed = f", bytes of {held:,} removed ones" if held else ""
        lines.append(f"  {one['version']:>4}  {one['written']}  {one['change']:<8}{holds}{removed}")
    return lines


def unfinished(root: Root, numbers: Sequence[int]) -> list[str]:
    """Names of members that commands began and no version has."""
    named = {member.name for number in numbers[-1:] for member in read_version(root, number).members}
    if set(root.names(layout.MEMBERS)) - named:
        named |= {member.name for number in numbers[:-1] for member in read_version(root, number).members}
    return list(unversioned(root, named))
