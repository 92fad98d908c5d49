"""The recurrence's own gradient, convolutions by look-up and the C kernels against plain PyTorch."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from model.bilm import LSTMLayer, char_cnn, run_layers
from model.characters import BOS, EOS, char_ids
from model.options import BiLMOptions
from model.training import kernels
from model.training.errors import TrainingError
from model.training.network import LSTMRecurrence, Network, convolve, initial_parameters

STEPS, BATCH, P, D = 7, 5, 4, 6
WEIGHTS = ("weight_ih", "weight_hh", "bias", "weight_proj")


def made(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "x": (STEPS, BATCH, P),
        "h_0": (BATCH, P),
        "c_0": (BATCH, D),
        "weight_ih": (4 * D, P),
        "weight_hh": (4 * D, P),
        "bias": (4 * D,),
        "weight_proj": (P, D),
    }
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


# Clips that never bite, and clips that bite often: their gradient is zero there.
@pytest.mark.parametrize(("cell_clip", "proj_clip"), [(100.0, 100.0), (0.6, 0.4)])
def test_gradient_is_that_of_plain_autograd(cell_clip: float, proj_clip: float) -> None:
    tensors = made()
    leaves = ("x", *WEIGHTS)
    for name in leaves:
        tensors[name].requires_grad_()
    upstream = torch.randn(STEPS, BATCH, P, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    h, c = LSTMRecurrence.apply(*tensors.values(), cell_clip, proj_clip)
    got = torch.autograd.grad(h, [tensors[name] for name in leaves], upstream)
    w_ih, w_hh, bias, w_proj = (tensors[name] for name in WEIGHTS)
    layer = LSTMLayer(w_ih, w_hh, bias, w_proj, cell_clip, proj_clip)
    plain, last_h, last_c = run_layers([layer], tensors["x"], tensors["h_0"][None], tensors["c_0"][None], skip=True)
    want = torch.autograd.grad(plain[0], [tensors[name] for name in leaves], upstream)
    torch.testing.assert_close(h, plain[0])
    torch.testing.assert_close(h[-1], last_h[0])
    torch.testing.assert_close(c, last_c[0])
    if proj_clip < 1:
        assert 0.05 < float((plain[0].abs() == proj_clip).double().mean()) < 0.95  # the case is what it says
    for name, ours, theirs in zip(leaves, got, want, strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


@pytest.mark.parametrize("compiled", [True, False])
def test_bfloat16_gradient_is_near_the_exact_one(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(kernels, "_library", lambda: None)
    tensors = made(2)
    exact = {name: tensor.clone().requires_grad_(name not in ("h_0", "c_0")) for name, tensor in tensors.items()}
    h, _ = LSTMRecurrence.apply(*exact.values(), 3.0, 3.0)
    h.sum().backward()
    rough = {name: tensor.float().requires_grad_(name not in ("h_0", "c_0")) for name, tensor in tensors.items()}
    inputs = [rough["x"].to(torch.bfloat16), *list(rough.values())[1:]]
    h, _ = LSTMRecurrence.apply(*inputs, 3.0, 3.0)
    h.float().sum().backward()
    for name in ("x", *WEIGHTS):
        ours, theirs = rough[name].grad, exact[name].grad
        assert ours is not None
        assert theirs is not None
        assert float((ours - theirs).norm() / theirs.norm()) < 0.03, name


@pytest.mark.skipif(not kernels.compiled(), reason="no C compiler here: there is nothing to compare")
def test_c_kernels_compute_what_pytorch_does() -> None:
    generator = torch.Generator().manual_seed(4)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    batch, d = 3, 37  # no multiple of a vector's width
    products, bias, c_prev, dm, dc = some(batch, 4 * d), some(4 * d), some(batch, d) * 3, some(batch, d), some(batch, d)
    logits, row_bias, own, weight = some(5, 41) * 4, some(41), some(5), torch.tensor([1.0, 0.0, 1.0, 1.0, 0.5])

    def run() -> list[Tensor]:
        gates = torch.empty(batch, 4 * d, dtype=torch.bfloat16)
        c, m = torch.empty(batch, d), torch.empty(batch, d, dtype=torch.bfloat16)
        kernels.cell_forward(products.bfloat16(), bias, c_prev, gates, c, m, 1.5)
        activations = gates.clone()
        carried, dbias = dc.clone(), torch.zeros(4 * d)
        kernels.cell_backward(gates, dm.bfloat16(), carried, c_prev, c, dbias, 1.5)
        gradient = logits.bfloat16()
        loss, true_gradient = kernels.softmax_rows(gradient, row_bias, own, weight)
        return [activations, c, m, gates, carried, dbias, gradient, loss, true_gradient]

    with_c = run()
    with patch.object(kernels, "_library", return_value=None):
        plain = run()
    for ours, theirs in zip(with_c, plain, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2e-2, atol=2e-3)


WORDS = ["a", "", "bird", "Donaudampfschiffahrtsgesellschaftskapitän", "x" * 46, "y" * 47, "z" * 48, "w" * 90, BOS, EOS, "é"]


@pytest.mark.parametrize("compiled", [True, False])
def test_word_vectors_are_those_of_inference_and_so_are_their_gradients(small_options: BiLMOptions, compiled: bool) -> None:
    if compiled and not kernels.compiled():
        pytest.skip("no C compiler here")
    ids = torch.from_numpy(char_ids(WORDS).astype(np.int64))
    parameters = {name: value.requires_grad_() for name, value in initial_parameters(small_options, 1).items()}
    for name, value in parameters.items():
        if name.endswith("bias"):
            value.data.uniform_(-1, 1, generator=torch.Generator().manual_seed(8))
    ours = [value for name, value in parameters.items() if not name.startswith("lstm")]
    with patch.object(kernels, "compiled", return_value=compiled):
        x = Network(small_options, parameters, torch.float32).word_vectors(ids)
    want = char_cnn(parameters, small_options, ids)
    torch.testing.assert_close(x, want, rtol=1e-5, atol=1e-5)
    for got, expected in zip(torch.autograd.grad(x.sum(), ours), torch.autograd.grad(want.sum(), ours), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_loading_the_kernels_leaves_subnormal_numbers_alone() -> None:
    code = (
        "import numpy as np\n"
        "from model.training import kernels\n"
        "loaded = kernels._library() is not None\n"
        "print(loaded, float(np.float32(1e-38) * np.float32(0.01)) > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split()[1] == "True"


@pytest.mark.skipif(not kernels.compiled(), reason="no C compiler here: there is nothing to compare")
def test_convolutions_of_more_filters_than_a_block_holds() -> None:
    """4,097 and more filters of one width once wrote past the end of an array on the stack."""
    generator = torch.Generator().manual_seed(3)
    embed = torch.randn(262, 3, generator=generator)
    weights = [torch.randn(n, 3, width, generator=generator) for n, width in ((5000, 1), (7, 2), (513, 3))]
    ids = torch.from_numpy(char_ids(WORDS).astype(np.int64))
    with_c = convolve(ids, embed, weights)
    with patch.object(kernels, "compiled", return_value=False):
        plain = convolve(ids, embed, weights)
    torch.testing.assert_close(with_c, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not kernels.compiled(), reason="no C compiler here: there is nothing to compile")
@pytest.mark.parametrize("place", ["missing", "a file", "others may write"])
def test_a_cache_that_cannot_be_had_or_trusted_is_done_without(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    if place == "a file":
        cache.write_text("in the way")
    elif place == "others may write":
        (cache / "kernels").mkdir(parents=True)
        (cache / "kernels").chmod(0o777)
    monkeypatch.setattr(kernels, "cache_folder", lambda: cache)
    assert kernels._compiled_library.__wrapped__() is not None
    kept = list(cache.glob("kernels/*.so"))
    assert len(kept) == (1 if place == "missing" else 0)


def test_without_a_compiler_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no such instruction >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setattr(kernels, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(kernels, "_compiled_library", kernels._compiled_library.__wrapped__)
    with pytest.raises(TrainingError, match="they need a C compiler"):
        kernels.select("c")
    assert "training runs without C kernels: no such instruction" in caplog.text
    assert not kernels.compiled()


@pytest.mark.parametrize("size", [1.0, 30.0, 100.0, 1e4])
def test_a_cell_far_out_of_its_range_stays_finite(size: float) -> None:
    """exp(100) is infinite in float32; -ffast-math, then, made NaN of 1 / (1 + exp(100)), and a run of 13M tokens died."""
    generator = torch.Generator().manual_seed(0)
    batch, d = 3, 64
    products = (torch.randn(batch, 4 * d, generator=generator) * size).bfloat16()
    c_prev = torch.randn(batch, d, generator=generator)
    bias = torch.zeros(4 * d)

    def run(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        gates, c, m = torch.empty(batch, 4 * d, dtype=dtype), torch.empty(batch, d), torch.empty(batch, d, dtype=dtype)
        kernels.cell_forward(products.to(dtype), bias, c_prev, gates, c, m, 3.0)
        return gates, c, m

    for ours, plain in zip(run(torch.bfloat16), run(torch.float32), strict=True):
        torch.testing.assert_close(ours.float(), plain, atol=4e-3, rtol=4e-3)
