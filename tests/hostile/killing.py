"""A job that dies in the middle: from a random put on nothing more is written or removed. For tests in one process."""

from pathlib import Path

import pytest

from elmo_store.storage.data import Data, joined
from elmo_store.storage.lease import LEASES
from elmo_store.storage.local_disk import _temporary_name
from elmo_store.storage.root import Root


def kill_after(patch: pytest.MonkeyPatch, left: list[int], torn: bool) -> None:
    """Every put, removal and listing fails from the moment on at which ``left`` puts were made."""
    put, remove, tree = Root.put, Root.remove, Root.remove_tree

    def check(rel: str) -> None:
        if left[0] < 0 and not rel.startswith(
            LEASES
        ):  # the lease of a dead process counts as given back
            raise OSError("injected: the process was killed before")

    def dying_put(self: Root, rel: str, data: Data | Path, **options: bool) -> str:
        if rel.startswith(LEASES):
            return put(self, rel, data, **options)
        check(rel)
        left[0] -= 1
        if left[0] < 0:
            if torn:
                folder, _, name = rel.rpartition("/")
                temporary = Path(self.path(folder), _temporary_name(name))
                temporary.parent.mkdir(parents=True, exist_ok=True)
                whole = data.read_bytes() if isinstance(data, Path) else joined(data)
                temporary.write_bytes(whole[: len(whole) // 2])
            raise OSError("injected: the process was killed here")
        return put(self, rel, data, **options)

    def dying_remove(self: Root, *rels: str) -> None:
        for rel in rels:
            check(rel)
        remove(self, *rels)

    def dying_tree(self: Root, prefix: str = "") -> None:
        check(prefix)
        tree(self, prefix)

    for name, dying in {
        "put": dying_put,
        "remove": dying_remove,
        "remove_tree": dying_tree,
    }.items():
        patch.setattr(Root, name, dying)
