"""One contract for all that computes the cell: plain torch, C with every instruction set of this processor."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from model.engine import cell
from model.engine.cell import CellBuffers, OutputBuffers, kernel_module, select_cell

CPU = torch.device("cpu")
CELL_C: Any = kernel_module("model.engine.cell_c", CPU)
LANES, P, D = 5, 24, 300  # D is no multiple of a vector, and more than a strip of the C cell
NEEDS_C = pytest.mark.skipif(isinstance(CELL_C, str), reason=f"no C cell: {CELL_C}")


def inputs(dtype: torch.dtype, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def made(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    return {
        "gates": made(LANES, 4 * D, scale=4).to(dtype),
        "table": made(7, 4 * D, scale=4).to(dtype),
        "row": torch.randint(0, 7, (LANES,), generator=generator),
        "c": made(LANES, D),
        "begin_c": made(D),
        "xh": made(LANES, 2 * P).to(dtype),
        "begin_h": made(P).to(dtype),
        "projected": made(LANES, P).to(dtype),
        "after": made(LANES, 2 * P).to(dtype),
        "begins": torch.tensor([0, 1, 1, 0, 1]),
    }


def step(
    ops: Any, given: dict[str, Tensor], table: bool, skip: bool, begin: bool, clip: float
) -> list[Tensor]:
    """All that a step's functions leave behind."""
    t = {name: tensor.clone() for name, tensor in given.items()}
    begins = t["begins"] if begin else None
    hidden, output = torch.zeros(LANES, D, dtype=t["gates"].dtype), torch.zeros(LANES, P)
    cell.load_h(t["xh"][:, P:], t["begin_h"], begins)
    rows = t["table"] if table else None
    ops.cell(CellBuffers(t["gates"], rows, t["row"], t["c"], begins, t["begin_c"], hidden, clip))
    x, following = (t["xh"][:, :P], t["after"][:, :P]) if skip else (None, None)
    ops.finish(OutputBuffers(t["projected"], t["xh"][:, P:], x, output, following, clip))
    return [t["c"], t["xh"].float(), t["after"].float(), hidden.float(), output]


def exact(given: dict[str, Tensor], table: bool, clip: float) -> tuple[Tensor, Tensor]:
    """c and hidden in float64, from the equations."""
    total = given["gates"].double() + (given["table"][given["row"]].double() if table else 0)
    i, f, g, o = total.chunk(4, dim=1)
    before = torch.where((given["begins"] > 0)[:, None], given["begin_c"], given["c"]).double()
    c = (torch.sigmoid(f) * before + torch.sigmoid(i) * torch.tanh(g)).clamp(-clip, clip)
    return c, torch.sigmoid(o) * torch.tanh(c)


def variants() -> list[Any]:
    """The C cell with each instruction set of this processor."""
    if isinstance(CELL_C, str):
        return []
    kernels = (CELL_C.cell, CELL_C.finish)
    parts = [
        [partial(function, variant=k) for function in kernels] for k in range(len(CELL_C.VARIANTS))
    ]
    return [SimpleNamespace(cell=run, finish=end) for run, end in parts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip", [0.5, float("inf")])
@pytest.mark.parametrize(
    "flags", [(True, True, True), (False, False, True), (True, False, False), (False, True, False)]
)
def test_all_agree_with_plain_torch_and_the_c_ones_to_the_bit(
    dtype: torch.dtype, clip: float, flags: tuple[bool, bool, bool]
) -> None:
    given = inputs(dtype)
    want = step(cell, given, *flags, clip)
    computed = [step(ops, given, *flags, clip) for ops in variants()]
    for results in computed:
        for got, wanted in zip(results, want, strict=True):
            torch.testing.assert_close(
                got, wanted, rtol=0, atol=2e-6 if dtype == torch.float32 else 2e-2
            )
        for got, first in zip(results, computed[0], strict=True):
            assert torch.equal(got, first)


@pytest.mark.parametrize("ops", [cell, *variants()])
def test_errors_are_small_up_to_the_ends_of_the_gates(ops: Any) -> None:
    given = inputs(torch.float32)
    for scale in (0.01, 1.0, 10.0, 1000.0):
        given["gates"] = inputs(torch.float32, seed=1)["gates"] * scale
        results = step(ops, given, True, False, True, 3.0)
        c, hidden = exact(given, True, 3.0)
        assert (results[0] - c).abs().max() < 1e-6
        assert (results[3] - hidden).abs().max() < 5e-7


@NEEDS_C
def test_nan_stays_nan() -> None:
    """Weights are finite, so there is none; but were there one, it must not turn into a number that looks right."""
    for dtype in (torch.float32, torch.bfloat16):
        given = inputs(dtype)
        given["gates"][1, 7] = float("nan")
        results = step(CELL_C, given, False, False, False, 3.0)
        assert results[0][1, 7].isnan()
        assert results[3][1, 7].isnan()
        assert not results[0][0].isnan().any()


@NEEDS_C
def test_threads_and_places_do_not_show() -> None:
    given = inputs(torch.float32)
    lanes = 64
    gates, c = given["gates"][:1].repeat(lanes, 1), given["c"][:1].repeat(lanes, 1)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3, 8):
            torch.set_num_threads(threads)
            after, hidden = c.clone(), torch.empty_like(c)
            CELL_C.cell(
                CellBuffers(gates, None, given["row"], after, None, given["begin_c"], hidden, 3.0)
            )
            results.append(torch.cat([after, hidden], dim=1))
    finally:
        torch.set_num_threads(before)
    for result in results:
        assert torch.equal(result, results[0][:1].expand(lanes, -1))


def test_without_the_extension_plain_torch_computes_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cell, "kernel_module", lambda name, device: "taken away by a test")
    assert select_cell(CPU) is cell
    assert (
        "the kernels of the cell are off, computing it with plain torch (slower): taken away by a test"
        in caplog.text
    )
    with pytest.raises(ValueError, match="taken away by a test"):
        select_cell(CPU, "c")
    assert select_cell(CPU, "torch") is cell


@NEEDS_C
def test_kernels_that_give_wrong_numbers_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CELL_C, "cell", lambda buffers: buffers.hidden.zero_())
    assert kernel_module("model.engine.cell_c", CPU) == "it gave wrong numbers"
    assert select_cell(CPU) is cell
