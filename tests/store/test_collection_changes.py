"""Commands that change one collection at once, or again: none loses a sentence, and none brings one back."""

import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import elmo_store
from elmo_store import collecting, errors
from elmo_store.format import layout
from elmo_store.format import version as versions
from elmo_store.format.manifest import own_sha256
from elmo_store.format.markers import sealed
from elmo_store.storage.lease import LEASE, Lease, LeaseHolder, acquire
from elmo_store.storage.root import Root
from tests.store import support
from tests.store.deep import all_faults
from tests.store.support import version_of
from tests.store.test_collection import contents, make, opened
from tests.store.test_collection import stores as stores

OTHERS_SECONDS = (
    1.0  # that commands get between another one's reading of the newest version and its put
)


def numbered(folder: Path, prefix: str, **settings: Any) -> elmo_store.Store:
    """A store of four sentences with the ids PREFIX:0, PREFIX:1 …"""
    support.make_store(
        str(folder), lengths=(3, 1, 2, 4), parts=(4,), job={"document": prefix}, **settings
    )
    return elmo_store.open(folder)


def ids_of(name: Path) -> list[str]:
    return [sentence.id for sentence in elmo_store.open(name)]


def embedded(name: Path, store: elmo_store.Store) -> Callable[[], Any]:
    """What `embed --into` does when its job is complete."""
    member = collecting.name_of(store.url)
    shutil.copytree(store.url, name / layout.member(member))
    return partial(collecting.add, Root(name), member, member)


def between(
    patch: pytest.MonkeyPatch, where: Any, name: str, others: list[Callable[[], Any]]
) -> threading.Thread:
    """A thread that does ``others``, and is started when the main thread first calls this function; it gets some time then."""
    real, main = getattr(where, name), threading.current_thread()
    thread = threading.Thread(target=lambda: [other() for other in others])

    def call(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread() is main and thread.ident is None:
            thread.start()
            thread.join(OTHERS_SECONDS)
        return real(*arguments, **options)

    patch.setattr(where, name, call)
    return thread


@pytest.mark.slow
@pytest.mark.parametrize("command", ["collect", "embed", "remove", "compact"])
def test_a_change_that_others_overtake_between_its_read_and_its_put_is_not_lost(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, (first, second) = (
        tmp_path / "all",
        [numbered(tmp_path / prefix, prefix) for prefix in ("a", "b")],
    )
    collecting.collect(name, [first])
    if command == "compact":
        collecting.remove(Root(name), ["a:0"])
    work: Callable[[], Any] = {
        "collect": lambda: collecting.collect(name, [second]),
        "embed": embedded(name, second) if command == "embed" else None,
        "remove": lambda: collecting.remove(Root(name), ["a:0"]),
        "compact": lambda: collecting.compact(Root(name)),
    }[command]  # type: ignore[assignment]
    others: list[Callable[[], Any]] = [
        partial(collecting.remove, Root(name), ["a:1"]),
        partial(collecting.compact, Root(name)),
    ]
    with monkeypatch.context() as patch:
        thread = between(patch, versions.Version, "encoded", others)
        work()
    thread.join()
    added = [f"b:{i}" for i in range(4)] if command in ("collect", "embed") else []
    assert ids_of(name) == (["a:0"] if added else []) + ["a:2", "a:3", *added]
    assert all_faults(elmo_store.open(name)) == []
    numbers = versions.numbers(Root(name))
    assert numbers == [4] if command != "compact" else numbers[-1] > 3


def test_compact_removes_no_member_that_is_collected_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, store = tmp_path / "all", numbered(tmp_path / "a", "a")
    collecting.collect(name, [store])
    collecting.remove(Root(name), ["a:0"])
    with monkeypatch.context() as patch:
        thread = between(patch, collecting, "_sweep", [lambda: collecting.collect(name, [store])])
        collecting.compact(Root(name))
    thread.join()
    assert ids_of(name) == ["a:1", "a:2", "a:3"]
    assert all_faults(elmo_store.open(name)) == []


def test_a_command_that_lost_the_lease_puts_no_version_below_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, stores = tmp_path / "all", [numbered(tmp_path / prefix, prefix) for prefix in "abc"]
    collecting.collect(name, stores[:1])
    real = versions.Version.encoded

    def overtaken(version: versions.Version) -> bytes:
        monkeypatch.setattr(versions.Version, "encoded", real)
        (name / LEASE).unlink()  # as if another machine held this process for dead
        collecting.remove(Root(name), ["a:0"])
        collecting.compact(Root(name))
        assert not (name / layout.version(version.number)).exists()
        return real(version)

    monkeypatch.setattr(versions.Version, "encoded", overtaken)
    with pytest.raises(errors.LeaseLostError):
        collecting.collect(name, stores[1:2])
    assert versions.numbers(Root(name)) == [3]
    collecting.collect(name, stores[1:])
    assert len(ids_of(name)) == 11


@pytest.mark.parametrize("command", ["collect", "embed"])
def test_a_source_is_added_once_also_after_compact(command: str, tmp_path: Path) -> None:
    name, store = tmp_path / "all", numbered(tmp_path / "a", "a")
    collecting.collect(name, [numbered(tmp_path / "other", "other")])
    add = (
        embedded(name, store) if command == "embed" else partial(collecting.collect, name, [store])
    )
    for night in range(3):
        add()
        collecting.remove(Root(name), [f"a:{night}"])
        add()
        collecting.compact(Root(name))
    collecting.remove(Root(name), ["a:3"])
    collecting.compact(Root(name))  # nothing is left of it
    before = contents(name)
    assert add().number == version_of(opened(name)).number
    assert contents(name) == before
    assert ids_of(name) == [f"other:{i}" for i in range(4)]
    again = numbered(
        tmp_path / "again", "other", software={"elmo-store": "1"}
    )  # the same contents, another manifest
    assert collecting.collect(name, [again]).number == version_of(opened(name)).number


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_many_who_append_remove_and_compact_at_once_lose_no_sentence(
    seed: int, tmp_path: Path
) -> None:
    name, prefixes = tmp_path / "all", ["a", "b", "c"]
    stores = {
        f"{p}{n}": numbered(tmp_path / f"{p}{n}", f"{p}{n}") for p in prefixes for n in range(3)
    }
    collecting.collect(name, [numbered(tmp_path / "first", "first")])

    def change(prefix: str) -> set[str]:
        rng, kept = random.Random(f"{prefix}{seed}"), set[str]()
        for n in range(3):
            own = f"{prefix}{n}"
            collecting.collect(name, [stores[own]])
            kept |= {f"{own}:{i}" for i in range(4)}
            gone = rng.sample(sorted(kept), 2)
            assert collecting.remove(Root(name), gone)[1:] == (2, 0)
            kept -= set(gone)
            if rng.random() < 0.5:
                collecting.compact(Root(name), keep_versions=rng.choice([1, 2]))
            collecting.collect(name, [stores[own]])
        return kept

    with ThreadPoolExecutor(len(prefixes)) as pool:
        kept = set.union(*pool.map(change, prefixes))
    collecting.compact(Root(name))
    assert sorted(ids_of(name)) == sorted([*kept, *(f"first:{i}" for i in range(4))])
    assert all_faults(elmo_store.open(name)) == []
    names = {member.name for member in version_of(opened(name)).members}
    assert {path.name for path in (name / layout.MEMBERS).iterdir()} == names
    assert not list(name.rglob("_lease"))


def test_a_collection_that_another_command_changes_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, store = tmp_path / "all", numbered(tmp_path / "a", "a")
    collecting.collect(name, [store])
    root = Root(name)
    monkeypatch.setattr(collecting, "WAIT_SECONDS", 0.2)
    changes: list[Callable[[], Any]] = [
        lambda: collecting.collect(name, [make(tmp_path / "other", 0)]),
        embedded(name, store),
        lambda: collecting.remove(root, ["a:0"]),
        lambda: collecting.compact(root),
    ]
    with LeaseHolder.take(root, "other"):
        for change in changes:
            with pytest.raises(errors.LeaseHeldError, match="Wait until it ends") as refused:
                change()
            assert "take_over" not in str(refused.value)
    assert collecting.remove(root, ["a:0"])[1] == 1


def test_a_lease_that_is_put_as_it_is_looked_for_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path / "all")
    leases = [
        Lease.of_this_process(run, local=True, patience_seconds=45.0) for run in ("first", "second")
    ]
    real = Root.get_json

    def outrun(self: Root, rel: str) -> Any:
        monkeypatch.setattr(Root, "get_json", real)
        acquire(root, leases[0])
        raise FileNotFoundError

    monkeypatch.setattr(Root, "get_json", outrun)
    with pytest.raises(errors.LeaseHeldError, match="run first"):
        acquire(root, leases[1])


def rewritten(name: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The newest version, changed by hand."""
    path = name / layout.version(versions.numbers(Root(name))[-1])
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_bytes(sealed({key: one for key, one in value.items() if key != "sha256"}))


@pytest.mark.parametrize("field", ["first_row", "n_rows"])
def test_wrong_rows_of_removed_sentences_are_found(field: str, tmp_path: Path) -> None:
    name = tmp_path / "all"
    collecting.collect(name, [numbered(tmp_path / "a", "a"), numbered(tmp_path / "b", "b")])
    collecting.remove(Root(name), ["a:2"])

    def change(value: dict[str, Any]) -> None:
        value["members"][0]["removed"][0][field] += 1
        for count in ("rows", "tokens"):
            value["store"]["counts"][count] -= field == "n_rows"
        value["store"]["sha256"] = own_sha256(value["store"])

    rewritten(name, change)
    said = "sentences 2 to 2 of member .* are removed with rows .*, but have rows 4 to 6"
    reads: list[Callable[[elmo_store.Store], Any]] = [
        lambda store: store.read(),
        lambda store: store.sentence(2).read(),
        lambda store: store.sentence(id="a:3").read(),
        lambda store: list(store),
        all_faults,
    ]
    for read in reads:
        for form in ("zarr", "parquet"):
            with pytest.raises(errors.StoreError, match=said):
                read(elmo_store.open(name, form=form))
    with pytest.raises(errors.ManifestError, match=said):
        collecting.compact(Root(name))
    from elmo_store.checking.verify import verify

    report = verify(elmo_store.open(name)._view)
    assert [fault.missing for fault in report.faults] == [False]
    assert report.objects > 0  # of the other member


@pytest.mark.parametrize("base", ["disk", "memory"])
def test_a_member_that_is_missing_or_another_s_is_named_by_readers_and_by_verify(
    base: str, tmp_path: Path
) -> None:
    from elmo_store.checking.verify import verify

    url = str(tmp_path / "all") if base == "disk" else f"memory://{os.urandom(8).hex()}"
    stores = [numbered(tmp_path / prefix, prefix) for prefix in ("a", "b", "c")]
    other = numbered(tmp_path / "other", "other")  # of the same shape
    collecting.collect(url, stores)
    store = opened(url)
    first, second, third = (
        Root(url).url(layout.member(member.name)) for member in version_of(store).members
    )
    Root(second).remove_tree()
    for rel in other._view.stores[0].root.list():
        Root(second).put(rel, other._view.stores[0].root.get(rel))
    for form in ("zarr", "parquet"):
        with pytest.raises(
            errors.StoreError, match=f"{second} is not the member that version 1 names"
        ):
            elmo_store.open(url, form=form).sentence(4).read()
    Root(first).remove_tree()
    for form in ("zarr", "parquet"):
        with pytest.raises(
            errors.ShardMissingError, match=f"{first}, a member of version 1, is missing"
        ):
            elmo_store.open(url, form=form).sentence(0).read()
        # Where sentences are is looked up for neighbours together, so the first member's absence may be named too.
        said = f"{second} is not the member that version 1 names|{first}, a member of version 1, is missing"
        with pytest.raises(errors.StoreError, match=said):
            elmo_store.open(url, form=form).sentence(4).read()
    report = verify(elmo_store.open(url)._view)
    assert [
        (fault.missing, fault.text.partition(",")[0].split()[0]) for fault in report.faults
    ] == [
        (True, first),
        (False, second),
    ]
    assert report.sentences == 4
    assert Root(third).url() == third


def test_what_a_compact_that_was_killed_left_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tmp_path / "all"
    collecting.collect(name, [numbered(tmp_path / "a", "a")])
    collecting.remove(Root(name), ["a:0"])
    report = name / "report.html"
    report.write_text("of a-0", encoding="utf-8")
    real, removed = Root.remove, list[str]()

    def killed(root: Root, *rels: str) -> None:
        real(root, *rels)
        removed.extend(rels)
        if removed[-2:] == [layout.version(1), layout.version(2)]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Root, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            collecting.compact(Root(name))
    collecting.compact(Root(name))
    assert versions.numbers(Root(name)) == [3]
    assert not report.exists()


def test_what_a_collect_that_was_killed_left_in_a_member_goes_with_the_next(tmp_path: Path) -> None:
    name, store = tmp_path / "all", numbered(tmp_path / "a", "a")
    member = name / layout.member(collecting.name_of(store.manifest.to_json()["sha256"]))
    left = member / "states.zarr" / "states" / "c" / "0" / "0" / ".writing-0.1.1-0-0~"
    left.parent.mkdir(parents=True)
    left.touch()
    os.utime(left, (0, 0))
    collecting.collect(name, [store])
    assert not list(name.rglob(".writing*"))


def bytes_below(folder: Path) -> bytes:
    """Everything that lies below a folder, half-written files too."""
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_compact_removes_a_damaged_older_version(tmp_path: Path) -> None:
    name = tmp_path / "all"
    collecting.collect(name, [numbered(tmp_path / "a", "a")])
    collecting.remove(Root(name), ["a:0"])
    (name / layout.version(1)).write_bytes(b"{}")
    assert collecting.compact(Root(name)).removed == [1, 2]
    assert ids_of(name) == ["a:1", "a:2", "a:3"]
    assert len(list((name / layout.MEMBERS).iterdir())) == 1


def test_compact_removes_nothing_that_a_damaged_version_to_keep_may_need(tmp_path: Path) -> None:
    name = tmp_path / "all"
    collecting.collect(name, [numbered(tmp_path / "a", "a")])
    collecting.remove(Root(name), ["a:0"])
    (name / layout.version(1)).write_bytes(b"{}")
    compacted = collecting.compact(Root(name), keep_versions=3)
    assert compacted.removed == []
    (line,) = compacted.undecided
    assert "versions/00000001.json is damaged" in line
    assert len(list((name / layout.MEMBERS).iterdir())) == 2


def test_compact_removes_half_written_files_beside_the_members(tmp_path: Path) -> None:
    name = tmp_path / "all"
    collecting.collect(name, [numbered(tmp_path / "a", "a")])
    collecting.remove(Root(name), ["a:0"])
    (name / ".writing-0.1.1-0-report.html~").write_text("of a-0", encoding="utf-8")
    collecting.compact(Root(name))
    assert not list(name.rglob(".writing*"))


def test_compact_removes_a_member_that_a_killed_collect_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, stores = tmp_path / "all", [numbered(tmp_path / prefix, prefix) for prefix in "ab"]
    collecting.collect(name, stores[:1])

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(versions, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            collecting.collect(name, stores[1:])
    assert len(list((name / layout.MEMBERS).iterdir())) == 2
    compacted = collecting.compact(Root(name))
    assert compacted.undecided == []
    assert len(list((name / layout.MEMBERS).iterdir())) == 1


def test_compact_says_which_member_of_a_job_it_kept(tmp_path: Path) -> None:
    name, store = tmp_path / "all", numbered(tmp_path / "b", "b")
    collecting.collect(name, [numbered(tmp_path / "a", "a")])
    embedded(name, store)  # complete, and no version names it yet
    member = name / layout.member(collecting.name_of(store.url))
    (line,) = collecting.compact(Root(name)).undecided
    assert str(member) in line
    assert "rerun the job that writes it" in line
    assert (member / layout.MANIFEST).exists()
