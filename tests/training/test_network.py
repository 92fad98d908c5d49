"""The recurrence's own gradient and the word vectors of training against plain PyTorch."""

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo_store.format.characters import char_ids
from model.bilm import LSTMLayer, char_cnn, run_layers
from model.characters import BOS, EOS
from model.options import BiLMOptions
from model.training import cell
from model.training.network import LSTMRecurrence, Network, initial_parameters

STEPS, BATCH, P, D = 7, 5, 4, 6
WEIGHTS = ("weight_ih", "weight_hh", "bias", "weight_proj")


def recurrence(
    tensors: dict[str, Tensor], cell_clip: float, proj_clip: float
) -> tuple[Tensor, Tensor]:
    x, h_0, c_0, *weights = tensors.values()
    h, c = LSTMRecurrence.apply(x, (h_0, c_0), *weights, (cell_clip, proj_clip))
    return h, c


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
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


# Clips that never bite, and clips that bite often: their gradient is zero there.
@pytest.mark.parametrize(("cell_clip", "proj_clip"), [(100.0, 100.0), (0.6, 0.4)])
def test_gradient_is_that_of_plain_autograd(cell_clip: float, proj_clip: float) -> None:
    tensors = made()
    leaves = ("x", *WEIGHTS)
    for name in leaves:
        tensors[name].requires_grad_()
    upstream = torch.randn(
        STEPS, BATCH, P, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    h, c = recurrence(tensors, cell_clip, proj_clip)
    got = torch.autograd.grad(h, [tensors[name] for name in leaves], upstream)
    w_ih, w_hh, bias, w_proj = (tensors[name] for name in WEIGHTS)
    layer = LSTMLayer(w_ih, w_hh, bias, w_proj, cell_clip, proj_clip)
    plain, last_h, last_c = run_layers(
        [layer], tensors["x"], tensors["h_0"][None], tensors["c_0"][None], skip=True
    )
    want = torch.autograd.grad(plain[0], [tensors[name] for name in leaves], upstream)
    torch.testing.assert_close(h, plain[0])
    torch.testing.assert_close(h[-1], last_h[0])
    torch.testing.assert_close(c, last_c[0])
    if proj_clip < 1:
        assert (
            0.05 < float((plain[0].abs() == proj_clip).double().mean()) < 0.95
        )  # the case is what it says
    for name, ours, theirs in zip(leaves, got, want, strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


def test_bfloat16_gradient_is_near_the_exact_one() -> None:
    tensors = made(2)
    exact = {
        name: tensor.clone().requires_grad_(name not in ("h_0", "c_0"))
        for name, tensor in tensors.items()
    }
    h, _ = recurrence(exact, 3.0, 3.0)
    h.sum().backward()
    rough = {
        name: tensor.float().requires_grad_(name not in ("h_0", "c_0"))
        for name, tensor in tensors.items()
    }
    h, _ = recurrence(rough | {"x": rough["x"].to(torch.bfloat16)}, 3.0, 3.0)
    h.float().sum().backward()
    for name in ("x", *WEIGHTS):
        ours, theirs = rough[name].grad, exact[name].grad
        assert ours is not None
        assert theirs is not None
        assert float((ours - theirs).norm() / theirs.norm()) < 0.03, name


WORDS = [
    "a",
    "",
    "bird",
    "Donaudampfschiffahrtsgesellschaftskapitän",
    "x" * 46,
    "y" * 47,
    "z" * 48,
    "w" * 90,
    BOS,
    EOS,
    "é",
]


def test_word_vectors_are_those_of_inference_and_so_are_their_gradients(
    small_options: BiLMOptions,
) -> None:
    ids = torch.from_numpy(char_ids(WORDS).astype(np.int64))
    parameters = {
        name: value.requires_grad_() for name, value in initial_parameters(small_options, 1).items()
    }
    for name, value in parameters.items():
        if name.endswith("bias"):
            value.data.uniform_(-1, 1, generator=torch.Generator().manual_seed(8))
    ours = [value for name, value in parameters.items() if not name.startswith("lstm")]
    x = Network(small_options, parameters, torch.float32).word_vectors(ids)
    want = char_cnn(parameters, small_options, ids)
    torch.testing.assert_close(x, want, rtol=1e-5, atol=1e-5)
    for got, expected in zip(
        torch.autograd.grad(x.sum(), ours), torch.autograd.grad(want.sum(), ours), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1.0, 30.0, 100.0, 1e4])
def test_a_cell_far_out_of_its_range_stays_finite(size: float) -> None:
    """exp(100) is infinite in float32; a cell that made NaN of 1 / (1 + exp(100)) once ended a run of 13M tokens."""
    generator = torch.Generator().manual_seed(0)
    batch, d = 3, 64
    products = (torch.randn(batch, 4 * d, generator=generator) * size).bfloat16()
    c_prev = torch.randn(batch, d, generator=generator)
    bias = torch.zeros(4 * d)

    def run(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        gates, c, m = (
            torch.empty(batch, 4 * d, dtype=dtype),
            torch.empty(batch, d),
            torch.empty(batch, d, dtype=dtype),
        )
        cell.cell_forward(products.to(dtype), bias, c_prev, gates, c, m, 3.0)
        return gates, c, m

    for ours, plain in zip(run(torch.bfloat16), run(torch.float32), strict=True):
        torch.testing.assert_close(ours.float(), plain, atol=4e-3, rtol=4e-3)
