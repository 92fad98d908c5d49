"""A reader fetches what it was asked for: one state does not cost the others. Counted in the filesystem."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

import elmo_store
from elmo_store.format import layout
from elmo_store.reading import opening
from elmo_store.storage.filesystems import OBSTORE
from tests.store.support import Written, make_store

FOOTER = (
    75_000  # pyarrow reads the last 64 KiB of a file for its footer; pages and indices come on top
)


class _CountingFile(MemoryFile):
    def read(self, size: int = -1) -> bytes:
        data: bytes = super().read(size)
        CountingFileSystem.fetched[self.path] += len(data)
        return data


class CountingFileSystem(MemoryFileSystem):
    """A filesystem in memory that counts the bytes that leave it."""

    protocol = ("counting", "memory")
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fetched: ClassVar[Counter[str]] = Counter()
    requests: ClassVar[int] = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.removeprefix("counting://")))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        data: bytes = self.store[self._find(path)].getvalue()[start:end]
        CountingFileSystem.requests += 1
        self.fetched[self._find(path)] += len(data)
        return data

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            return super()._open(path, mode, **kwargs)
        file = _CountingFile(self, self._find(path))
        file.write(self.store[self._find(path)].getvalue())
        file.seek(0)
        return file

    def _find(self, path: str) -> str:
        path = self._strip_protocol(path)
        if path not in self.store:
            raise FileNotFoundError(path)
        return path


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    monkeypatch.setattr(
        opening, "LOOK_SECONDS", 1e9
    )  # looks at the manifest are counted in test_replaced, not by the clock here
    fsspec.register_implementation("counting", CountingFileSystem, clobber=True)
    CountingFileSystem.fetched.clear()
    yield CountingFileSystem.fetched
    CountingFileSystem.store.clear()


def _store(form: str, fetched: Counter[str]) -> Written:
    written = make_store(
        f"counting://{uuid4()}",
        forms=(form,),
        lengths=(900,) * 10,
        parts=(2, 3, 5),
        shard_rows=4096,
        channels=64,
    )
    fetched.clear()
    return written


def _vectors(fetched: Counter[str]) -> int:
    return sum(n for name, n in fetched.items() if "/states/" in name)


@pytest.mark.parametrize("form", layout.FORMS)
def test_opening_reads_the_manifest_only(form: str, fetched: Counter[str]) -> None:
    written = _store(form, fetched)
    store = elmo_store.open(written.root.url())
    assert len(store) == 10
    assert store["fwd1"].shape == (9000, 64)
    assert [name.rpartition("/")[2] for name in fetched] == [layout.MANIFEST]


@pytest.mark.parametrize("form", layout.FORMS)
def test_one_state_does_not_cost_the_others(form: str, fetched: Counter[str]) -> None:
    written = _store(form, fetched)
    store = elmo_store.open(written.root.url())
    np.testing.assert_array_equal(store["fwd1"][:], written.states[:, 1])
    one_state = written.states[:, 1].nbytes
    overhead = 3 * FOOTER
    assert one_state <= _vectors(fetched) <= 1.01 * one_state + overhead < 2 * one_state


@pytest.mark.parametrize("form", layout.FORMS)
def test_a_few_rows_do_not_cost_the_shard(form: str, fetched: Counter[str]) -> None:
    written = _store(form, fetched)
    store = elmo_store.open(written.root.url())
    np.testing.assert_array_equal(store["bwd2"][5000:5010], written.states[5000:5010, 4])
    index = 16 * 5 * 4096 // layout.CHUNK_ROWS + 4
    wanted = 10 * 64 * 2 + index if form == "zarr" else 2 * layout.ROW_GROUP_ROWS * 64 * 2 + FOOTER
    assert _vectors(fetched) <= wanted


def test_a_few_rows_of_an_int8_store_cost_their_bytes(fetched: Counter[str]) -> None:
    shape: dict[str, Any] = {
        "lengths": (900,) * 10,
        "parts": (10,),
        "shard_rows": 4096,
        "channels": 64,
    }
    written = make_store(f"counting://{uuid4()}", store_forms=("zarr",), dtype="int8", **shape)
    store = elmo_store.open(written.root.url())
    fetched.clear()
    np.testing.assert_array_equal(store["bwd2"][5000:5010], written.states[5000:5010, 4])
    assert _vectors(fetched) == 10 * 64
    assert (
        sum(n for name, n in fetched.items() if "/scale/" in name) == 10 * 5 * 4
    )  # of all states: they stand side by side
    small = make_store(f"counting://{uuid4()}", store_forms=("zarr",), dtype="int8")
    sentence = elmo_store.open(small.root.url()).sentence(3)
    CountingFileSystem.requests = 0
    sentence.read()
    assert (
        CountingFileSystem.requests == 4
    )  # two shards, of each the vectors and the scales, all at the same time


def test_a_sentence_costs_one_part(fetched: Counter[str]) -> None:
    written = _store("zarr", fetched)
    store = elmo_store.open(written.root.url())
    assert store.sentence(1).tokens == tuple(written.tokens[1])
    parts = {
        name.rpartition("/")[2] for name in fetched if "/sentences/" in name or "/indexes/" in name
    }
    assert parts == {"parts.parquet", "part-00000.parquet"}
    assert _vectors(fetched) == 0


def test_a_number_and_an_id_are_found_with_three_requests(fetched: Counter[str]) -> None:
    written = make_store(f"counting://{uuid4()}", lengths=(3,) * 60, parts=(20,) * 3)

    def requests(look: Callable[[elmo_store.Store], object]) -> int:
        store = elmo_store.open(written.root.url())
        CountingFileSystem.requests = 0
        look(store)
        return CountingFileSystem.requests

    assert (
        requests(lambda store: store.sentence(id="doc.txt:47")) == 2
    )  # the table of its hash, and where its rows begin
    assert requests(lambda store: store.sentence(47)) == 1
    assert (
        requests(lambda store: store._view.records([47])) == 3
    )  # the table of parts, a footer, a row group
    assert requests(lambda store: store.sentence(47).read()) == 2  # where it begins, the rows
    assert requests(lambda store: [store.sentence(47).read() for _ in range(2)]) == 2 + 1


def test_verify_fetches_vectors_once(fetched: Counter[str]) -> None:
    written = make_store(
        f"counting://{uuid4()}",
        store_forms=("parquet",),
        lengths=(900,) * 10,
        parts=(10,),
        shard_rows=16_384,
    )
    store = elmo_store.open(written.root.url())
    fetched.clear()
    assert store.verify().shards == 1
    (size,) = (n for name, n in written.root.sizes().items() if name.startswith("states/"))
    assert _vectors(fetched) == size


def test_batches_fetch_nothing_twice(fetched: Counter[str]) -> None:
    written = _store("zarr", fetched)
    store = elmo_store.open(written.root.url())
    rows = sum(len(batch.states) for batch in store.batches(1, "x"))
    assert rows == 9000
    one_state = written.states[:, 0].nbytes
    assert _vectors(fetched) <= one_state * 1.25 + FOOTER


IMPORTS = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "apache_beam", "model", "transforms", "pipeline"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import elmo_store
store = elmo_store.open(sys.argv[1])
mixed = elmo_store.ScalarMix([0.0, 0.0, 0.0])(states=store.read())
print(mixed.shape, store.verify().shards, store.sentence(id="doc.txt:3").index, elmo_store.__version__ != "")
"""


FORKED = """
import multiprocessing, sys, warnings
import elmo_store

def total(i):
    return float(store.sentence(i).read().astype("f8").sum())

if __name__ == "__main__":
    store = elmo_store.open(sys.argv[1], form=sys.argv[2])
    alone = [total(i) for i in range(8)]
    warnings.simplefilter("ignore")  # Python 3.12 warns of any fork beside threads
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(total, range(8)) == alone
    print("equal")
"""

LOADED = """
import sys
import torch
from torch.utils.data import DataLoader
from elmo_store import open as open_store
from elmo_store.torch import SentenceDataset, collate

if __name__ == "__main__":
    data = SentenceDataset(open_store(sys.argv[1], form=sys.argv[2]))
    alone = [data[i]["states"] for i in range(len(data))]
    for method in ("fork", "spawn"):
        batches = DataLoader(data, 1, num_workers=2, collate_fn=collate, multiprocessing_context=method)
        assert all(torch.equal(batch["states"][0], states) for batch, states in zip(batches, alone, strict=True))
    print("equal")
"""


FORMS_AT_PLACES = [("local", "zarr"), ("s3", "parquet"), ("s3 by obstore", "zarr")]


@pytest.mark.parametrize(
    ("program", "place", "form"),
    [
        *[(FORKED, "local", form) for form in ("zarr", "parquet")],
        *[
            pytest.param(FORKED, place, form, marks=pytest.mark.slow)
            for place, form in FORMS_AT_PLACES[1:]
        ],
        *[
            pytest.param(LOADED, place, form, marks=pytest.mark.slow)
            for place, form in FORMS_AT_PLACES
        ],
    ],
    ids=lambda given: {FORKED: "fork", LOADED: "DataLoader"}.get(given, given),
)
def test_an_open_store_is_read_in_other_processes(
    program: str,
    place: str,
    form: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    repo_dir: Any,
) -> None:
    folder = (
        str(tmp_path_factory.mktemp("fork"))
        if place == "local"
        else request.getfixturevalue("s3_url")
    )
    if place == "s3 by obstore":
        pytest.importorskip("obstore", reason="pip install '.[obstore]'")
    make_store(f"{folder}/forked")
    script = tmp_path_factory.mktemp("script") / "forked.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(repo_dir), OBSTORE: str(int("obstore" in place))}
    done = subprocess.run(
        [sys.executable, str(script), f"{folder}/forked", form],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "equal"), done.stderr


def test_neither_torch_nor_beam_is_needed(
    tmp_path_factory: pytest.TempPathFactory, repo_dir: Any
) -> None:
    url = str(tmp_path_factory.mktemp("bare") / "store")
    make_store(url)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORTS, url],
        capture_output=True,
        text=True,
        cwd=repo_dir,
        timeout=120,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "(49, 16) 4 3 True", "")
