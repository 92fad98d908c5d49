"""An engine whose call failed or was interrupted gives a new engine's bytes afterwards; the CUDA path too, on the CPU."""

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from model.engine import device as device_module
from model.engine import embedder
from model.engine.cpu import CpuDevice
from model.engine.cuda import CudaDevice
from model.engine.device import Device, Direction
from model.engine.embedder import Embedder, EngineSettings
from model.engine.planning.text import WordBook
from model.engine.word_vectors import WordVectors
from model.files.weights import BiLMWeights
from model.start_state import StartState

FIRST = [["one", "two", "three"], ["four", "five"]]
SECOND = [["w" * 60, "three", "six", "one", "two"], ["seven", "five"]]
LONG = [["one", "two", "three"] * 300]


@pytest.fixture(params=["cpu", "cuda"])
def new_engine(
    request: pytest.FixtureRequest, tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Embedder]:
    """Makes engines on the CPU, or with the device of GPUs on the CPU."""

    def device(weights: BiLMWeights, start: StartState, settings: EngineSettings) -> Device:
        if request.param == "cuda":
            return CudaDevice(weights, start, settings, torch.device("cpu"))
        return CpuDevice(weights, start, settings)

    monkeypatch.setattr(embedder, "_device", device)
    settings = EngineSettings(device="cpu", lanes=16, threads=2)
    return lambda: Embedder(tiny, StartState.zero(tiny.options), settings)


def embed(engine: Embedder, sentences: list[list[str]]) -> npt.NDArray[np.floating]:
    return engine.embed(sentences, dtype="float32")


def assert_same(got: npt.NDArray[np.floating], want: npt.NDArray[np.floating]) -> None:
    """Up to the last bits: plain products of so narrow a model depend on a row's place, which the CUDA path says in its log."""
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception) -> None:
    """The next call of a function raises ``error``, all others do what they did."""
    sound, left = getattr(owner, name), [error]

    def function(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return sound(*args, **kwargs)

    monkeypatch.setattr(owner, name, function)


@pytest.mark.slow
@pytest.mark.parametrize(
    "failing", ["gates of words", "vectors of words", "a step", "numbers of words"]
)
def test_what_a_failed_call_did_not_compute_is_computed_by_the_next(
    new_engine: Callable[[], Embedder], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    want = [embed(new_engine(), sentences) for sentences in (FIRST, SECOND)]
    engine = new_engine()
    assert_same(embed(engine, FIRST), want[0])
    places: dict[str, list[tuple[Any, str]]] = {
        "gates of words": [(direction, "table_linear") for direction in engine._device.directions],
        "vectors of words": [(WordVectors, "compute")],
        "a step": [(Direction, "_step")],
        "numbers of words": [(WordBook, "_add")],
    }
    for owner, name in places[failing]:
        fail_once(monkeypatch, owner, name, MemoryError("injected"))
    with pytest.raises(MemoryError, match="injected"):
        embed(engine, SECOND)
    for _ in range(2):
        assert_same(embed(engine, SECOND), want[1])
        assert_same(embed(engine, FIRST), want[0])


@pytest.mark.slow
@pytest.mark.parametrize("n_interrupts", [1, 2])
def test_ctrl_c_ends_both_directions_before_the_next_call_begins(
    new_engine: Callable[[], Embedder], monkeypatch: pytest.MonkeyPatch, n_interrupts: int
) -> None:
    """`wait` is where the main thread stands when the user interrupts it; a second Ctrl-C is not kept waiting."""
    want = embed(new_engine(), LONG), embed(new_engine(), SECOND)
    engine = new_engine()
    directions = engine._device.directions
    n_windows = len(engine.prepare(LONG).groups[0].planned[0][0].bounds) - 1
    running, begun, interrupts = set[int](), [], 0
    run_window = type(directions[0]).run_window

    def slow_window(self: Direction, *args: Any) -> list[torch.Tensor]:
        running.add(id(self))
        begun.append(id(self))
        time.sleep(0.02)
        outputs = run_window(self, *args)
        running.discard(id(self))
        return outputs

    def interrupted(futures: Collection[Future[None]]) -> None:
        nonlocal interrupts
        if futures and interrupts < n_interrupts:
            interrupts += 1
            while interrupts == 1 and len(set(begun)) < 2:
                time.sleep(0.001)
            raise KeyboardInterrupt
        wait(futures)

    monkeypatch.setattr(type(directions[0]), "run_window", slow_window)
    monkeypatch.setattr(device_module, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embed(engine, LONG)
    if n_interrupts == 1:
        assert not running
    assert_same(embed(engine, SECOND), want[1])
    assert (
        len(begun) < n_windows
    )  # of 2 * n_windows and those of SECOND: what was left of the interrupted call was not computed
    assert_same(embed(engine, LONG), want[0])
