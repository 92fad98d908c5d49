"""A writer that was suspended and replaced changes nothing when it wakes, wherever it was suspended."""

import itertools
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store import collecting
from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format import version as versions
from elmo_store.storage import lease as leases
from elmo_store.storage.root import Root
from tests.store.support import make_store
from tests.store.suspended import declare_dead, every_suspension, suspended_at
from tests.store.test_collection_changes import ids_of, numbered


@pytest.mark.slow
def test_a_suspended_write_of_a_view_changes_nothing_of_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = elmo_store.open(make_store(str(tmp_path / "store")).root.url())
    view = store.select([0, 3])

    def write_or_find_it_complete(place: Path) -> None:
        try:
            view.write(place)
        except StoreError:
            assert elmo_store.open(place).manifest.complete  # suspended after its last put

    n_suspensions = 0
    for _, place in every_suspension(
        lambda place: None, view.write, write_or_find_it_complete, monkeypatch, tmp_path
    ):
        written = elmo_store.open(place)
        assert not written.verify().faults
        np.testing.assert_array_equal(written.read(), view.read())
        n_suspensions += 1
    assert n_suspensions > 40


@pytest.mark.slow
def test_a_suspended_write_leaves_another_view_in_its_place_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = elmo_store.open(make_store(str(tmp_path / "store")).root.url())
    first, second = store.select([0, 3]), store.select([6])

    def write_another(place: Path) -> bool:
        try:
            second.write(place)
        except StoreError:
            return False
        return True

    for what, place in every_suspension(
        lambda place: None, first.write, write_another, monkeypatch, tmp_path
    ):
        written = elmo_store.open(place)
        assert not written.verify().faults
        assert written.n_sentences in (1, 2), what


@pytest.mark.slow
@pytest.mark.parametrize("command", ["collect", "remove", "compact"])
def test_a_suspended_change_of_a_collection_changes_nothing_of_the_winner(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, stores = tmp_path / "base", [numbered(tmp_path / name, name) for name in "ab"]
    collecting.collect(base, stores[:1])
    if command == "compact":
        collecting.remove(Root(base), ["a:1"])
    works: dict[str, Any] = {
        "collect": lambda place: collecting.collect(place, stores[1:]),
        "remove": lambda place: collecting.remove(Root(place), ["a:1"]),
        "compact": lambda place: collecting.compact(Root(place)),
    }

    def take_over(place: Path) -> None:
        collecting.collect(place, stores[1:])
        collecting.remove(Root(place), ["a:0", "a:1"])
        if command != "remove":
            collecting.compact(Root(place))

    n_suspensions = 0
    for what, place in every_suspension(
        partial(shutil.copytree, base), works[command], take_over, monkeypatch, tmp_path
    ):
        assert ids_of(place) == ["a:2", "a:3", "b:0", "b:1", "b:2", "b:3"], what
        assert not elmo_store.open(place).verify().faults
        n_suspensions += 1
    assert n_suspensions > 2


@pytest.mark.parametrize("base", ["disk", "memory"])
def test_collect_succeeds_if_others_build_on_its_version(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "all") if base == "disk" else f"memory://{tmp_path.name}-followed"
    stores = [numbered(tmp_path / name, name) for name in "abc"]
    collecting.collect(url, stores[:1])
    real = Root.put_new

    def put_and_be_suspended(root: Root, rel: str, data: Any) -> bool:
        is_new = real(root, rel, data)
        if rel == layout.version(2):
            monkeypatch.undo()
            monkeypatch.setattr(leases, "look_seconds", lambda root: 0.0)
            declare_dead(Root(url))
            collecting.collect(url, stores[2:])
        return is_new

    monkeypatch.setattr(Root, "put_new", put_and_be_suspended)
    assert collecting.collect(url, stores[1:2]).number == 2
    assert versions.numbers(Root(url)) == [1, 2, 3]
    assert len(elmo_store.open(url)) == 12


@pytest.mark.slow
def test_a_late_version_on_an_object_store_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the lease was in time, and the put arrives when the others have ended."""
    stores = [numbered(tmp_path / name, name) for name in "abc"]
    for number in itertools.count():
        url = f"memory://{tmp_path.name}-late-{number}"
        is_collected: list[bool] = []
        collecting.collect(url, stores[:1])

        def work(url: str = url, is_collected: list[bool] = is_collected) -> None:
            collecting.collect(url, stores[1:2])
            is_collected.append(True)

        def take_over(url: str = url) -> None:
            declare_dead(Root(url))
            for ids in ["a:0"], ["a:1"]:
                collecting.remove(Root(url), ids)
                collecting.compact(Root(url))

        if not suspended_at(number, "after its look", work, take_over, monkeypatch):
            break
        ids = [sentence.id for sentence in elmo_store.open(url)]
        assert ids == ["a:2", "a:3", *(["b:0", "b:1", "b:2", "b:3"] if is_collected else [])]
        assert not elmo_store.open(url).verify().faults
        assert len(versions.numbers(Root(url))) == 1
    assert number > 20
