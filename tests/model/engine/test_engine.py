"""The engine against the float64 reference and the goldens, and against itself in other batches."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from model.engine import cpu, products, word_vectors
from model.engine.cell import select_cell
from model.engine.embedder import Embedder, EngineSettings, Text
from model.files.registry import SMALL_OPTIONS, random_weights
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from model.start_state import StartState
from model.warm import compute_warm
from tests.model.lanes import embed_carried, golden_lanes, golden_top_layers, part_of
from tests.model.reference import ReferenceBiLM, reference_of

CPU = EngineSettings(device="cpu", lanes=32, threads=2)
SENTENCES = [
    ["The", "cat", "sat", "."],
    [],
    ["Ünïcode", "日本語", "a" * 60, "", "<S>", "naïve" * 12, "x" * 40, "y" * 43, "z" * 47],
    ["The", "cat", "sat", "down", "on", "the", "mat", "."],
    ["The", "cat", "sat", "."],
    ["one"],
]


def text(n: int, seed: int, longest: int = 30) -> list[list[str]]:
    """Sentences of made-up words with common beginnings, endings and repetitions, as text has them."""
    rng = np.random.default_rng(seed)
    words = [f"w{int(k)}" * int(rng.integers(1, 4)) for k in range(200)]
    ranks = 1 / np.arange(1, 201)
    sentences = [
        [
            words[int(k)]
            for k in rng.choice(200, int(rng.integers(1, longest)), p=ranks / ranks.sum())
        ]
        + ["."]
        for _ in range(n)
    ]
    return sentences + sentences[: n // 4]


@pytest.fixture(scope="module")
def small() -> BiLMWeights:
    """Wide enough for full vectors and several products a step."""
    filters = ((1, 32), (2, 32), (3, 64), (7, 128))
    return random_weights(
        replace(SMALL_OPTIONS, projection_dim=64, dim=256, filters=filters, n_highway=2), seed=11
    )


@pytest.fixture(scope="module")
def warm(small: BiLMWeights) -> StartState:
    return compute_warm(small)


def without_packed_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose PyTorch has none."""
    monkeypatch.setattr(products, "onednn_problem", lambda dtype: "taken away by a test")


@pytest.mark.parametrize("kind", ["zero", "warm"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("boundaries", [True, False])
def test_all_states_agree_with_the_reference(
    tiny: BiLMWeights,
    tiny_reference: ReferenceBiLM,
    kind: str,
    packed: bool,
    boundaries: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not packed:
        without_packed_products(monkeypatch)
    start = StartState.zero(tiny.options) if kind == "zero" else compute_warm(tiny)
    embedder = Embedder(tiny, start, CPU)
    states = embedder.embed(SENTENCES, boundaries=boundaries, dtype="float32")
    want = [tiny_reference.states(s, start.h.numpy(), start.c.numpy()) for s in SENTENCES if s]
    np.testing.assert_allclose(
        states, np.concatenate([w if boundaries else w[1:-1] for w in want]), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    "change",
    [
        {"cell_clip": float("inf")},
        {"proj_clip": float("inf")},
        {"use_skip_connections": False},
        {"n_layers": 1},
    ],
)
def test_variants_of_the_options_agree_with_the_reference(
    tiny_options: BiLMOptions, change: dict[str, float | bool | int], tmp_path: Path
) -> None:
    weights = random_weights(replace(tiny_options, **change), seed=3)  # type: ignore[arg-type]
    reference = reference_of(weights, tmp_path)
    states = Embedder(weights, StartState.zero(weights.options), CPU).embed(
        SENTENCES, dtype="float32"
    )
    want = np.concatenate([reference.states(s)[1:-1] for s in SENTENCES if s])
    np.testing.assert_allclose(states, want, rtol=0, atol=1e-5)


def test_all_thirty_goldens_agree(shared_dir: Path, golden_weights: BiLMWeights) -> None:
    embedder = Embedder(golden_weights, StartState.zero(golden_weights.options), CPU)
    computed = embed_carried(embedder, golden_lanes(shared_dir))
    errors = [
        np.abs(states[:, -2:].transpose(1, 0, 2) - want).max()
        for lane, wanted in zip(computed, golden_top_layers(shared_dir), strict=True)
        for states, want in zip(lane, wanted, strict=True)
    ]
    assert len(errors) == 30
    assert max(errors) < 1e-5


def test_carried_states_agree_with_the_reference(
    tiny: BiLMWeights, tiny_reference: ReferenceBiLM
) -> None:
    lanes = [SENTENCES, SENTENCES[::-1]]
    computed = embed_carried(Embedder(tiny, StartState.zero(tiny.options), CPU), lanes)
    for lane, wanted in zip(computed, tiny_reference.carry(lanes), strict=True):
        for states, want in zip(lane, wanted, strict=True):
            np.testing.assert_allclose(states, want[1:-1], rtol=0, atol=1e-5)


def embedded(embedder: Embedder, sentences: list[list[str]]) -> npt.NDArray[np.floating]:
    return embedder.embed(sentences, dtype="float32")


def _alone(embedder: Embedder, sentences: list[list[str]]) -> list[npt.NDArray[np.floating]]:
    return [embedder.embed([s], dtype="float32") for s in sentences]


NEEDS_INT8 = pytest.mark.skipif(
    products.int8_problem() is not None, reason=f"no 8-bit products: {products.int8_problem()}"
)


@NEEDS_INT8
def test_8_bit_products_stay_near_and_bytes_do_not_depend_on_batch_composition(
    small: BiLMWeights, warm: StartState
) -> None:
    settings = replace(CPU, precision="int8", lanes=64)
    sentences = text(50, seed=1)
    exact = Embedder(small, warm, CPU).embed(sentences, dtype="float32")
    together = Embedder(small, warm, settings).embed(sentences, dtype="float32")
    for state in range(5):
        a, b = exact[:, state].astype(np.float64), together[:, state].astype(np.float64)
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        assert cosine.min() > 0.995, f"state {state}"
    rows = np.split(together, np.cumsum([len(s) for s in sentences])[:-1])
    turned = Embedder(small, warm, settings).embed(sentences[::-1], dtype="float32")
    np.testing.assert_array_equal(np.concatenate(rows[::-1]), turned)
    for i, alone in enumerate(_alone(Embedder(small, warm, settings), sentences[:8])):
        np.testing.assert_array_equal(alone, rows[i], err_msg=f"sentence {i}")


def test_8_bit_products_are_refused_where_they_would_be_slow(
    small: BiLMWeights, warm: StartState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "int8_problem", lambda: "taken away by a test")
    with pytest.raises(
        ValueError, match="int8 can't be had here: taken away by a test; take bfloat16"
    ):
        Embedder(small, warm, replace(CPU, precision="int8"))


def test_amx_is_what_pytorch_says_and_8_bit_products_are_refused_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert products.has_amx()
    assert "has AMX" in str(products.int8_problem.__wrapped__())
    monkeypatch.delattr(
        torch.cpu, "_is_amx_tile_supported"
    )  # an earlier PyTorch, which does not tell
    assert not products.has_amx()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("packed", [True, False])
def test_bytes_do_not_depend_on_batch_composition(
    small: BiLMWeights,
    warm: StartState,
    precision: str,
    packed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not packed:
        without_packed_products(monkeypatch)
    settings = replace(CPU, precision=precision, lanes=64)  # type: ignore[arg-type]
    sentences = text(120, seed=1)
    together = Embedder(small, warm, settings).embed(sentences, dtype="float32")
    # Backwards, so that lanes, forks and the order of words are all others.
    turned = Embedder(small, warm, settings).embed(sentences[::-1], dtype="float32")
    ends = np.cumsum([len(s) for s in sentences])
    rows = np.split(together, ends[:-1])
    np.testing.assert_array_equal(np.concatenate(rows[::-1]), turned)
    # One at a time, in an engine that has seen other text: other numbers of lanes, other tables.
    used = Embedder(small, warm, settings)
    used.embed(text(30, seed=2))
    picked = range(0, len(sentences), 7)
    for i, alone in zip(picked, _alone(used, [sentences[i] for i in picked]), strict=True):
        np.testing.assert_array_equal(alone, rows[i], err_msg=f"sentence {i}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision", ["float32", "bfloat16", pytest.param("int8", marks=NEEDS_INT8)]
)
def test_lanes_change_no_byte(
    small: BiLMWeights, warm: StartState, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, sentences = replace(CPU, precision=precision), text(60, seed=14)  # type: ignore[arg-type]
    want = embedded(Embedder(small, warm, settings), sentences)
    for lanes in (64, 128, 256, 512):
        embedder = Embedder(small, warm, replace(settings, lanes=lanes))
        monkeypatch.setattr(
            embedder._device, "limits", replace(embedder._device.limits, lane_choices=[lanes])
        )
        np.testing.assert_array_equal(embedded(embedder, sentences), want, err_msg=f"{lanes} lanes")


@pytest.mark.parametrize("cell", ["c", "torch"])
def test_bytes_do_not_depend_on_batch_composition_where_no_width_is_a_multiple_of_a_vector(
    cell: str,
) -> None:
    if cell == "c" and select_cell(torch.device("cpu")).NAME != "c":
        pytest.skip("the C extension was not built")
    options = BiLMOptions(3.0, 3.0, True, 30, 75, 2, "relu", ((1, 7), (3, 12)), 1, 5)
    weights = random_weights(options, seed=2)
    start = compute_warm(weights)
    settings = replace(CPU, lanes=64, cell=cell)  # type: ignore[arg-type]
    sentences = text(60, seed=3)
    together = Embedder(weights, start, settings).embed(sentences, dtype="float32")
    rows = np.split(together, np.cumsum([len(s) for s in sentences])[:-1])
    used = Embedder(weights, start, settings)
    turned = used.embed(sentences[::-1], dtype="float32")
    np.testing.assert_array_equal(np.concatenate(rows[::-1]), turned)
    for i, alone in enumerate(_alone(used, sentences[:12])):
        np.testing.assert_array_equal(alone, rows[i], err_msg=f"sentence {i}")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (cpu, "TABLE_BYTES", 1 << 20),
        (cpu, "TABLE_BYTES", 0),
        (word_vectors, "WIDTH_STEP", 50),  # all words at full width
        (cpu.CpuDevice, "word_capacity", 50),
    ],
)
def test_no_saving_changes_a_byte(
    small: BiLMWeights,
    warm: StartState,
    precision: str,
    owner: Any,
    name: str,
    value: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(CPU, precision=precision)  # type: ignore[arg-type]
    sentences = text(60, seed=4)
    want = [
        embedded(Embedder(small, warm, settings), part) for part in (sentences[:50], sentences[50:])
    ]
    monkeypatch.setattr(owner, name, value)
    plain = Embedder(small, warm, settings)
    for part, wanted in zip((sentences[:50], sentences[50:]), want, strict=True):
        np.testing.assert_array_equal(embedded(plain, part), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 8])
def test_threads_change_no_byte(
    small: BiLMWeights, warm: StartState, precision: str, threads: int
) -> None:
    settings = replace(CPU, precision=precision)  # type: ignore[arg-type]
    sentences = text(60, seed=4)
    want = embedded(Embedder(small, warm, settings), sentences)
    np.testing.assert_array_equal(
        embedded(Embedder(small, warm, replace(settings, threads=threads)), sentences), want
    )


def test_any_rows_of_a_sentence_can_be_had_alone(small: BiLMWeights, warm: StartState) -> None:
    embedder = Embedder(small, warm, CPU)
    sentence = text(1, seed=5, longest=60)[0]
    for boundaries in (False, True):
        full = embedder.embed([sentence], boundaries=boundaries, dtype="float32")
        for first, stop in ((0, 1), (3, len(full) - 2), (len(full) - 1, len(full)), (2, 2)):
            part = embedder.embed(
                part_of([sentence], [first], [stop]), boundaries=boundaries, dtype="float32"
            )
            np.testing.assert_array_equal(part, full[first:stop])


def test_float16_is_float32_rounded(small: BiLMWeights, warm: StartState) -> None:
    embedder = Embedder(small, warm, CPU)
    full = embedder.embed(SENTENCES, dtype="float32")
    half = embedder.embed(SENTENCES)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, full.astype(np.float16))


def test_a_sentence_of_many_windows_agrees_with_its_pieces(
    tiny: BiLMWeights, tiny_reference: ReferenceBiLM
) -> None:
    sentence = [f"w{i % 17}" for i in range(700)]
    states = Embedder(tiny, StartState.zero(tiny.options), CPU).embed([sentence], dtype="float32")
    np.testing.assert_allclose(states, tiny_reference.states(sentence)[1:-1], rtol=0, atol=1e-5)


def test_bfloat16_stays_near(small: BiLMWeights, warm: StartState) -> None:
    sentences = text(40, seed=6)
    exact = Embedder(small, warm, CPU).embed(sentences, dtype="float32")
    rough = Embedder(small, warm, replace(CPU, precision="bfloat16")).embed(
        sentences, dtype="float32"
    )
    for state in range(5):
        a, b = exact[:, state].astype(np.float64), rough[:, state].astype(np.float64)
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        assert cosine.min() > 0.999, f"state {state}"


def test_stats_count_what_was_saved(small: BiLMWeights, warm: StartState) -> None:
    embedder = Embedder(small, warm, CPU)
    sentences = text(100, seed=8)
    stats = embedder.run(embedder.prepare(sentences)).stats
    n_rows = sum(map(len, sentences))
    assert stats.rows == n_rows
    assert stats.cells_used < 2 * n_rows
    assert stats.cells / 2 < stats.cells_used <= stats.cells
    assert stats.seconds_lstm > 0


@pytest.mark.slow
def test_an_endless_sentence_beside_short_ones(tiny: BiLMWeights) -> None:
    """Forward rows follow from what stands before them, backward rows from what comes after: short copies give both ends."""
    start = compute_warm(tiny)
    endless = [f"w{k * k % 97}" for k in range(5_000)]
    short = ["The", "cat", "sat", "."]
    embedder = Embedder(tiny, start, CPU)
    running = embedder.run(embedder.prepare([short, endless]), dtype="float32")
    states = running.result()
    assert isinstance(states, np.ndarray)
    ends = Embedder(tiny, start, CPU).embed([short, endless[:40], endless[-40:]], dtype="float32")
    np.testing.assert_array_equal(states[:4], ends[:4])
    forward, backward = [1, 3, 5], [2, 4, 6]
    np.testing.assert_array_equal(states[4:44, forward], ends[4:44, forward])
    np.testing.assert_array_equal(states[-40:, backward], ends[-40:, backward])
    assert running.stats.cells_used == 2 * (
        5_000 + 4
    )  # the boundary is computed once for all calls


@pytest.mark.slow
def test_the_end_of_a_long_line_is_computed_with_few_lanes_and_the_same_bytes(
    small: BiLMWeights, warm: StartState, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = [*text(80, seed=9), [f"w{i % 23}" for i in range(400)]]
    embedder, plain = (
        Embedder(small, warm, replace(CPU, lanes=64)),
        Embedder(small, warm, replace(CPU, lanes=64)),
    )
    monkeypatch.setattr(plain._device, "limits", replace(plain._device.limits, lane_choices=[64]))
    narrow, wide = (
        each.run(each.prepare(sentences), dtype="float32") for each in (embedder, plain)
    )
    np.testing.assert_array_equal(narrow.result(), wide.result())
    assert narrow.stats.cells < wide.stats.cells / 2


def test_two_phases_may_overlap_and_a_call_that_is_never_run_costs_nothing(
    small: BiLMWeights, warm: StartState, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [text(30, seed=k) for k in (10, 11, 12, 13)]
    want = [Embedder(small, warm, CPU).embed(call, dtype="float32") for call in calls]
    monkeypatch.setattr(cpu.CpuDevice, "word_capacity", 150)
    embedder = Embedder(small, warm, CPU)
    prepared = [embedder.prepare(call) for call in calls]  # the book is emptied between them
    for k in (3, 0, 2):  # in whatever order they are run
        np.testing.assert_array_equal(embedder.run(prepared[k], dtype="float32").result(), want[k])


def test_a_call_tells_how_long_the_device_waited_for_it(
    small: BiLMWeights, warm: StartState
) -> None:
    embedder = Embedder(small, warm)
    first, second = (embedder.run(embedder.prepare(text(3, seed))) for seed in (1, 2))
    assert first.seconds_idle == 0.0
    assert second.seconds_idle > 0.0  # while it was prepared


def test_nothing_in_nothing_out(tiny: BiLMWeights) -> None:
    embedder = Embedder(tiny, StartState.zero(tiny.options), CPU)
    nothings: list[Text | list[list[str]]] = [[], [[]], part_of([["a"]], [1], [1])]
    for boundaries in (False, True):
        for nothing in nothings:
            assert embedder.embed(nothing, boundaries=boundaries).shape == (0, 7, 8)


@pytest.mark.parametrize(
    ("tokens", "first", "stop", "boundaries"),
    [(["a"], 0, 2, False), (["a"], 2, 1, True), ([], 0, 2, True), (["a"], -1, 1, True)],
)
def test_rows_that_are_not_there_are_refused(
    tiny: BiLMWeights, tokens: list[str], first: int, stop: int, boundaries: bool
) -> None:
    embedder = Embedder(tiny, StartState.zero(tiny.options), CPU)
    with pytest.raises(ValueError, match=f"rows {first} to {stop}"):
        embedder.embed(part_of([tokens], [first], [stop]), boundaries=boundaries)


@pytest.mark.parametrize("change", [{"precision": "float64"}, {"device": "tpu"}])
def test_settings_are_checked(change: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(change.values())))):
        replace(CPU, **change)  # type: ignore[arg-type]


def test_without_packed_products_one_line_is_logged_and_numbers_agree(
    small: BiLMWeights,
    warm: StartState,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    want = Embedder(small, warm, CPU).embed(SENTENCES, dtype="float32")
    without_packed_products(monkeypatch)
    products._say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        got = Embedder(small, warm, CPU).embed(SENTENCES, dtype="float32")
    assert [
        record.message for record in caplog.records if "taken away by a test" in record.message
    ] == [
        "packed products are off, computing with torch.nn.functional.linear (slower): taken away by a test"
    ]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
