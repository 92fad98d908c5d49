"""The sampled softmax against the full one and against plain autograd."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from model.errors import TrainingError
from model.training import softmax
from model.training.softmax import Negatives, SoftmaxWeights

CLASSES, P, N = 60, 8, 600


def parts(
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(N, P, generator=generator, dtype=torch.float64)
    targets = (torch.rand(N, generator=generator) ** 2 * CLASSES).long()
    weights = (torch.rand(N, generator=generator) > 0.2).double()
    weight = torch.randn(CLASSES, P, generator=generator, dtype=torch.float64)
    bias = torch.randn(CLASSES, generator=generator, dtype=torch.float64)
    return h, targets, weights, weight, bias


def test_all_classes_drawn_have_the_loss_and_gradients_of_cross_entropy() -> None:
    h, targets, weights, weight, bias = parts()
    # After so many draws each class is expected once.
    every = Negatives(torch.arange(CLASSES), torch.tensor(1e9, dtype=torch.float64), CLASSES)
    got = softmax.sampled_loss(h, targets, weights, weight, bias, every)
    leaves = [tensor.clone().requires_grad_() for tensor in (h, weight, bias)]
    loss = (
        F.cross_entropy(leaves[0] @ leaves[1].t() + leaves[2], targets, reduction="none") * weights
    ).sum()
    dh, d_weight, d_bias = torch.autograd.grad(loss, leaves)
    torch.testing.assert_close(got.loss, loss.detach())
    torch.testing.assert_close(got.dh, dh)
    ours = got.d_negatives.index_add(0, targets, got.d_targets)
    torch.testing.assert_close(ours, d_weight)
    torch.testing.assert_close(got.d_negative_bias.index_add(0, targets, got.d_target_bias), d_bias)


def test_negatives_are_distinct_and_as_frequent_as_claimed() -> None:
    generator = np.random.default_rng(2)
    counts, expected = np.zeros(CLASSES), np.zeros(CLASSES)
    for _ in range(3000):
        drawn = softmax.draw(CLASSES, 12, generator)
        classes = drawn.classes.numpy()
        assert len(set(classes.tolist())) == 12
        counts[classes] += 1
        expected += drawn.log_expected(torch.arange(CLASSES)).exp().numpy()
    assert counts[0] > counts[20] > counts[59]
    np.testing.assert_allclose(counts, expected, rtol=0.15, atol=12)


def test_a_model_that_is_right_is_left_alone_on_average() -> None:
    """The sampled loss has its minimum where the full one has: targets drawn from the model's own softmax pull nowhere."""
    _, _, _, weight, bias = parts(1)
    contexts = torch.randn(3, P, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    p = torch.softmax(contexts @ weight.t() + bias, dim=1)  # [3, classes]
    # Every class as a target, weighted by its probability: the expectation over targets, exactly.
    targets = torch.arange(CLASSES).repeat(3)
    h = contexts.repeat_interleave(CLASSES, dim=0)
    generator = np.random.default_rng(3)

    def pull(corrected: bool) -> float:
        total = torch.zeros_like(contexts)
        for _ in range(500):
            drawn = softmax.draw(CLASSES, 15, generator)
            if not corrected:
                drawn = Negatives(drawn.classes, torch.tensor(1e9, dtype=torch.float64), CLASSES)
            got = softmax.sampled_loss(h, targets, p.flatten(), weight, bias, drawn)
            total += got.dh.view(3, CLASSES, P).sum(1) / 500
        return float(total.norm())

    right, wrong = pull(corrected=True), pull(corrected=False)
    assert right < 0.1
    assert wrong > 4 * right


def test_a_saved_softmax_is_read_back_and_what_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "softmax.safetensors"
    weight, bias = torch.randn(5, 3), torch.randn(5)
    SoftmaxWeights(weight, bias, ("schön", "tab\tword")).save(path)
    again = SoftmaxWeights.load(path)
    assert again.words == ("schön", "tab\tword")
    assert torch.equal(again.weight, weight)
    assert torch.equal(again.bias, bias)
    weight[3] = 0.0  # a row without a scale of its own
    scale = (weight.abs().amax(1, keepdim=True) / 127).clamp_min(1e-30)
    levels = (weight / scale).round().to(torch.int8)  # as the packaged model's
    save_file(
        {"weight": levels, "scale": scale, "bias": bias}, path, {"words": '["schön", "tab\\tword"]'}
    )
    rounded = SoftmaxWeights.load(path)
    assert rounded.weight.dtype == torch.float32
    assert (
        (rounded.weight - weight).abs() <= weight.abs().amax(1, keepdim=True) / 254 + 1e-7
    ).all()
    assert torch.equal(rounded.bias, bias)
    SoftmaxWeights(weight, bias, ("one word too few",)).save(path)
    with pytest.raises(TrainingError, match="for 1 words and three marks"):
        SoftmaxWeights.load(path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(TrainingError, match="damaged or not written"):
        SoftmaxWeights.load(path)
    with pytest.raises(TrainingError, match="does not exist: perplexity needs the softmax"):
        SoftmaxWeights.load(tmp_path / "none")
