"""Rows as runs of bytes: spans cut at borders, and pieces of files read in C as in Python, with the same errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.forms import runs as module
from elmo_store.forms.runs import RunReader, Runs, cut
from elmo_store.storage.data import ShortReadError
from elmo_store.storage.root import Root

SPANS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=6)


def _spans(lengths: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    return np.array([(first, first + length) for first, length in lengths], np.int64).reshape(-1, 2)


@given(st.integers(1, 50), SPANS)
def test_the_pieces_of_spans(size: int, lengths: list[tuple[int, int]]) -> None:
    spans = _spans(lengths)
    pieces = cut(spans, size)
    found = {}
    for span, of, first, stop, place in zip(*(column.tolist() for column in pieces), strict=True):
        assert 0 <= first < stop <= size
        assert spans[span, 0] <= of * size + first < of * size + stop <= spans[span, 1]
        found.update({place + i: of * size + first + i for i in range(stop - first)})
    wanted = [row for first, stop in spans.tolist() for row in range(first, stop)]
    assert [found[i] for i in range(len(wanted))] == wanted
    assert pieces.rows.sum() == len(wanted)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60), st.integers(1, 50)), max_size=6))
def test_each_span_by_a_size_of_its_own(lengths: list[tuple[int, int, int]]) -> None:
    spans, sizes = _spans([(first, n) for first, n, _ in lengths]), np.array([size for _, _, size in lengths], np.int64)
    pieces = cut(spans, sizes)
    rows = [
        of * sizes[span] + row
        for span, of, first, stop, _ in zip(*(column.tolist() for column in pieces), strict=True)
        for row in range(first, stop)
    ]
    assert rows == [row for first, stop in spans.tolist() for row in range(first, stop)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    folder = tmp_path_factory.mktemp("runs")
    for number in range(70):
        (folder / f"{number}").write_bytes(np.random.default_rng(number).bytes(100 + number))
    return Root(folder)


def _without_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "compiled", lambda: None)


@given(data=st.data())
def test_pieces_of_files_in_c_and_in_python(root: Root, data: st.DataObject) -> None:
    assert module.compiled() is not None, "elmo_store.forms._ranges was not built: python setup.py build_ext --inplace"
    files, k = data.draw(st.lists(st.integers(0, 69), min_size=1, max_size=70, unique=True)), data.draw(st.integers(1, 4))
    n = data.draw(st.integers(0, 90))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    of, n_bytes = random.integers(0, len(files), n), random.integers(0, 50, n)
    starts = random.integers(0, 50, (n, k))
    if data.draw(st.booleans()):  # pieces that follow each other in a file, which one request reads
        of, n_bytes = np.sort(of), n_bytes % 3
        ends = np.cumsum(n_bytes)
        starts = np.arange(k) * 2 + (ends - n_bytes - (ends - n_bytes)[np.searchsorted(of, of)])[:, None] % 50
    sizes, steps = np.array([100 + file for file in files]), n_bytes + random.integers(0, 3, n)
    shares = n_bytes + (k - 1) * steps  # of the buffer, that each piece takes with all its runs
    order = random.permutation(n)
    places = np.empty(n, np.int64)
    places[order] = np.cumsum(shares[order]) - shares[order]
    runs = Runs([str(file) for file in files], sizes, of, starts, n_bytes, places, steps)
    whole = [root.get(str(file)) for file in files]
    expected, out, plain = np.zeros((3, int(shares.sum())), np.uint8)
    for i in range(n):
        for j in range(k):
            at, start = places[i] + j * steps[i], starts[i, j]
            expected[at : at + n_bytes[i]] = np.frombuffer(whole[of[i]][start : start + n_bytes[i]], np.uint8)
    RunReader(root).read_runs(runs, out)
    with pytest.MonkeyPatch.context() as patch:
        _without_extension(patch)
        RunReader(root).read_runs(runs, plain)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(plain, expected)


@pytest.mark.parametrize("extension", [True, False])
def test_one_piece(root: Root, extension: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not extension:
        _without_extension(monkeypatch)
    whole, out = root.get("7"), np.empty((3, 10), np.uint8)
    RunReader(root).read_run("7", 107, 5, 20, (0, 2, 1), out)
    assert [part.tobytes() for part in out] == [whole[at : at + 10] for at in (5, 45, 25)]
    many = np.empty((20, 2), np.uint8)  # more runs than stand on the stack
    RunReader(root).read_run("7", -1, 0, 3, range(20), many)
    assert [part.tobytes() for part in many] == [whole[3 * i : 3 * i + 2] for i in range(20)]


@pytest.mark.parametrize("extension", [True, False])
def test_files_that_are_short_or_gone(root: Root, extension: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not extension:
        _without_extension(monkeypatch)
    unknown, of, starts = np.array([-1, -1]), np.array([0, 1]), np.array([[95], [95]])
    where = np.array([20, 20]), np.array([0, 20]), np.array([0, 0])
    out = np.empty((1, 40), np.uint8)
    with pytest.raises(ShortReadError, match="3 ends before byte 115"):
        RunReader(root).read_runs(Runs(["20", "3"], unknown, of, starts, *where), out)
    with pytest.raises(ShortReadError, match="3 ends before byte 111"):  # within pieces that one request reads
        RunReader(root).read_runs(Runs(["3"], unknown[:1], of * 0, np.array([[71], [91]]), *where), out)
    with pytest.raises(FileNotFoundError) as missing:
        RunReader(root).read_runs(Runs(["3", "nowhere"], unknown, of, starts - 60, *where), out)
    assert str(missing.value.filename).endswith("nowhere")
    with pytest.raises(ShortReadError, match="3 ends before byte 110"):
        RunReader(root).read_run("3", -1, 100, 0, (0,), np.empty((1, 10), np.uint8))


def test_a_file_of_another_size_is_no_shard(root: Root) -> None:
    with pytest.raises(ShortReadError, match="3 has 103 bytes, which can't be"):
        RunReader(root).read_run("3", 104, 0, 0, (0,), np.empty((1, 10), np.uint8))


def test_pieces_that_do_not_fit_the_buffer(root: Root) -> None:
    extension, out = module.compiled(), np.zeros(10, np.uint8)
    zero, ten, most = np.zeros(1, np.int64), np.full(1, 10), np.full(1, np.iinfo(np.int64).max)
    three = np.zeros(3, np.int64)
    for arrays in (
        (zero, zero, ten, ten, ten),  # beyond the buffer
        (ten, zero, ten, zero, ten),  # no such file
        (zero, zero, -ten, zero, ten),  # a negative length
        (zero, three, ten, zero, ten),  # three runs in a buffer of one
        (zero, three, zero, zero, most),  # a step beyond the numbers
        (zero, three, zero, ten, -ten),  # steps before the buffer
        (zero, zero, zero, most, zero),
        (zero, zero, ten, np.zeros(2, np.int64), ten),  # two places for one piece
        (zero, zero, ten, zero, np.zeros(2, np.int64)),  # and two steps
    ):
        with pytest.raises(ValueError, match="do not fit"):
            extension.read_runs(zero, *arrays, out)


@contextmanager
def forgotten(path: Path, n_bytes: int) -> Iterator[tuple[bytes, int]]:
    """A file's contents and descriptor; the page cache has nothing of it."""
    whole = np.random.default_rng(0).bytes(n_bytes)
    path.write_bytes(whole)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield whole, file.fileno()


def test_more_ranges_than_are_announced_at_a_time_from_a_disk(tmp_path: Path) -> None:
    """What is not in memory is announced to the kernel, and read in rounds."""
    with forgotten(tmp_path / "large", 1 << 24) as (whole, _):
        pass
    n = 3000
    starts = np.random.default_rng(1).permutation(len(whole) // 16)[:n] * 16
    out, places = np.zeros((1, n * 16), np.uint8), np.arange(n) * 16
    reader = RunReader(Root(tmp_path))
    zero = np.zeros(n, np.int64)
    reader.read_runs(Runs(["large"], np.array([-1]), zero, starts[:, None], np.full(n, 16), places, zero), out)
    assert out.tobytes() == b"".join(whole[start : start + 16] for start in starts.tolist())


def test_neighbours_that_are_partly_in_memory(tmp_path: Path) -> None:
    """What one request of many pieces leaves is read to the places where it belongs."""
    with forgotten(tmp_path / "large", 1 << 20) as (whole, file):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        os.pread(file, 300_001, 0)
    n, size = 1 << 12, 1 << 8
    zero, starts = np.zeros(n, np.int64), np.arange(n) * size
    places = starts[::-1].copy()
    out = np.zeros(len(whole), np.uint8)
    RunReader(Root(tmp_path)).read_runs(
        Runs(["large"], np.array([-1]), zero, starts[:, None], np.full(n, size), places, zero), out
    )
    assert out.reshape(n, size)[::-1].tobytes() == whole


def test_a_file_may_leave_the_cache_while_it_is_read(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(module, "_files_at_hand", lambda: 1)
    reader = RunReader(root)
    for number in range(70):
        out = np.empty((1, 100), np.uint8)
        reader.read_run(str(number), 100 + number, 0, 0, (0,), out)
        assert out.tobytes() == root.get(str(number))[:100]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
