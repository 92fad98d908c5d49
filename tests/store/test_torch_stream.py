"""A store as a stream of batches: whole epochs, by ranks and workers, the same each time; and the cache of a remote store."""

import copy
import json
import pickle
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import elmo_store
from elmo_store.errors import StateNotFoundError
from elmo_store.format.numbers import Array
from elmo_store.reading.runs import Int64
from elmo_store.reading.view import View
from elmo_store.torch import SentenceDataset, SentenceStream, collate
from elmo_store.torch import stream as streams
from elmo_store.torch.epochs import EpochCounter
from tests.store.support import Written, make_store

LENGTHS = tuple((i * 7) % 13 for i in range(150))  # every thirteenth has no tokens


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return make_store(
        str(tmp_path_factory.mktemp("stream") / "store"), lengths=LENGTHS, parts=(70, 80)
    )


def stream_of(written: Written, **settings: Any) -> SentenceStream:
    return SentenceStream(
        written.root.url(), **{"batch_sentences": 8, "pool_sentences": 32} | settings
    )


def seen(batches: Any) -> list[int]:
    return [index for batch in batches for index in batch["index"]]


def test_batches_hold_the_rows_of_their_sentences(written: Written) -> None:
    batches = list(stream_of(written))
    assert sorted(seen(batches)) == list(range(len(LENGTHS)))
    for batch in batches:
        assert batch["states"].dtype == torch.float16
        for index, tokens, rows, mask in zip(
            batch["index"], batch["tokens"], batch["states"], batch["mask"], strict=True
        ):
            assert list(tokens) == written.tokens[index]
            np.testing.assert_array_equal(rows[mask].numpy(), written.states[written.rows(index)])
            assert not rows[~mask].any()


@pytest.mark.parametrize("bucket", [True, False])
def test_an_epoch_is_every_sentence_once_and_depends_on_its_number_alone(
    written: Written, bucket: bool
) -> None:
    stream = stream_of(written, bucket=bucket, text=False)
    first = seen(stream)
    assert sorted(first) == list(range(len(LENGTHS)))
    assert first != sorted(first)
    second = seen(stream)
    assert sorted(second) == sorted(first)
    assert second != first
    stream.set_epoch(0)
    assert [seen(stream), seen(stream)] == [first, second]
    assert seen(stream_of(written, seed=5, bucket=bucket)) != first
    stream.set_epoch(0)
    data = pickle.dumps(stream)
    assert len(data) < 10_000  # none of the memory that it keeps from epoch to epoch
    assert seen(pickle.loads(data)) == first


def test_without_shuffling_it_is_the_store_s_order(written: Written) -> None:
    assert seen(stream_of(written, shuffle=False, bucket=False)) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("uneven", ["repeat", "drop", "keep"])
def test_ranks_share_an_epoch(written: Written, uneven: Any) -> None:
    ranks = [seen(stream_of(written, rank=rank, ranks=4, uneven=uneven)) for rank in range(4)]
    sizes = {"repeat": [38] * 4, "drop": [37] * 4, "keep": [37, 38, 37, 38]}[uneven]
    assert [len(one) for one in ranks] == sizes
    together = [index for one in ranks for index in one]
    assert len(set(together)) == (148 if uneven == "drop" else 150)
    batches = [
        len(list(stream_of(written, rank=rank, ranks=4, uneven=uneven))) for rank in range(4)
    ]
    assert len(set(batches)) == 1


@pytest.mark.slow
def test_torch_distributed_says_the_rank(written: Written, tmp_path: Path) -> None:
    """Two processes of a group, each with a worker that is none of the group."""
    import torch.multiprocessing as mp

    mp.start_processes(
        in_group, (str(tmp_path), written.root.url()), nprocs=2, start_method="spawn"
    )
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert sorted(found[0] + found[1]) == list(range(len(LENGTHS)))
    assert len(found[0]) == len(found[1]) == 75


def test_a_worker_that_is_spawned_is_told_the_rank(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    for early in (True, False):  # the group may be made before the stream or after
        stream = stream_of(written)
        if not early:
            stream._place = None
        data = pickle.dumps(stream)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(torch.distributed, "is_initialized", lambda: False)
            assert seen(pickle.loads(data)) == seen(stream_of(written, rank=1, ranks=2))


def in_group(rank: int, folder: str, url: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    loader = DataLoader(
        SentenceStream(url, batch_sentences=8, text=False),
        batch_size=None,
        num_workers=1,
        multiprocessing_context="fork",
    )
    torch.save(seen(loader), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_workers_share_an_epoch_and_hear_of_the_next(written: Written) -> None:
    stream = stream_of(written)
    loader = DataLoader(
        stream,
        batch_size=None,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )  # the workers of the first epoch serve the second
    first = seen(loader)
    stream.set_epoch(1)
    second = seen(loader)
    assert sorted(first) == sorted(second) == list(range(len(LENGTHS)))
    assert first != second
    stream.set_epoch(0)
    assert seen(loader) == first


LOADERS: dict[str, dict[str, Any]] = {
    "no workers": {},
    "a worker": {"num_workers": 1},
    "new workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
}


def loader_of(stream: SentenceStream, kind: str) -> DataLoader[Any]:
    settings = LOADERS[kind]
    context = "fork" if settings else None
    return DataLoader(stream, batch_size=None, multiprocessing_context=context, **settings)


@pytest.mark.parametrize("kind", LOADERS)
def test_each_iteration_of_a_loader_is_the_next_epoch(written: Written, kind: str) -> None:
    stream = stream_of(written, text=False)
    loader = loader_of(stream, kind)
    epochs = [seen(loader) for _ in range(3)]
    next(iter(loader))  # the fourth epoch is left early
    epochs.append(seen(loader))
    assert stream.epoch == 5
    for number, epoch in zip((0, 1, 2, 4), epochs, strict=True):
        alone = stream_of(written, text=False)
        alone.set_epoch(number)
        assert epoch == seen(loader_of(alone, kind))
        assert sorted(epoch) == list(range(len(LENGTHS)))
    assert len(set(map(tuple, epochs))) == 4


def test_loaders_of_several_kinds_count_on(written: Written) -> None:
    stream = stream_of(written, text=False)
    for number, kind in enumerate([*LOADERS, *LOADERS]):
        alone = stream_of(written, text=False)
        alone.set_epoch(number)
        assert seen(loader_of(stream, kind)) == seen(loader_of(alone, kind))


def worker_info(number: int, iteration: int) -> SimpleNamespace:
    return SimpleNamespace(id=number, seed=1000 * iteration + number)


def in_a_new_process(counter: EpochCounter) -> EpochCounter:
    """Return what a new process has: the same shared memory, and attributes of its own."""
    return copy.copy(counter)


def test_workers_of_an_iteration_agree_on_its_epoch_in_any_order() -> None:
    """New workers each time, as many as it happens; one does not begin, because its iteration was left before."""
    shared = EpochCounter()
    for epoch, workers in enumerate([[0, 1, 2], [2, 0], [1], [3, 100, 64, 0], [0], [1, 0]]):
        infos = [worker_info(number, epoch + 1) for number in workers]
        assert [in_a_new_process(shared).begin(info) for info in infos] == [epoch] * len(infos)
    shared.set(2)
    assert [in_a_new_process(shared).begin(worker_info(n, 9)) for n in (1, 0)] == [2, 2]
    assert (shared.upcoming, shared.begin(), shared.begin(), shared.upcoming) == (3, 3, 4, 5)


def test_two_iterations_at_a_time_have_an_epoch_each() -> None:
    shared = EpochCounter()
    begun = [(0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (2, 1)]  # worker, iteration
    epochs = [in_a_new_process(shared).begin(worker_info(*one)) for one in begun]
    assert epochs == [0, 1, 0, 1, 1, 0]


def test_a_loaded_state_serves_one_iteration_of_a_worker(written: Written) -> None:
    stream = stream_of(written, text=False)
    whole, following = seen(stream), seen(stream)
    stream.set_epoch(0)
    next(iter(stream))
    resumed = stream_of(written, text=False)
    resumed.load_state_dict(stream.state_dict())
    loader = loader_of(resumed, "a worker")  # which starts a worker for each epoch
    assert [seen(loader), seen(loader)] == [whole[8:], following]


def find_batch_size(data: Any) -> int:
    """As accelerate does: by the first entry of a batch."""
    while isinstance(data, Mapping | Sequence):
        data = next(iter(data.values())) if isinstance(data, Mapping) else data[0]
    if not isinstance(data, torch.Tensor):
        raise TypeError(f"Can only find the batch size of tensors but got {type(data)}.")
    return len(data)


def test_a_batch_begins_with_a_tensor(written: Written) -> None:
    data = SentenceDataset(written.root.url())
    labelled = [data[number] | {"label": number} for number in (3, 0)]
    batches = [
        next(iter(stream_of(written))),
        collate(data.__getitems__([4, 1])),
        collate(labelled),
    ]
    assert [find_batch_size(batch) for batch in batches] == [8, 2, 2]
    assert [len(batch["index"]) for batch in batches] == [8, 2, 2]


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"shuffle": False},
    {"bucket": False},
    {"rank": 1, "ranks": 3},
)


@pytest.mark.parametrize("settings", SETTINGS)
def test_an_epoch_resumes_after_any_batch(written: Written, settings: dict[str, Any]) -> None:
    stream = stream_of(written, text=False, **settings)
    stream.set_epoch(3)
    assert stream.state_dict()["epoch"] == 3
    whole = [batch["index"] for batch in stream]
    following = [batch["index"] for batch in stream]
    for stop in range(len(whole) + 1):
        stream.set_epoch(3)
        batches = iter(stream)
        for _ in range(stop):
            next(batches)
        state = json.loads(json.dumps(stream.state_dict()))
        resumed = stream_of(written, text=False, **settings)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert [batch["index"] for batch in resumed] == whole[stop:]
        assert [batch["index"] for batch in resumed] == following  # the next iteration is whole
        batches.close()  # type: ignore[attr-defined]


def test_what_was_given_before_is_not_read_again(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_of(written, text=False)
    batches = iter(stream)
    for _ in range(10):
        next(batches)
    state = stream.state_dict()
    batches.close()  # type: ignore[attr-defined]  # it reads ahead
    asked: list[int] = []
    real = View.rows_of

    def counting(self: View, states: Sequence[int], spans: Int64, runs: Int64) -> list[Array]:
        asked.append(int(np.diff(spans).sum()))
        return real(self, states, spans, runs)

    monkeypatch.setattr(View, "rows_of", counting)
    resumed = stream_of(written, text=False)
    resumed.load_state_dict(state)
    numbers = seen(resumed)
    assert len(numbers) == len(LENGTHS) - 10 * 8
    assert sum(asked) == sum(LENGTHS[number] for number in numbers)


def test_an_epoch_that_ended_is_followed_by_the_one_that_is_set(written: Written) -> None:
    stream = stream_of(written, text=False)
    stream.set_epoch(4)
    whole = seen(stream)
    state = stream.state_dict()
    for early in (
        True,
        False,
    ):  # StatefulDataLoader loads when its iteration begins, so after set_epoch
        resumed = stream_of(written, text=False)
        if early:
            resumed.set_epoch(5)
        resumed.load_state_dict(state)
        if early:
            assert seen(resumed) == []
        else:
            resumed.set_epoch(5)
        fifth = seen(resumed)
        assert sorted(fifth) == sorted(whole)
        assert fifth != whole
    again = stream_of(written, text=False)
    again.load_state_dict(state)
    assert (again.epoch, seen(again), again.epoch) == (4, [], 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 1}, "seed=1, the saved state 0"),
        ({"batch_sentences": 4}, "batch_sentences=4, the saved state 8"),
        ({"rank": 0, "ranks": 2}, "ranks=2, the saved state 1"),
    ],
)
def test_a_state_of_another_order_is_refused(
    written: Written, settings: dict[str, Any], message: str
) -> None:
    state = stream_of(written).state_dict()
    with pytest.raises(ValueError, match=message):
        stream_of(written, **settings).load_state_dict(state)


def test_a_state_of_another_number_of_workers_is_refused(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = stream_of(written, text=False)
    resumed.load_state_dict(resumed.state_dict())
    monkeypatch.setattr(streams, "get_worker_info", lambda: SimpleNamespace(id=0, num_workers=2))
    with pytest.raises(
        ValueError, match="workers=2, the saved state 1"
    ):  # a loader's worker that got it with the stream
        iter(resumed)


def test_workers_of_a_plain_loader_leave_no_state(written: Written) -> None:
    stream = stream_of(written, text=False)
    list(DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="fork"))
    with pytest.raises(RuntimeError, match="StatefulDataLoader"):
        stream.state_dict()
    next(iter(stream))
    assert stream.state_dict()["batches"] == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_resumes_after_any_batch(written: Written, workers: int) -> None:
    loaders = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is in .[test-all]"
    )

    def loader_of() -> Any:
        return loaders.StatefulDataLoader(
            stream_of(written, text=False, batch_sentences=13),
            batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None,
        )  # fmt: skip

    loader = loader_of()
    batches, states = [], [loader.state_dict()]
    for batch in loader:  # workers are batches ahead of what was given
        batches.append(batch["index"])
        states.append(pickle.loads(pickle.dumps(loader.state_dict())))
    assert sorted(index for batch in batches for index in batch) == list(range(len(LENGTHS)))
    for stop in range(0, len(states), 1 if not workers else 4):
        resumed = loader_of()
        resumed.load_state_dict(states[stop])
        assert [batch["index"] for batch in resumed] == batches[stop:]


def test_one_state_alone_and_a_view(written: Written) -> None:
    store = elmo_store.open(written.root.url())
    batch = next(
        iter(SentenceStream(store[20:60], states=["bwd2"], shuffle=False, bucket=False, text=False))
    )
    assert batch["states"].shape[2:] == (1, 8)
    np.testing.assert_array_equal(
        batch["states"][1][batch["mask"][1]][:, 0], written.states[written.rows(21), 4]
    )


def test_who_leaves_early_leaves_no_thread(written: Written) -> None:
    before = threading.active_count()
    stream = iter(stream_of(written))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_sentences": 0}, "batch_sentences=0"),
        ({"uneven": "some"}, "uneven='some'"),
        ({"rank": 1}, "both rank and ranks"),
    ],
)
def test_settings_that_make_no_sense(
    written: Written, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        stream_of(written, **settings)


def test_a_state_that_there_is_not(written: Written) -> None:
    with pytest.raises(StateNotFoundError, match="fwd9"):
        stream_of(written, states=["fwd9"])
