"""What commands say of a collection's versions. Pure."""

from elmo_store.format.version import Version
from pipeline.cli.terminal import in_line


def described(name: str, version: Version) -> str:
    """The line that ends a command which changed a collection."""
    counts, n = version.store.sizes, len(version.members)
    members = f"{n:,} member{'s' if n != 1 else ''}"
    return in_line(f"{name}: version {version.number}, {members}, {counts.sentences:,} sentences, {counts.tokens:,} tokens")
