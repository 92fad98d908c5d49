"""A store that is open while another one takes its place: rows of the first, or a typed error, never rows of both."""

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import elmo_store
from elmo_store.errors import ShardMissingError, StoreReplacedError
from elmo_store.format import layout
from elmo_store.format.manifest import Manifest, read_manifest, write_manifest
from elmo_store.format.markers import PartGroupMarker, read_marker
from elmo_store.reading import opening, row_readers
from elmo_store.storage.data import Range
from elmo_store.storage.root import Root
from elmo_store.torch import SentenceDataset, SentenceStream
from elmo_store.writer import copy_marked
from pipeline.jobs.output import clear
from tests.store.support import Written, make_store

LENGTHS = (9,) * 24  # 216 rows in 14 shards
AGAIN = "open it again"
Look = Callable[[elmo_store.Store], Any]


def made(url: str, value: float, **settings: Any) -> Written:
    """A store whose every number is ``value``."""
    parts = (8, 8, 8)
    return make_store(
        url,
        lengths=LENGTHS,
        parts=parts,
        values=lambda n, states: np.full((n, states, 8), value),
        **settings,
    )


def overwrite(url: str, **settings: Any) -> None:
    """What ``--overwrite`` does: the store goes, and another one with as many rows takes its place."""
    clear(Root(url))
    made(url, 2.0, **settings)


@pytest.fixture(params=["local", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue('s3_url') if request.param == 's3' else 'memory:/'}/{uuid4()}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("local", {}),
        ("memory", {}),
        ("s3", {}),
        ("local", {"dtype": "int8"}),
        ("s3", {"compression": "zstd"}),
    ],
    indirect=["url"],
)
def test_rows_are_of_the_store_that_was_opened_or_an_error_says_that_it_went(
    url: str, settings: dict[str, Any]
) -> None:
    made(url, 1.0, **settings)
    stores = [elmo_store.open(url, form=form) for form in layout.FORMS]
    for store in stores:
        assert (store.sentence(0).read() == 1).all()
    overwrite(url, **settings)
    for store in stores:
        for number in range(
            3, len(LENGTHS)
        ):  # what lies in the first shards may be read on as it was, from files that stay open
            with pytest.raises(StoreReplacedError, match=AGAIN):
                store.sentence(number).read()
        with pytest.raises(StoreReplacedError, match=AGAIN):
            store.read()
        with pytest.raises(StoreReplacedError, match=AGAIN):
            list(store.batches(4))
        again = elmo_store.open(url, form=store.form)
        assert (again.read() == 2).all()


LOOKS: dict[str, Look] = {
    "tokens of a sentence": lambda store: store.sentence(3).tokens,
    "tokens of rows": lambda store: store.tokens(slice(30, 40)),
    "an id": lambda store: store.sentence(id="doc.txt:20"),
    "a text": lambda store: store.find_text([["the0"]]),
    "a selection": lambda store: store.select([20, 3]).read(),
    "two stores as one": lambda store: elmo_store.concat([store, store]).read(),
    "another process": lambda store: pickle.loads(pickle.dumps(store)).read(),
    "a dataset": lambda store: SentenceDataset(store)[5],
    "a stream": lambda store: list(SentenceStream(store)),
    "verify": lambda store: store.verify(),
}


@pytest.mark.parametrize("form", layout.FORMS)
def test_everything_that_reads_notices(form: str, tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    made(url, 1.0)
    stores = {what: elmo_store.open(url, form=form) for what in LOOKS}
    overwrite(url)
    for what, look in LOOKS.items():
        with pytest.raises(StoreReplacedError, match=AGAIN):
            pytest.fail(f"{what}: {look(stores[what])}")


@pytest.mark.slow
@pytest.mark.parametrize("form", layout.FORMS)
@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_store_that_goes_between_a_look_and_the_next_object_is_noticed(
    place: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "store") if place == "local" else f"memory://{uuid4()}"
    made(url, 1.0)
    store = elmo_store.open(url, form=form)
    assert (store.sentence(0).read() == 1).all()
    to_do = [url]

    def late() -> None:
        while to_do:
            overwrite(to_do.pop())

    opened, decoded, fetched = row_readers.mapped_file, row_readers.read_tables, Root.read_ranges

    def open_late(*arguments: Any) -> Any:
        late()
        return opened(*arguments)

    def decode_late(*arguments: Any) -> Any:
        late()
        return decoded(*arguments)

    def fetch_late(self: Root, ranges: Sequence[Range]) -> None:
        late()
        fetched(self, ranges)

    monkeypatch.setattr(row_readers, "mapped_file", open_late)
    monkeypatch.setattr(row_readers, "read_tables", decode_late)
    monkeypatch.setattr(Root, "read_ranges", fetch_late)
    with pytest.raises(StoreReplacedError, match=AGAIN):
        store.sentence(20).read()
    assert not to_do


def test_a_store_that_is_removed_is_not_called_damaged(url: str) -> None:
    made(url, 1.0)
    stores = [elmo_store.open(url, form=form) for form in layout.FORMS]
    Root(url).remove_tree()
    for store in stores:
        with pytest.raises(
            StoreReplacedError,
            match="was removed, or is being replaced, since it was opened: open it again",
        ):
            store.read()


def test_an_object_that_is_missing_from_this_store_is_said_to_be(url: str) -> None:
    made(url, 1.0)
    store = elmo_store.open(url)
    Root(url).remove(layout.zarr_states_shard(3))
    with pytest.raises(ShardMissingError):
        store.read()


def test_a_manifest_that_is_put_again_as_it_was_is_no_other_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "LOOK_SECONDS", 1e-9)
    written = made(url, 1.0)
    store = elmo_store.open(url)
    write_manifest(written.root, read_manifest(written.root))
    assert (store.read() == 1).all()


def test_an_unfinished_store_may_be_completed_and_not_replaced(url: str) -> None:
    written = made(url, 1.0)
    whole = read_manifest(written.root)
    write_manifest(written.root, replace(whole, complete=False, objects=(), checksums=None))
    store = elmo_store.open(url, incomplete_ok=True)
    assert (store.sentence(0).read() == 1).all()
    write_manifest(written.root, whole)
    assert (store.sentence(12).read() == 1).all()
    write_manifest(written.root, replace(whole, complete=False, job={"dtype": "another"}))
    with pytest.raises(StoreReplacedError, match=AGAIN):
        store.sentence(20).read()


def test_looks_elsewhere_than_on_a_local_disk_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid4()}"
    made(url, 1.0)
    store = elmo_store.open(url)
    looks: list[float] = []

    def counted(root: Root) -> Manifest:
        looks.append(time.monotonic())
        return read_manifest(root)

    monkeypatch.setattr(opening, "read_manifest", counted)
    began = time.monotonic()
    for number in range(len(LENGTHS)):
        store.sentence(number).read()
    assert len(looks) <= (time.monotonic() - began) / opening.LOOK_SECONDS + 1
    assert opening.LOOK_SECONDS < opening.REPLACE_SECONDS


def test_a_job_that_copies_from_a_store_notices(tmp_path: Path) -> None:
    url = str(tmp_path / "source")
    made(url, 1.0)
    source, _ = opening.opened_store(url)
    overwrite(url)
    for root in (source, pickle.loads(pickle.dumps(source))):
        with pytest.raises(StoreReplacedError, match=AGAIN):
            copy_marked(
                read_marker(root, PartGroupMarker, 0), root, Root(tmp_path / "target"), "plan"
            )
