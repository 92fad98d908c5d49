"""Every way to rows gives the same; files that vanish, are cut or flipped, and a full table of open files, are errors by name."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store.errors import ShardCorruptError, ShardMissingError
from elmo_store.format import layout
from elmo_store.reading import row_readers, sentences
from elmo_store.reading.row_readers import ByParquet, ByZarr, Mapped, Ranged
from elmo_store.reading.sentences import Starts, Texts
from elmo_store.storage.parquet_files import check_groups
from tests.store.support import Written, make_store

SHAPE: dict[str, Any] = {
    "lengths": (30, 0, 5, 70, 1, 40),
    "parts": (2, 4),
    "shard_rows": 32,
    "chunk_rows": 8,
}
WAYS: dict[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "mapped": (Mapped, {}, {}),
    "ranged": (Ranged, {}, {"mapped": False}),
    "by zarr": (ByZarr, {"compression": "zstd", "checksum": "crc32c"}, {}),
    "by parquet": (ByParquet, {}, {"form": "parquet"}),
}


@pytest.fixture(scope="module", params=["float16", "int8"])
def ways(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> list[tuple[elmo_store.Store, Written]]:
    stores = []
    for name, (kind, settings, options) in WAYS.items():
        written = make_store(
            str(tmp_path_factory.mktemp("ways") / name), dtype=request.param, **SHAPE, **settings
        )
        store = elmo_store.open(written.root.url(), **options)
        assert type(store._view.stores[0]._readers.rows) is kind
        stores.append((store, written))
    remote = make_store(f"memory://{uuid4()}", dtype=request.param, **SHAPE)
    return [*stores, (elmo_store.open(remote.root.url()), remote)]


SPANS = st.lists(
    st.tuples(st.integers(0, 145), st.integers(0, 80)).map(lambda p: (p[0], min(146, sum(p)))),
    max_size=6,
)


@given(spans=SPANS, states=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_any_spans_of_any_states(
    ways: list[tuple[elmo_store.Store, Written]], spans: list[tuple[int, int]], states: list[int]
) -> None:
    for store, written in ways:
        rows = [row for first, stop in spans for row in range(first, stop)]
        np.testing.assert_array_equal(
            store._view.read_spans(states, spans), written.states[rows][:, states]
        )
        if written.raw is not None:
            values, scale = store._view.read_spans(states, spans, raw=True)
            np.testing.assert_array_equal(values, written.raw.values[rows][:, states])
            np.testing.assert_array_equal(scale, written.raw.scale[rows][:, states])


@pytest.mark.slow
def test_views_are_read_only_and_outlive_the_store(
    ways: list[tuple[elmo_store.Store, Written]],
) -> None:
    for store, written in ways:
        for number in range(len(store)):
            for states in (None, "fwd1", ("bwd2", "x")):
                read = (
                    elmo_store.open(store.url, form=store.form, mapped=store._view.stores[0].mapped)
                    .sentence(number)
                    .read(states, copy=False)
                )
                np.testing.assert_array_equal(read, store.sentence(number).read(states))
                assert not read.flags.writeable
        view = store.sentence(0).read(copy=False)
        mapped = isinstance(store._view.stores[0]._readers.rows, Mapped) and not store.is_int8
        assert np.shares_memory(view, store.sentence(0).read(copy=False)) == mapped
        np.testing.assert_array_equal(view, written.states[:30])


@pytest.mark.parametrize(
    ("settings", "options"), [(way[1], way[2]) for way in WAYS.values()], ids=list(WAYS)
)
def test_files_that_vanish_or_are_cut(
    tmp_path: Path, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    written = make_store(str(tmp_path / "store"), **SHAPE, **settings)
    rel = layout.states_part(1) if "form" in options else layout.zarr_states_shard(1)
    whole = written.root.get(rel)
    cuts = [0, 7, len(whole) // 2, len(whole) - 1]
    for keep in cuts[
        : 3 if "mapped" in options else 4
    ]:  # by ranges, a shard's index is not asked for
        written.root.put(rel, whole[:keep])
        with pytest.raises(ShardCorruptError, match=rel):
            elmo_store.open(written.root.url(), **options).read()
    written.root.remove(rel)
    with pytest.raises(ShardMissingError, match=rel):
        elmo_store.open(written.root.url(), **options).read()


def test_row_groups_follow_each_other_in_steps_of_one_size(tmp_path: Path) -> None:
    """So a row's and a sentence's place in a file is known without its footer; other row groups are refused by name."""
    written = make_store(
        str(tmp_path / "s"),
        store_forms=("parquet",),
        lengths=(1,) * 2500,
        parts=(2500,),
        shard_rows=640,
    )
    store, places = elmo_store.open(tmp_path / "s"), [0, 1023, 1024, 2499]
    for first, stop in ((0, 2500), (255, 257), (639, 1200), (2304, 2500), (7, 7)):
        np.testing.assert_array_equal(
            store._view.read_span(range(5), first, stop), written.states[first:stop]
        )
    assert store._view.texts(places)[1] == [tuple(written.tokens[place]) for place in places]
    for rel in (layout.sentences_part(0), layout.states_part(1)):
        pq.write_table(
            pq.read_table(tmp_path / "s" / rel), tmp_path / "s" / rel, row_group_size=250
        )
        store = elmo_store.open(tmp_path / "s")
        with pytest.raises(ShardCorruptError, match=f"{rel} has .* row groups, not .*: restore it"):
            (store.sentence(700).read(), store._view.texts([0]))
    with pytest.raises(
        ShardCorruptError,
        match=r"a has 2500 rows, 2500 in 10 row groups, not 10+ in groups of 250: restore it",
    ):
        check_groups("a", pq.read_metadata(tmp_path / "s" / layout.sentences_part(0)), 10**18, 250)


@pytest.fixture
def few_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_a_full_table_of_open_files(tmp_path: Path) -> None:
    """Mapped shards keep no file open; a shard that can't be opened is named. Afterwards the store is read on."""
    written = make_store(str(tmp_path / "store"), lengths=(4,) * 200, parts=(200,), shard_rows=4)
    store = elmo_store.open(tmp_path / "store")
    store._view.spans(range(200))
    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        for _ in range(used):  # no number below is free
            opened.enter_context(open(os.devnull))
            if len(list(Path("/proc/self/fd").iterdir())) > used + 20:
                break
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard)
        )
        with pytest.raises(OSError, match=layout.ZARR) as caught:
            store.read()
        assert caught.value.errno == errno.EMFILE
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
    np.testing.assert_array_equal(store.read(), written.states)  # two hundred shards


def test_maps_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_readers, "MAPS_KEPT", 16)
    written = make_store(str(tmp_path / "store"), lengths=(4,) * 100, parts=(100,), shard_rows=4)
    store = elmo_store.open(tmp_path / "store")
    np.testing.assert_array_equal(store.read(), written.states)
    maps = Path("/proc/self/maps").read_text()
    assert 0 < maps.count(str(tmp_path)) <= 16
    del store
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_more_starts_than_are_kept_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "START_BYTES", 8 * 10 * 3)  # three chunks of ten
    asked: list[int] = []

    def read(chunks: list[int]) -> list[Any]:
        asked.extend(chunks)
        return [np.arange(10 * chunk, 10 * chunk + 10) * 2 for chunk in chunks]

    starts = Starts("here", 95, 190, 10, read)
    for number in (3, 9, 50, 94, 3, 49, 20, 3):
        assert starts.span(number) == (2 * number, 2 * number + 2)
    assert asked == [0, 1, 5, 9, 0, 4, 5, 2, 0]
    np.testing.assert_array_equal(
        starts.spans(range(95)), np.stack([np.arange(95) * 2, np.arange(1, 96) * 2], axis=1)
    )


WORDS = st.text(st.characters(exclude_categories=["Cs"]) | st.just("\0"), max_size=3)


@given(st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=5)), max_size=8))
def test_ids_and_tokens_come_back(sentences: list[tuple[str, list[str]]]) -> None:
    import pyarrow as pa

    ids, tokens = ([own[i] for own in sentences] for i in (0, 1))
    table = pa.table(
        {"id": pa.array(ids, pa.string()), "tokens": pa.array(tokens, pa.list_(pa.string()))}
    )
    for first in (0, 1):
        texts = Texts(table.slice(first))
        part = sentences[first:]
        assert [texts[place] for place in range(len(part))] == [
            (sentence_id, tuple(own)) for sentence_id, own in part
        ]
