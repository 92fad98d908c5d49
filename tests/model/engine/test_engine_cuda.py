"""The CUDA path without a GPU: everything but graph capture and launches, kernels through Triton's interpreter."""

import gc
import logging
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks.shared.texts import SHAPES, made_up_text, take
from model.characters import BOS, EOS
from model.engine import cell, cuda, embedder
from model.engine import device as device_module
from model.engine.cell import select_cell
from model.engine.cuda import CudaDevice, CudaDirection, matmul_precision
from model.engine.device import Layout
from model.engine.embedder import Embedder, EngineSettings
from model.engine.planning.grid import Limits, plan_direction
from model.engine.planning.host import Host
from model.engine.planning.text import Text
from model.engine.settings import Precision
from model.engine.states import States
from model.engine.word_vectors import WordVectors
from model.errors import DeviceLostError
from model.files.registry import random_weights
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.start_state import StartState
from model.warm import compute_warm
from pipeline.jobs import embed_job
from tests.model.lanes import embed_carried, golden_lanes, golden_top_layers, part_of, sequences_of
from tests.model.reference import ReferenceBiLM

SETTINGS = EngineSettings(device="cpu", lanes=16)
SENTENCES = [
    ["The", "cat", "sat", "."],
    [],
    ["Ünïcode", "日本語", "a" * 60, "", "naïve" * 12],
    ["The", "cat", "sat", "down", "."],
    *[[f"w{(i * j) % 11}" for j in range(i % 23 + 1)] for i in range(60)],
    ["The", "cat", "sat", "."],
]


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedders take the CUDA device, on the CPU."""

    def device(weights: BiLMWeights, start: StartState, settings: EngineSettings) -> CudaDevice:
        return CudaDevice(weights, start, settings, torch.device("cpu"))

    monkeypatch.setattr(embedder, "_device", device)


def embed(model: Embedder, dtype: str = "float32") -> npt.NDArray[np.floating]:
    return model.embed(SENTENCES, dtype=dtype)  # type: ignore[arg-type]


@pytest.mark.usefixtures("on_cpu")
def test_all_states_agree_with_the_reference(
    tiny: BiLMWeights, tiny_reference: ReferenceBiLM
) -> None:
    start = compute_warm(tiny)
    want = [
        tiny_reference.states(s, start.h.numpy(), start.c.numpy())[1:-1] for s in SENTENCES if s
    ]
    np.testing.assert_allclose(
        embed(Embedder(tiny, start, SETTINGS)), np.concatenate(want), rtol=0, atol=1e-5
    )


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_other_precisions_stay_near(tiny: BiLMWeights, precision: str) -> None:
    start = StartState.zero(tiny.options)
    want = embed(Embedder(tiny, start, SETTINGS))
    got = embed(Embedder(tiny, start, replace(SETTINGS, precision=precision)))  # type: ignore[arg-type]
    np.testing.assert_allclose(got, want, rtol=0, atol=0.03)


@pytest.mark.usefixtures("on_cpu")
def test_all_thirty_goldens_agree(shared_dir: Path, golden_weights: BiLMWeights) -> None:
    model = Embedder(golden_weights, StartState.zero(golden_weights.options), SETTINGS)
    for lane, wanted in zip(
        embed_carried(model, golden_lanes(shared_dir)), golden_top_layers(shared_dir), strict=True
    ):
        for states, want in zip(lane, wanted, strict=True):
            np.testing.assert_allclose(states[:, -2:].transpose(1, 0, 2), want, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("on_cpu")
def test_groups_do_not_show(tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    start = StartState.zero(tiny.options)
    want = embed(Embedder(tiny, start, SETTINGS), "float16")
    monkeypatch.setattr(cuda, "GROUP_ROWS", 50)
    model = Embedder(tiny, start, SETTINGS)
    np.testing.assert_array_equal(embed(model, "float16"), want)


@pytest.mark.slow
@pytest.mark.usefixtures("on_cpu")
def test_a_long_line_does_not_set_the_steps_of_the_others(
    tiny: BiLMWeights, tiny_reference: ReferenceBiLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = compute_warm(tiny)
    long = [
        [f"w{i % 7}" for i in range(n)] for n in (300, 41, 300)
    ]  # the first and last are the same
    mixed = [*SENTENCES[:30], long[0], *SENTENCES[30:], *long[1:]]
    want = [tiny_reference.states(s, start.h.numpy(), start.c.numpy())[1:-1] for s in mixed if s]
    settings = replace(SETTINGS, lanes=32)
    plain = Embedder(tiny, start, settings)
    together = plain.run(plain.prepare(mixed))
    monkeypatch.setattr(cuda, "long_tokens", lambda lanes, rows: 40)
    monkeypatch.setattr(cuda, "LONG_LANES", 4)
    model = Embedder(tiny, start, settings)
    apart = model.run(model.prepare(mixed), dtype="float32")
    got = apart.result()
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, np.concatenate(want), rtol=0, atol=1e-5)
    assert apart.stats.cells_used == together.stats.cells_used
    assert apart.stats.cells < together.stats.cells / 3
    # A long line's bytes are its own: alone, in part, and among others.
    alone = model.embed([long[1]], dtype="float32")
    np.testing.assert_array_equal(alone, got[-341:-300])
    part = model.embed(part_of([long[0], ["w1"]], [100, 0], [300, 1]), dtype="float32")
    np.testing.assert_array_equal(part[:200], got[-200:])


@pytest.mark.usefixtures("on_cpu")
def test_after_out_of_memory_long_lines_go_on_too(
    tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "long_tokens", lambda lanes, rows: 40)
    monkeypatch.setattr(cuda, "LONG_LANES", 32)
    sentences = [*SENTENCES, [f"w{i % 7}" for i in range(100)]]
    start = StartState.zero(tiny.options)
    want = Embedder(tiny, start, SETTINGS).embed(sentences, dtype="float32")
    lanes = _failing_window(monkeypatch, fails=1)
    model = Embedder(
        tiny, start, replace(SETTINGS, lanes=64)
    )  # of 64 there are long ones beside, of 32 not
    got = model.embed(sentences, dtype="float32")
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    assert 64 in lanes
    assert lanes[-1] == 32


@pytest.mark.slow
@pytest.mark.usefixtures("on_cpu")
def test_after_memory_did_not_do_for_any_lanes_the_next_call_begins_as_at_first(
    tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = StartState.zero(tiny.options)
    settings = replace(SETTINGS, lanes=64)
    want = embed(Embedder(tiny, start, settings))
    model = Embedder(tiny, start, settings)
    prepared = model.prepare(SENTENCES)
    with monkeypatch.context() as short:
        lanes = _failing_window(short, fails=10**6)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError, match="injected"):
                embed(model)
        assert lanes == [64, 64, 32, 32, 16, 16] * 2
    np.testing.assert_array_equal(model.run(prepared, dtype="float32").result(), want)
    assert model._device.limits.lane_choices == [64]


def _failing_window(monkeypatch: pytest.MonkeyPatch, fails: int) -> list[int]:
    """Make the first windows run out of memory; the returned list collects the lanes of each window that was begun."""
    lanes: list[int] = []
    run_window = CudaDirection.run_window

    def run(self: CudaDirection, window):  # type: ignore[no-untyped-def]
        lanes.append(window.cells.shape[2])
        if len(lanes) <= fails:
            raise torch.OutOfMemoryError("injected")
        return run_window(self, window)

    monkeypatch.setattr(CudaDirection, "run_window", run)
    return lanes


@pytest.mark.usefixtures("on_cpu")
def test_out_of_memory_halves_the_lanes_and_goes_on(
    tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = StartState.zero(tiny.options)
    want = embed(Embedder(tiny, start, SETTINGS))
    lanes = _failing_window(monkeypatch, fails=1)
    model = Embedder(tiny, start, replace(SETTINGS, lanes=64))
    with caplog.at_level(logging.WARNING):
        call = model.run(model.prepare(SENTENCES), dtype="float32")
    np.testing.assert_allclose(np.asarray(call.result()), want, rtol=0, atol=1e-6)
    assert call.computed_on == "cuda without a GPU, 32 lanes"
    assert lanes[0] == 64
    assert lanes[-1] == 32
    assert (
        f"out of GPU memory: going on with 32 lanes, and {cuda.GROUP_ROWS // 2} rows at once"
        in caplog.text
    )
    embed(model)  # and it stays so
    assert lanes[-1] == 32


@pytest.mark.slow
@pytest.mark.usefixtures("on_cpu")
def test_out_of_memory_cuts_a_group_into_smaller_ones(
    tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = StartState.zero(tiny.options)
    want = embed(Embedder(tiny, start, SETTINGS))
    monkeypatch.setattr(cuda, "GROUP_ROWS", 800)
    monkeypatch.setattr(cuda, "LEAST_GROUP_ROWS", 10)
    buffer, asked = CudaDevice.buffer, []

    def picky(self: CudaDevice, host: States) -> States:
        asked.append(len(host))
        if len(host) > 300:
            raise RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            )
        return buffer(self, host)

    monkeypatch.setattr(CudaDevice, "buffer", picky)
    got = embed(Embedder(tiny, start, replace(SETTINGS, lanes=128)))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    assert asked[0] > 300
    assert sum(asked[max(i for i, rows in enumerate(asked) if rows > 300) + 1 :]) == len(want)


def test_errors_of_memory_are_told_from_a_lost_device_and_from_others(tiny: BiLMWeights) -> None:
    device = CudaDevice(tiny, StartState.zero(tiny.options), SETTINGS, torch.device("cpu"))
    for said in (
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ):
        assert device.out_of_memory(RuntimeError(said))
    assert device.out_of_memory(
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    )
    assert not device.out_of_memory(RuntimeError("shapes do not match"))
    for said in (
        "an illegal memory access was encountered",
        "device-side assert triggered",
        "unspecified launch failure",
    ):
        with pytest.raises(DeviceLostError, match="start it again"):
            device.out_of_memory(RuntimeError(f"CUDA error: {said}"))


@pytest.mark.usefixtures("on_cpu")
def test_engines_that_ran_out_of_memory_are_gone_before_smaller_ones_are_made(
    tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    _failing_window(monkeypatch, fails=1)
    model = Embedder(tiny, StartState.zero(tiny.options), replace(SETTINGS, lanes=64))
    before = [weakref.ref(direction) for direction in model._device.directions]
    alive = []
    gc.freeze()
    build = CudaDevice._build

    def watched(self: CudaDevice) -> None:
        alive.append([ref() is not None for ref in before])
        build(self)

    monkeypatch.setattr(CudaDevice, "_build", watched)
    try:
        embed(model)
    finally:
        gc.unfreeze()
    assert alive == [[False, False]]


@pytest.mark.usefixtures("on_cpu")
def test_out_of_memory_while_building_halves_too(
    tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = CudaDirection.__init__

    def picky(
        self: CudaDirection,
        weights: BiLMWeights,
        start: StartState,
        k: int,
        layout: Layout,
        *args: Any,
    ) -> None:
        if layout.lanes > 16:
            raise torch.OutOfMemoryError("injected")
        make(self, weights, start, k, layout, *args)

    monkeypatch.setattr(CudaDirection, "__init__", picky)
    model = Embedder(tiny, StartState.zero(tiny.options), replace(SETTINGS, lanes=64))
    assert model._device.limits.lane_choices == [16]


@pytest.mark.slow
@pytest.mark.usefixtures("on_cpu")
def test_out_of_memory_without_end_is_an_error(
    tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = _failing_window(monkeypatch, fails=10**6)
    with pytest.raises(torch.OutOfMemoryError, match="injected"):
        embed(Embedder(tiny, StartState.zero(tiny.options), replace(SETTINGS, lanes=64)))
    assert set(lanes) == {64, 32, 16}


@pytest.mark.slow
@pytest.mark.usefixtures("on_cpu")
def test_out_of_memory_in_the_character_cnn_halves_the_lanes_too(
    tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, settings = StartState.zero(tiny.options), replace(SETTINGS, lanes=64)
    want = embed(Embedder(tiny, start, SETTINGS))
    compute, model = WordVectors.compute, Embedder(tiny, start, settings)

    def picky(self: WordVectors, ids: npt.NDArray[np.int16]) -> torch.Tensor:
        if model._device.limits.lane_choices != [32]:
            raise torch.OutOfMemoryError("injected")
        return compute(self, ids)

    monkeypatch.setattr(WordVectors, "compute", picky)
    np.testing.assert_allclose(embed(model), want, rtol=0, atol=1e-6)

    def never(self: WordVectors, ids: npt.NDArray[np.int16]) -> torch.Tensor:
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(WordVectors, "compute", never)
    with pytest.raises(torch.OutOfMemoryError, match="injected"):
        embed(Embedder(tiny, start, SETTINGS))


@pytest.mark.slow
def test_a_plan_goes_to_the_device_by_one_copy(
    tiny: BiLMWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many windows it has, and whether the table knows their words; the opening is a plan of its own, once."""
    direction = CudaDevice(
        tiny, StartState.zero(tiny.options), SETTINGS, torch.device("cpu")
    ).directions[0]
    sent: list[int] = []

    def counted(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
        sent.append(values.size)
        return torch.from_numpy(values)

    monkeypatch.setattr(device_module, "send", counted)
    monkeypatch.setattr(cuda, "send", counted)
    plan = plan_direction(
        sequences_of([[0, *range(1, n)] for n in range(2, 90)]),
        16,
        Limits([16], cuda.WINDOW, 1 << 12),
    )
    assert len(plan.windows) > 10
    x, outputs = torch.randn(100, tiny.options.projection_dim), []
    for _ in range(2):
        states: list[torch.Tensor] = []

        def keep(_: object, layers: Any, states: list[torch.Tensor] = states) -> None:
            states.extend(layer.clone() for layer in layers)

        direction.run(plan, x, 0, keep)
        outputs.append(torch.cat([t.flatten() for t in states]))
    assert len(sent) == 3
    assert (sent[1] - sent[2]) % (
        2 * cuda.TABLE_BLOCK
    ) == 0  # blocks of words and slots that the table did not know
    assert sent[1] > sent[2]
    assert torch.equal(*outputs)


def test_precision_of_products_is_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision(tf32=True):
        assert torch.get_float32_matmul_precision() == "high"
    with matmul_precision(tf32=False):
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == before


def test_without_triton_the_plain_cell_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert select_cell(torch.device("cpu"), "torch") is cell
    monkeypatch.setitem(sys.modules, "model.engine.cell_triton", None)
    monkeypatch.delattr("model.engine.cell_triton", raising=False)  # of a test that has imported it
    with caplog.at_level(logging.WARNING):
        assert select_cell(torch.device("cuda")) is cell
    assert (
        "the kernels of the cell are off, computing it with plain torch (slower): it is not installed"
        in caplog.text
    )


_COMPARE_KERNELS = """
import torch
from model.engine import cell, cell_triton
from model.engine.cell import CellBuffers, OutputBuffers
torch.manual_seed(0)
lanes, p, d = 5, 24, 40
for dtype, tolerance in ((torch.float32, 2e-6), (torch.bfloat16, 2e-2)):
    for with_table in (True, False):
        for clip in (0.5, float("inf")):
            for with_skip in (True, False):
                begins = torch.tensor([0, 1, 1, 0, 1])
                gates = torch.randn(lanes, 4 * d).to(dtype); table = torch.randn(7, 4 * d).to(dtype)
                row = torch.randint(0, 7, (lanes,))
                c, begin_c = torch.randn(lanes, d), torch.randn(d)
                xh = torch.randn(lanes, 2 * p).to(dtype); begin_h = torch.randn(p).to(dtype)
                projected = torch.randn(lanes, p).to(dtype); after = torch.randn(lanes, 2 * p).to(dtype)
                results = []
                for ops in (cell, cell_triton):
                    c_k, xh_k, after_k = (t.clone() for t in (c, xh, after))
                    hidden, output = torch.zeros(lanes, d, dtype=dtype), torch.zeros(lanes, p)
                    cell.load_h(xh_k[:, p:], begin_h, begins)
                    rows = table if with_table else None
                    ops.cell(CellBuffers(gates, rows, row, c_k, begins, begin_c, hidden, clip))
                    skip, following = (xh_k[:, :p], after_k[:, :p]) if with_skip else (None, None)
                    ops.finish(OutputBuffers(projected, xh_k[:, p:], skip, output, following, clip))
                    results.append((c_k, xh_k, after_k, hidden, output))
                for a, b in zip(*results):
                    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)
assert cell_triton.check(torch.device("cpu"))
print("kernels agree")
"""


@pytest.mark.slow
def test_triton_kernels_agree_with_plain_torch_in_the_interpreter(
    interpreted: Callable[[str], str],
) -> None:
    assert "kernels agree" in interpreted(_COMPARE_KERNELS)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_on_a_gpu_states_agree_with_the_cpu(tiny: BiLMWeights, precision: str) -> None:
    start = compute_warm(tiny)
    want = embed(Embedder(tiny, start, SETTINGS))
    gpu = Embedder(tiny, start, replace(SETTINGS, device="cuda", precision=precision, lanes=64))  # type: ignore[arg-type]
    for _ in range(2):  # the second time from the captured graph
        np.testing.assert_allclose(
            embed(gpu), want, rtol=0, atol=1e-5 if precision == "float32" else 0.03
        )


def assert_bytes_are_a_sentences_own(new: Callable[[int], Embedder]) -> None:
    """Whatever the company and its order; ``new`` makes an engine of so many lanes, which may show in last bits."""
    few, sentences = new(64), [s for s in SENTENCES if s]
    states = np.split(embed(few), np.cumsum([len(s) for s in sentences])[:-1])
    turned = few.embed(sentences[::-1], dtype="float32")
    np.testing.assert_array_equal(turned, np.concatenate(states[::-1]))
    for i in (0, 2, 30):
        alone = few.embed([sentences[i]], dtype="float32")
        np.testing.assert_array_equal(alone, states[i])
    np.testing.assert_allclose(embed(new(256)), np.concatenate(states), rtol=0, atol=0.03)


OF_WHOLE_TILES = BiLMOptions(3.0, 3.0, True, 64, 512, 2, "relu", ((1, 16), (2, 16)), 1, 8)


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no GPU here: that bytes are a sentence's own on one is not tested",
)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("options", [OF_WHOLE_TILES, SHAPES["full"]], ids=["small", "full size"])
def test_on_a_gpu_bytes_depend_on_the_sentence_alone(
    precision: Precision, options: BiLMOptions
) -> None:
    weights = random_weights(options, seed=3)
    settings = EngineSettings(device="cuda", precision=precision)
    start = compute_warm(weights)
    assert_bytes_are_a_sentences_own(
        lambda lanes: Embedder(weights, start, replace(settings, lanes=lanes))
    )


@pytest.mark.usefixtures("on_cpu")
def test_without_a_gpu_bytes_depend_on_the_sentence_alone_too() -> None:
    weights = random_weights(OF_WHOLE_TILES, seed=3)
    start = compute_warm(weights)
    assert_bytes_are_a_sentences_own(
        lambda lanes: Embedder(weights, start, replace(SETTINGS, lanes=lanes))
    )


def test_a_jobs_call_is_one_group_in_which_one_long_sentence_is_computed_apart() -> None:
    assert cuda.GROUP_ROWS >= embed_job.CUDA_ROWS_AT_ONCE
    assert cuda.long_tokens(cuda.LANES, cuda.GROUP_ROWS) < 512
    assert cuda.long_tokens(cuda.LANES // 2, cuda.GROUP_ROWS // 2) == cuda.long_tokens(
        cuda.LANES, cuda.GROUP_ROWS
    )
    lines = [*take(made_up_text(), 600_000), [f"w{i}" for i in range(512)]]
    window, long = cuda.WINDOW, cuda.long_tokens(cuda.LANES, cuda.GROUP_ROWS)
    limits = Limits(
        [cuda.LANES], window, window * cuda.LANES, (cuda.LONG_LANES,), long, cuda.GROUP_ROWS
    )
    text = Text.of(lines)
    prepared = Host(1 << 18, (BOS, EOS)).prepare(text, limits, boundaries=False)
    (group,) = prepared.groups
    plans = [grid.plan for side in group.planned for grid in side]
    assert sum(plan.n_computed for plan in plans) > 0.9 * sum(plan.n_cells for plan in plans)


def test_the_module_constants_fit_each_other() -> None:
    assert cuda.LANES * cuda.WINDOW <= cuda.TABLE_ROWS  # slots that the gate table may have
    assert cuda.LEAST_LANES < cuda.LANES
