"""Collections: several stores as one, version by version."""

import gc
import itertools
import json
import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elmo_store
from elmo_store import collecting, errors
from elmo_store.format import layout
from elmo_store.reading import sentences
from elmo_store.storage.root import Root
from elmo_store.torch import SentenceDataset, collate
from tests.buckets import CLIENTS, bucket_root
from tests.store import support
from tests.store.deep import all_faults
from tests.store.support import version_of

SIZES = ((3, 7, 0, 21, 1, 0, 12, 5), (4, 0, 9), (0, 0, 2), (30, 1, 1, 0, 6))


@pytest.fixture
def stores(tmp_path: Path) -> list[elmo_store.Store]:
    """Four stores of different sentences, two of them laid out otherwise than the others."""
    return [make(tmp_path / f"store-{number}", number) for number in range(len(SIZES))]


def make(folder: Path, number: int, **settings: Any) -> elmo_store.Store:
    """One of the stores; its sentences have ids and tokens of its own."""
    shapes: dict[int, dict[str, Any]] = {
        1: {"shard_rows": 32, "sentence_chunk": 2},
        2: {"chunk_rows": 8},
    }
    shape = shapes.get(number, {})
    random = np.random.default_rng(number)
    support.make_store(
        str(folder), lengths=SIZES[number], parts=(len(SIZES[number]),),
        values=lambda rows, states: random.standard_normal((rows, states, 8)), **(shape | settings),
    )  # fmt: skip
    return elmo_store.open(folder)


def opened(name: Path | str, **options: Any) -> elmo_store.Store:
    collection = elmo_store.open(name, **options)
    assert collection.version is not None
    return collection


def check_same(store: Any, one: Any) -> None:
    """A collection reads as the view ``one`` does."""
    assert (store.n_sentences, store.n_rows, store.n_tokens) == (
        one.n_sentences,
        one.n_rows,
        one.n_tokens,
    )
    np.testing.assert_array_equal(store.read(), one.read())
    assert store.tokens() == one.tokens()
    assert [s.record for s in store] == [s.record for s in one.sentences()]
    columns = ["sentence", "id", "first_row", "n_tokens"]
    assert store.table(columns).to_pylist() == one.table(columns).to_pylist()
    assert store.table(columns, [2, 0, 2]).to_pylist() == one.table(columns, [2, 0, 2]).to_pylist()
    order = np.random.default_rng(0).permutation(store.n_sentences)
    ours, theirs = store.read_sentences(order), one.read_sentences(order)
    np.testing.assert_array_equal(ours.states, theirs.states)
    np.testing.assert_array_equal(ours.spans, theirs.spans)
    batch = collate(SentenceDataset(store, text=False).__getitems__(order.tolist()))
    padded = collate([SentenceDataset(one, text=False)[number] for number in order])
    assert all(np.array_equal(batch[name], padded[name]) for name in ("states", "mask"))
    rows = np.random.default_rng(1).permutation(store.n_rows)
    np.testing.assert_array_equal(store.read(["fwd1"], rows), one.read(["fwd1"], rows))
    ids = [sentence.id for sentence in store]
    for number in range(store.n_sentences):
        assert store.sentence(number).span == one.sentence(number).span
        np.testing.assert_array_equal(store.sentence(number).read(), one.sentence(number).read())
        record = one.sentence(number).record
        same_id = [index for index, sentence_id in enumerate(ids) if sentence_id == record.id]
        if len(same_id) == 1:
            assert store.sentence(id=record.id).index == number
        else:  # members may repeat ids
            with pytest.raises(errors.AmbiguousIdError) as told:
                store.sentence(id=record.id)
            assert told.value.numbers == same_id
        assert store.find_text([record.tokens]) == one.find_text([record.tokens])
    for ours, theirs in zip(store.batches(3), one.batches(3), strict=True):
        np.testing.assert_array_equal(ours.states, theirs.states)


def test_a_collection_reads_as_its_stores_one_after_the_other(
    tmp_path: Path, stores: list[elmo_store.Store]
) -> None:
    name = tmp_path / "all"
    assert collecting.collect(name, stores[:2]).number == 1
    assert collecting.collect(name, stores[2:]).number == 2
    assert collecting.collect(name, stores).number == 2  # all of them are there
    whole = elmo_store.open(name)
    check_same(whole, elmo_store.concat(stores))
    check_same(pickle.loads(pickle.dumps(whole)), elmo_store.concat(stores))
    check_same(elmo_store.open(name, version=1), elmo_store.concat(stores[:2]))
    check_same(elmo_store.open(name, form="parquet"), elmo_store.concat(stores))
    with pytest.raises(errors.StoreNotFoundError, match=r"no version 3 .* it has 1 to 2"):
        elmo_store.open(name, version=3)


def test_members_agree_and_what_differs_is_told_field_by_field(
    tmp_path: Path, stores: list[elmo_store.Store]
) -> None:
    name = tmp_path / "all"
    collecting.collect(name, stores[:1])
    before = sorted(name.rglob("*"))
    other = make(tmp_path / "other", 1, dtype="float32", boundaries=True, channels=8)
    with pytest.raises(errors.MemberMismatchError) as refused:
        collecting.collect(name, [stores[1], other])
    assert refused.value.fields == {"dtype": ("float16", "float32"), "boundaries": (False, True)}
    assert "dtype: 'float16' there, 'float32' here" in str(refused.value)
    assert sorted(name.rglob("*")) == before
    with pytest.raises(errors.StoreError, match="not a collection"):
        collecting.collect(tmp_path / "other", stores)
    with pytest.raises(errors.OverlapError):
        collecting.collect(
            name, [elmo_store.open(name / layout.MEMBERS / os.listdir(name / layout.MEMBERS)[0])]
        )
    with pytest.raises(errors.StoreError, match="collect stores that are complete, one by one"):
        collecting.collect(tmp_path / "more", [elmo_store.open(name)])


def test_a_plain_store_is_no_collection_to_forget_from(
    tmp_path: Path, stores: list[elmo_store.Store]
) -> None:
    for url, says in (
        (stores[0].url, "is a store, not a collection: elmo-store collect"),
        (f"{tmp_path}/x", "no collection at"),
    ):
        with pytest.raises(errors.StoreNotFoundError, match=says):
            collecting.remove(Root(url), ["a"])
        with pytest.raises(errors.StoreNotFoundError, match=says):
            collecting.compact(Root(url))


def test_a_store_that_was_collected_stays_and_shares_its_objects(
    tmp_path: Path, stores: list[elmo_store.Store]
) -> None:
    collecting.collect(tmp_path / "all", stores[:1])
    (member,) = (tmp_path / "all" / layout.MEMBERS).iterdir()
    shard = "states.zarr/states/c/0/0/0"
    assert (member / shard).samefile(tmp_path / "store-0" / shard)
    shutil.rmtree(tmp_path / "store-0")
    assert all_faults(elmo_store.open(tmp_path / "all")) == []
    assert elmo_store.open(tmp_path / "all").verify().shards == 4


def test_a_member_that_is_another_store_is_no_row_of_the_collection(
    tmp_path: Path, stores: list[elmo_store.Store]
) -> None:
    name = tmp_path / "all"
    collecting.collect(name, stores[:2])
    first = name / layout.MEMBERS / collecting.name_of(stores[0].manifest.to_json()["sha256"])
    shutil.copyfile(tmp_path / "store-1" / layout.MANIFEST, first / layout.MANIFEST)
    with pytest.raises(errors.ShardCorruptError, match="is not the member that version 1 names"):
        elmo_store.open(name).verify().raise_faults("")


def test_many_who_append_at_once_end_one_after_the_other(tmp_path: Path) -> None:
    sizes = range(3, 11)
    for n in sizes:
        support.make_store(str(tmp_path / f"store-{n}"), lengths=(n, 1), parts=(2,))
    name, seen = tmp_path / "all", set()

    def append(n: int) -> int:
        version = collecting.collect(name, [elmo_store.open(tmp_path / f"store-{n}")])
        seen.add(elmo_store.open(name).n_sentences)  # whole, whatever the others do
        return version.number

    with ThreadPoolExecutor(len(sizes)) as pool:
        numbers = sorted(pool.map(append, sizes))
    assert numbers == list(range(1, len(sizes) + 1))
    assert [len(version_of(opened(name, version=n)).members) for n in numbers] == numbers
    assert seen <= {2 * n for n in numbers}


@pytest.mark.parametrize("form", ["zarr", "parquet"])
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_collections_in_memory_and_in_eight_bits(form: str, dtype: str) -> None:
    base = f"memory://{os.urandom(8).hex()}"
    for n in (3, 30):
        support.make_store(
            f"{base}/{n}", lengths=(n, 1, 9), parts=(3,), dtype=dtype, shard_rows=16 if n > 3 else 8
        )
    parts = [elmo_store.open(f"{base}/{n}", form=form) for n in (3, 30)]
    collecting.collect(f"{base}/all", parts)
    whole, one = elmo_store.open(f"{base}/all", form=form), elmo_store.concat(parts)
    check_same(whole, one)
    if dtype == "int8":
        order = np.array([5, 0, 3, 1])
        for ours, theirs in zip(
            whole.read(None, order, raw=True), one.read(None, order, raw=True), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    assert all_faults(whole) == []


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_a_collection_in_a_bucket_grows_forgets_and_is_compacted(
    client: str, request: pytest.FixtureRequest, stores: list[elmo_store.Store]
) -> None:
    root = bucket_root(request, client)
    options = root.storage_options
    for store in stores:
        collecting.collect(str(root), [store], storage_options=options)
    whole = elmo_store.open(str(root), storage_options=options)
    check_same(whole, elmo_store.concat(stores))
    gone, kept = whole.sentence(1).id, [sentence.id for sentence in whole.sentences()]
    collecting.remove(root, [gone])
    left = elmo_store.open(str(root), storage_options=options)
    assert [sentence.id for sentence in left.sentences()] == [name for name in kept if name != gone]
    rows = left.read()
    collecting.compact(root)
    compacted = elmo_store.open(str(root), storage_options=options)
    np.testing.assert_array_equal(compacted.read(), rows)
    assert all_faults(compacted) == []


def test_to_xarray(tmp_path: Path, stores: list[elmo_store.Store]) -> None:
    collecting.collect(tmp_path / "all", stores)
    whole = elmo_store.open(tmp_path / "all")
    data = whole.to_xarray()
    np.testing.assert_array_equal(data.states.values, whole.read())
    assert data.token.values.tolist() == whole.tokens()
    assert data.sentence_start.values.tolist() == [*(s.first_row for s in whole), whole.n_rows]
    assert list(data.state.values) == list(whole.states)


def test_what_reads_takes_a_collection(tmp_path: Path, stores: list[elmo_store.Store]) -> None:
    from elmo_store.figures.gather import gather
    from elmo_store.torch import SentenceDataset, SentenceStream

    collecting.collect(tmp_path / "all", stores)
    whole, one = elmo_store.open(tmp_path / "all"), elmo_store.concat(stores)
    ours, theirs = SentenceDataset(whole)[9], SentenceDataset(one)[9]
    assert (ours["id"], ours["tokens"]) == (theirs["id"], theirs["tokens"])
    np.testing.assert_array_equal(ours["states"], theirs["states"])
    streamed = [
        number for batch in SentenceStream(whole, batch_sentences=4) for number in batch["index"]
    ]
    assert sorted(streamed) == list(range(len(one)))
    check_same(whole[2:15].write(tmp_path / "some"), whole[2:15])
    check_same(whole.select([12, 3, 4]).write(tmp_path / "few"), whole.select([12, 3, 4]))
    figures = gather(whole._view)
    assert figures.manifest.sizes.sentences == len(one)
    assert sum(figures.refused.values()) == sum(store.manifest.sizes.rejected for store in stores)


class KilledError(BaseException):
    """What ends a process, as far as its files go: nothing is written, moved or removed after it."""


def killed_at(moment: int, work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether ``work`` came to its ``moment``-th change of a file, at which it is killed, in the middle of it."""
    changes = itertools.count()

    def dies(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(root: Root, *what: Any, **options: Any) -> Any:
            number = next(changes)
            if number == moment and change.__name__ == "remove":
                change(root, *what[: len(what) // 2])
            if number >= moment:
                raise KilledError
            return change(root, *what, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("put", "put_new", "remove", "remove_empty"):
            patch.setattr(Root, name, dies(getattr(Root, name)))
        try:
            work()
        except KilledError:
            return True
    return False


def contents(folder: Path) -> dict[str, Any]:
    """What lies there; of versions without the time, of markers without what is of one run."""
    held: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data: Any = path.read_bytes()
        if path.parent.name == layout.VERSIONS:
            data = {
                name: one
                for name, one in json.loads(data).items()
                if name not in ("written", "sha256")
            }
        elif path.parent.name in (layout.SHARDS, layout.PART_GROUPS, layout.IDS):
            data = {
                name: one
                for name, one in json.loads(data).items()
                if name not in ("stats", "sha256")
            }
        held[str(path.relative_to(folder))] = data
    return held


def by_place(folder: Path) -> dict[str, Any]:
    """`contents`, members called by their place in the newest version: `compact` names them anew in each attempt."""
    held = contents(folder)
    newest = held[max(rel for rel in held if rel.startswith(f"{layout.VERSIONS}/"))]
    places = {member["name"]: f"member {i}" for i, member in enumerate(newest["members"])}
    for member in newest["members"]:
        member["name"] = places[member["name"]]
    for name in ("input", "job", "checksums", "sha256"):  # hashes of the names, among others
        del newest["store"][name]
    renamed = {}
    for rel, data in held.items():
        folder_name, _, rest = rel.removeprefix(f"{layout.MEMBERS}/").partition("/")
        renamed[f"{places.get(folder_name, folder_name)}/{rest}"] = data
    return renamed


@pytest.mark.parametrize("command", ["collect", "remove", "compact"])
@pytest.mark.parametrize(("first", "step"), [(0, 29), pytest.param(0, 1, marks=pytest.mark.slow)])
def test_killed_at_any_moment_the_newest_version_is_whole_and_the_same_command_continues(
    command: str,
    first: int,
    step: int,
    tmp_path: Path,
    stores: list[elmo_store.Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = tmp_path / "base"
    collecting.collect(base, stores[:2])
    ids = [stores[0][number].id for number in (1, 3, 6)]
    if command == "compact":
        collecting.remove(Root(base), ids)
    works: dict[str, Callable[[Path], Any]] = {
        "collect": lambda name: collecting.collect(name, stores[2:3]),
        "remove": lambda name: collecting.remove(Root(name), ids),
        "compact": lambda name: collecting.compact(Root(name)),
    }
    done = tmp_path / "done"
    shutil.copytree(base, done)
    works[command](done)
    sentences = {
        elmo_store.open(name).n_sentences: elmo_store.open(name).read() for name in (base, done)
    }
    for moment in itertools.count(first, step):
        name = tmp_path / str(moment)
        shutil.copytree(base, name)
        killed = killed_at(moment, partial(works[command], name), monkeypatch)
        left = name / layout.VERSIONS / ".writing-0.1.1-0-x~"  # of a process that ended
        left.touch()
        os.utime(left, (0, 0))
        newest = elmo_store.open(name)
        np.testing.assert_array_equal(newest.read(), sentences[newest.n_sentences])
        for lease in name.rglob("_lease"):
            shutil.rmtree(lease)  # a process that died holds none
        works[command](name)
        assert by_place(name) == by_place(done), f"killed at change {moment}"
        shutil.rmtree(name)
        if not killed:
            break
    assert moment > 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed in /proc")
def test_files_are_closed_with_the_store_that_read_them(
    tmp_path: Path, stores: list[elmo_store.Store]
) -> None:
    collecting.collect(tmp_path / "all", stores)
    gc.disable()
    try:
        for url in (stores[0].url, tmp_path / "all"):
            for form in ("zarr", "parquet"):
                store = elmo_store.open(url, form=form)
                store.read()
                assert bool(open_files(tmp_path)) == (
                    form == "zarr"
                )  # pyarrow closes a file when it has read it
                del store
                assert open_files(tmp_path) == []
    finally:
        gc.enable()


def open_files(folder: Path) -> list[str]:
    with os.scandir("/proc/self/fd") as entries:
        names = [os.path.realpath(entry.path) for entry in entries]
    names += [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return [name for name in names if name.startswith(str(folder))]


def test_members_in_other_forms_are_read_and_those_without_one_in_common_are_refused(
    tmp_path: Path,
) -> None:
    forms: dict[str, tuple[str, ...]] = {
        "both": ("zarr", "parquet"),
        "zarr": ("zarr",),
        "parquet": ("parquet",),
    }
    made = {
        name: make(tmp_path / name, number, store_forms=own)
        for number, (name, own) in enumerate(forms.items())
    }
    for number, steps in enumerate(
        ([["both", "zarr"]], [["both"], ["zarr"]], [["zarr"], ["both"]])
    ):
        name = tmp_path / f"all-{number}"
        for step in steps:
            collecting.collect(str(name), [made[form] for form in step])
        check_same(opened(name), elmo_store.concat([made[form] for step in steps for form in step]))
        assert all_faults(opened(name)) == []
    with pytest.raises(errors.StoreError, match="no form in common"):
        collecting.collect(str(tmp_path / "none"), [made["both"], made["zarr"], made["parquet"]])
    assert not (tmp_path / "none/versions").exists()


def test_a_version_that_readers_would_refuse_is_not_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tmp_path / "all"
    collecting.collect(str(name), [make(tmp_path / "store", 0)])
    size = (name / "versions/00000001.json").stat().st_size
    monkeypatch.setattr("elmo_store.format.version.MOST_JSON_BYTES", size + 10)
    with pytest.raises(errors.StoreError, match="remove fewer sentences at a time"):
        collecting.remove(Root(str(name)), [opened(name).sentence(3).id])
    assert version_of(opened(name)).number == 1


def test_a_store_whose_files_are_links_is_collected_whole_and_one_with_a_linked_folder_is_refused(
    tmp_path: Path,
) -> None:
    store = make(tmp_path / "store", 0, store_forms=("zarr", "parquet"))
    linked = tmp_path / "linked"
    for path in sorted((tmp_path / "store").rglob("*")):
        to = linked / path.relative_to(tmp_path / "store")
        if path.is_dir():
            to.mkdir(parents=True)
        else:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.symlink_to(os.path.relpath(path, to.parent))
    assert all_faults(elmo_store.open(linked)) == []
    collecting.collect(str(tmp_path / "all"), [elmo_store.open(linked)])
    shutil.rmtree(linked)
    check_same(opened(tmp_path / "all"), store)
    shutil.copytree(tmp_path / "store", linked)
    shutil.move(linked / "states.zarr", tmp_path / "elsewhere")
    (linked / "states.zarr").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.ShardMissingError, match="below a link"):
        collecting.collect(str(tmp_path / "other"), [elmo_store.open(linked)])
    assert not (tmp_path / "other/versions").exists()


def test_a_collection_keeps_as_much_text_as_one_store(
    tmp_path: Path, stores: list[elmo_store.Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    collecting.collect(str(tmp_path / "all"), stores)
    collection = opened(tmp_path / "all")
    list(collection.sentences())
    tables = [
        store._readers.sentences for store in collection._view.stores if "_readers" in vars(store)
    ]
    assert len(tables) > 1
    assert sum(table._kept._most for table in tables) <= sentences.TEXT_BYTES
