"""The contract, for every form of a store and on every kind of place; compressions, boundaries, dtypes, sizes."""

from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import elmo_store
from elmo_store import writer
from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.forms import shards as forms
from elmo_store.storage.root import Root
from tests.store.contract import StoreContract
from tests.store.deep import all_faults
from tests.store.support import Written, make_store


class TestZarr(StoreContract):
    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        return make_store(str(tmp_path / "store"), store_forms=("zarr",))


class TestParquet(StoreContract):
    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        return make_store(str(tmp_path / "store"), store_forms=("parquet",), dtype="float32")


class TestBothReadAsZarr(StoreContract):
    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        return make_store(
            str(tmp_path / "store"), dtype="float32", compression="blosc", boundaries=True
        )


class TestBothReadAsParquet(StoreContract):
    form = "parquet"

    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        return make_store(str(tmp_path / "store"), compression="zstd", boundaries=True)


class Int8Contract(StoreContract):
    """What an int8 store must do besides: give what it stores."""

    @pytest.mark.parametrize("rows", [None, slice(15, 33), slice(30, 2, -3), [5, 40, 6], 17])
    def test_what_is_stored(self, store: elmo_store.Store, written: Written, rows: Any) -> None:
        wanted = written.raw
        assert wanted is not None
        assert store.is_int8
        chosen = slice(None) if rows is None else rows
        found = store.read(("bwd2", "x"), rows, raw=True)
        assert (str(found.values.dtype), str(found.scale.dtype)) == ("int8", "float32")
        np.testing.assert_array_equal(found.values, wanted.values[chosen][..., [4, 0], :])
        np.testing.assert_array_equal(found.scale, wanted.scale[chosen][..., [4, 0]])
        np.testing.assert_array_equal(found.floats(), written.states[chosen][..., [4, 0], :])

    def test_what_is_stored_of_sentences(self, store: elmo_store.Store, written: Written) -> None:
        wanted = written.raw
        assert wanted is not None
        views = [store, store[:], elmo_store.concat([store])]
        batches = [one.read_sentences([3, 2, 0], raw=True) for one in views]
        for batch in [*batches, *store.batches(3, raw=True)]:
            assert batch.scale is not None
            for number, (a, b) in zip(batch.numbers, pairwise(batch.offsets.tolist()), strict=True):
                np.testing.assert_array_equal(
                    batch.states[a:b], wanted.values[written.rows(number)]
                )
                np.testing.assert_array_equal(batch.scale[a:b], wanted.scale[written.rows(number)])

    def test_rows_of_several_stores(self, store: elmo_store.Store, written: Written) -> None:
        twice = elmo_store.concat([store, store])
        n = store.n_rows
        for found in (
            twice.read(rows=slice(n - 4, n + 5)),
            twice.read(rows=slice(n - 4, n + 5), raw=True).floats(),
        ):
            np.testing.assert_array_equal(
                found, np.concatenate([written.states[-4:], written.states[:5]])
            )


class TestInt8(Int8Contract):
    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        return make_store(str(tmp_path / "store"), dtype="int8", store_forms=("zarr",))


class TestInt8Parquet(Int8Contract):
    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        return make_store(str(tmp_path / "store"), dtype="int8", store_forms=("parquet",))


class TestInt8Compressed(Int8Contract):
    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        return make_store(
            str(tmp_path / "store"),
            dtype="int8",
            compression="blosc",
            checksum="crc32c",
            boundaries=True,
        )


class TestInt8CompressedParquet(Int8Contract):
    form = "parquet"

    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        return make_store(
            str(tmp_path / "store"), dtype="int8", compression="zstd", boundaries=True
        )


class TestInMemory(StoreContract):
    @pytest.fixture
    def written(self) -> Written:
        return make_store(f"memory://stores/{uuid4()}")


class TestInMemoryParquet(StoreContract):
    form = "parquet"

    @pytest.fixture
    def written(self) -> Written:
        return make_store(f"memory://stores/{uuid4()}")


@pytest.fixture(scope="module")
def on_s3(s3_url: str) -> Written:
    return make_store(f"{s3_url}/stores/{uuid4()}")


class TestOnS3(StoreContract):
    @pytest.fixture
    def written(self, on_s3: Written) -> Written:
        return on_s3


class TestInt8OnS3(Int8Contract):
    @pytest.fixture
    def written(self, s3_url: str) -> Written:
        return make_store(f"{s3_url}/stores/{uuid4()}", dtype="int8", store_forms=("zarr",))


class TestOnS3Parquet(StoreContract):
    form = "parquet"

    @pytest.fixture
    def written(self, on_s3: Written) -> Written:
        return on_s3


FORMS = pytest.mark.parametrize("form", layout.FORMS)


@FORMS
@pytest.mark.parametrize("lengths", [(), (0, 0), (1,)])
def test_stores_of_next_to_nothing(tmp_path: Path, form: str, lengths: tuple[int, ...]) -> None:
    written = make_store(
        str(tmp_path / "store"), lengths=lengths, parts=(len(lengths),) if lengths else ()
    )
    store = elmo_store.open(tmp_path / "store", form=form)
    assert (len(store), store.n_rows) == (len(lengths), sum(lengths))
    np.testing.assert_array_equal(store.read(), written.states)
    assert store.tokens() == written.row_tokens
    assert [s.n_rows for s in store] == list(lengths)
    assert sum(len(batch) for batch in store.batches()) == len(lengths)
    assert store.verify().sentences == len(lengths)


@pytest.mark.slow
@FORMS
@pytest.mark.parametrize(
    "settings",
    [
        {"shard_rows": 1},
        {"shard_rows": 1024, "lengths": (700, 0, 900, 1500), "parts": (2, 2)},
        {
            "shard_rows": 4096,
            "lengths": (3000, 2500),
            "parts": (1, 1),
            "compression": "blosc",
            "boundaries": True,
        },
    ],
)
def test_other_sizes_of_shards(tmp_path: Path, form: str, settings: dict[str, Any]) -> None:
    written = make_store(str(tmp_path / "store"), **settings)
    store = elmo_store.open(tmp_path / "store", form=form)
    np.testing.assert_array_equal(store.read(), written.states)
    middle = slice(store.n_rows // 3, store.n_rows // 3 + 700)
    np.testing.assert_array_equal(store.read("fwd2", middle), written.states[middle][:, [3]])
    for batch in store.batches(2):
        for sentence, rows in batch:
            np.testing.assert_array_equal(rows, written.states[written.rows(sentence.index)])
    assert store.verify().shards == written.manifest.sizes.shards


@FORMS
def test_zeros_and_their_signs_come_back(tmp_path: Path, form: str) -> None:
    from tests.store.support import write_shard

    written = make_store(str(tmp_path / "store"))
    zeros = np.zeros_like(written.states)
    zeros[::2] = -0.0
    for shard in range(written.manifest.sizes.shards):
        write_shard(
            written.root, written.manifest, shard, zeros, written.row_tokens, written.sentence, written.index
        )  # fmt: skip
    found = elmo_store.open(tmp_path / "store", form=form).read()
    assert found.tobytes() == zeros.tobytes()


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = make_store(str(tmp_path / "one")), make_store(str(tmp_path / "two"))
    names = one.root.list()
    assert names == two.root.list()
    assert all(one.root.get(name) == two.root.get(name) for name in names)


def test_the_last_shard_is_no_larger_than_its_rows(tmp_path: Path) -> None:
    written = make_store(
        str(tmp_path / "store"), shard_rows=8192, lengths=(700,), parts=(1,), channels=16
    )
    size = written.root.size(layout.zarr_states_shard(0)) or 0
    chunk = layout.CHUNK_ROWS * 16 * 2
    index = 16 * (8192 // layout.CHUNK_ROWS) * 5 + 4
    assert size == 6 * 5 * chunk + index  # six inner chunks of five states, not 64


def test_a_long_way_down_the_ids(tmp_path: Path) -> None:
    make_store(str(tmp_path / "store"), lengths=(1,) * 300, parts=(0, 100, 0, 0, 150, 50))
    store = elmo_store.open(tmp_path / "store")
    assert [store.sentence(id=f"doc.txt:{i}").index for i in (299, 0, 100, 250)] == [
        299,
        0,
        100,
        250,
    ]
    assert [store.sentence(i).id for i in (299, 100, 99)] == [
        "doc.txt:299",
        "doc.txt:100",
        "doc.txt:99",
    ]


def test_the_form_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    make_store(str(tmp_path / "store"), store_forms=("zarr",))
    with pytest.raises(elmo_store.errors.StoreError, match="has no parquet form: it has zarr"):
        elmo_store.open(tmp_path / "store", form="parquet")


def test_relative_folders_are_found_after_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_store("store")
    store = elmo_store.open("store")
    monkeypatch.chdir("/")
    assert store.sentence(0).read().shape[0] == 3


def test_of_two_views_written_to_one_place_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = elmo_store.open(make_store(str(tmp_path / "store")).root.url())
    real, begun = Root.list, list[bool]()

    def look_and_be_overtaken(self: Root, prefix: str = "") -> list[str]:
        found = real(self, prefix)
        if not begun:
            begun.append(True)
            store.select([3]).write(tmp_path / "out")
        return found

    monkeypatch.setattr(Root, "list", look_and_be_overtaken)
    with pytest.raises(StoreError, match="is not empty"):
        store.select([0, 1]).write(tmp_path / "out")
    written = elmo_store.open(tmp_path / "out")
    assert np.array_equal(written.read(), store.sentence(3).read())
    assert not (tmp_path / "out/_lease").exists()


def test_an_interrupted_write_of_a_view_is_finished_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = elmo_store.open(make_store(str(tmp_path / "store")).root.url())
    view, out = store.select([6, 3]), tmp_path / "out"
    whole = view.write(tmp_path / "whole", shard_rows=4)
    real, n_shards = forms.encode_shard, 0

    def stop_at_the_third(*arguments: Any) -> Any:
        nonlocal n_shards
        n_shards += 1
        if n_shards == 3:
            raise OSError("injected")
        return real(*arguments)

    monkeypatch.setattr(forms, "encode_shard", stop_at_the_third)
    with pytest.raises(OSError, match="injected"):
        view.write(out, shard_rows=4)
    with pytest.raises(StoreError, match=r"unfinished store .* \(dtype\): give another folder"):
        view.write(out, shard_rows=4, dtype="float32")
    with pytest.raises(
        StoreError, match=r"unfinished store .* \(input, job\): give another folder"
    ):
        store.select([3, 6]).write(out, shard_rows=4)
    written = view.write(out, shard_rows=4)
    assert n_shards == whole.manifest.sizes.shards + 1  # the two that were finished were kept
    assert written.manifest == whole.manifest
    assert all_faults(written) == []
    np.testing.assert_array_equal(written.read(), view.read())


@pytest.mark.parametrize(
    "rel", ["states.zarr/states/c/0/0/0", "_shards/00000.json", "states.zarr/zarr.json"]
)
def test_what_an_interrupted_write_left_damaged_is_written_again(
    rel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = elmo_store.open(make_store(str(tmp_path / "store")).root.url())
    view, out = store.select([6, 3]), tmp_path / "out"

    def stop(*_: Any) -> None:
        raise OSError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(writer, "complete_store", stop)
        with pytest.raises(OSError, match="injected"):
            view.write(out)
    (out / rel).write_bytes(b"x" * (out / rel).stat().st_size)
    assert all_faults(view.write(out)) == []
