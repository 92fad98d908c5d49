"""Which names stay inside a store, whatever a file says."""

from elmo_store.errors import StoreError

_PLACELESS = frozenset(("", ".", ".."))  # names that a path inside the store has none of


def is_inside(rel: str) -> bool:
    """Whether ``rel`` names something inside a root, whatever the filesystem makes of names."""
    return "\\" not in rel and "\0" not in rel and _PLACELESS.isdisjoint(rel.split("/"))


def checked(rel: str) -> str:
    """``rel`` if it stays inside the root; StoreError otherwise."""
    if not is_inside(rel):
        raise StoreError(f"{rel!r} is not a path inside the store: it must be relative, without '..', '.', '\\' or empty names")
    return rel
