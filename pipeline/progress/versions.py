"""What commands say of a collection's versions. Pure."""

import time
from collections.abc import Sequence
from typing import Any

from elmo_store.format.version import Version
from pipeline.cli.terminal import in_line, quantity


def described(name: str, version: Version) -> str:
    """The line that ends a command which changed a collection."""
    counts, members = version.store.sizes, quantity(len(version.members), "member")
    held = f"{quantity(counts.sentences, 'sentence')}, {quantity(counts.tokens, 'token')}"
    return in_line(f"{name}: version {version.number}, {members}, {held}")


def history(versions: Sequence[Version]) -> list[dict[str, Any]]:
    """What each version changed of the one before it; the first of them, of nothing."""
    facts = []
    for before, version in zip([None, *versions], versions, strict=False):
        counts, earlier = version.store.sizes, before.store.sizes if before else None
        names = {member.name for member in version.members}
        names_before = {member.name for member in before.members} if before else set()
        facts.append(
            {
                "version": version.number,
                "change": version.change,
                "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(version.written)),
                "members": len(names),
                "members_added": len(names - names_before),
                "members_gone": len(names_before - names),
                "sentences": counts.sentences,
                "sentences_changed": counts.sentences - (earlier.sentences if earlier else 0),
                "sentences_held_but_removed": sum(run.n_sentences for member in version.members for run in member.removed),
                "tokens": counts.tokens,
            }
        )
    return facts


def history_lines(facts: Sequence[dict[str, Any]]) -> list[str]:
    """The same for people."""
    lines = []
    for one in facts:
        members = f"{quantity(one['members'], 'member')} (+{one['members_added']:,} -{one['members_gone']:,})"
        sentences = f"{quantity(one['sentences'], 'sentence')} ({one['sentences_changed']:+,})"
        held = one["sentences_held_but_removed"]
        removed = f", bytes of {held:,} removed ones" if held else ""
        lines.append(f"  {one['version']:>4}  {one['written']}  {one['change']:<8}{members}, {sentences}{removed}")
    return lines
