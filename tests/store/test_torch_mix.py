"""The trainable scalar mix: its formula, its norms, and AllenNLP's names."""

from typing import Any

import numpy as np
import pytest
import torch

import elmo_store
from elmo_store.errors import WeightSetError
from elmo_store.torch import LayerNorm, ScalarMix, layers_of_states

RNG = np.random.default_rng(5)


def states(*lead: int, n_states: int = 5, p: int = 4) -> torch.Tensor:
    return torch.from_numpy(RNG.standard_normal((*lead, n_states, p)).astype(np.float32))


def test_layers_double_the_first_and_pair_the_directions() -> None:
    given = states(3)
    layers = layers_of_states(given)
    assert layers.shape == (3, 3, 8)
    torch.testing.assert_close(layers[:, 0], torch.cat([given[:, 0], given[:, 0]], -1))
    torch.testing.assert_close(layers[:, 1], torch.cat([given[:, 1], given[:, 2]], -1))
    torch.testing.assert_close(layers[:, 2], torch.cat([given[:, 3], given[:, 4]], -1))


def test_an_even_count_of_states_is_refused() -> None:
    with pytest.raises(ValueError, match="odd count"):
        layers_of_states(states(3, n_states=4))


def test_equation_one() -> None:
    mix = ScalarMix([0.5, -1.0, 2.0])
    mix.gamma.data.fill_(1.7)
    layers = layers_of_states(states(2, 6))
    w = np.array([0.5, -1.0, 2.0])
    s = np.exp(w) / np.exp(w).sum()
    expected = 1.7 * np.einsum("btlc,l->btc", layers.numpy().astype(np.float64), s)
    np.testing.assert_allclose(mix(layers=layers).detach().numpy(), expected, atol=1e-6)


def test_names_and_shapes_are_allennlps() -> None:
    shapes = {
        name: tuple(value.shape) for name, value in ScalarMix(n_layers=3).state_dict().items()
    }
    assert shapes == {
        "gamma": (1,),
        "scalar_parameters.0": (1,),
        "scalar_parameters.1": (1,),
        "scalar_parameters.2": (1,),
    }


def test_allennlps_own_call_makes_the_same_mix() -> None:
    new_mix: Any = ScalarMix  # whose types are those of our own call
    w = [0.5, -1.0, 2.0]
    assert new_mix(3).w.tolist() == new_mix(mixture_size=3).w.tolist() == [0.0, 0.0, 0.0]
    for mix in (
        new_mix(3, True, w, False),
        new_mix(3, do_layer_norm=True, initial_scalar_parameters=w, trainable=False),
    ):
        assert (mix.w.tolist(), mix.layer_norm) == (w, "batch")
        assert not any(parameter.requires_grad for parameter in mix.parameters())
    layers = layers_of_states(states(2, 6))
    theirs = new_mix(3, False, w)(list(layers.unbind(2)))
    torch.testing.assert_close(theirs, ScalarMix(w)(layers=layers))
    with pytest.raises(WeightSetError, match="3 logits for a mix of 2 layers"):
        new_mix(2, initial_scalar_parameters=w)
    with pytest.raises(WeightSetError, match="a mix of 0 layers"):
        new_mix(0)


def test_token_norm_depends_on_the_token_alone() -> None:
    mix = ScalarMix(n_layers=3, layer_norm="token")
    layers = layers_of_states(states(7))
    torch.testing.assert_close(mix(layers=layers)[2], mix(layers=layers[2:3])[0])
    normed = ScalarMix(n_layers=1, layer_norm="token")(layers=layers[:, 1:2])
    torch.testing.assert_close(normed.mean(-1), torch.zeros(7), atol=1e-6, rtol=0)
    torch.testing.assert_close(normed.var(-1, correction=0), torch.ones(7), atol=1e-5, rtol=0)


def test_batch_norm_leaves_padding_out_of_its_mean() -> None:
    mix = ScalarMix(n_layers=2, layer_norm="batch")
    layers = layers_of_states(states(2, 4, n_states=3))
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    changed = layers.clone()
    changed[~mask] = 1e3
    torch.testing.assert_close(
        mix(layers=layers, mask=mask)[mask], mix(layers=changed, mask=mask)[mask]
    )
    kept = layers.numpy().astype(np.float64)[mask.numpy()]  # [4, 2, 8]
    normed = (kept - kept.mean((0, 2), keepdims=True)) / np.sqrt(
        kept.var((0, 2), keepdims=True) + 1e-12
    )
    np.testing.assert_allclose(
        mix(layers=layers, mask=mask)[mask].detach().numpy(), normed.mean(1), atol=1e-5
    )


def test_penalty_and_gradients() -> None:
    mix = ScalarMix([1.0, 2.0, -2.0], l2=0.1)
    assert mix.penalty().item() == pytest.approx(0.9)
    (mix(layers=layers_of_states(states(5))).square().sum() + mix.penalty()).backward()
    assert all(
        parameter.grad is not None and bool(parameter.grad.abs() > 0)
        for parameter in mix.parameters()
    )


def test_frozen_mix_has_nothing_to_train() -> None:
    assert not any(
        parameter.requires_grad for parameter in ScalarMix(n_layers=3, trainable=False).parameters()
    )


def test_dropout_only_while_training() -> None:
    mix = ScalarMix(n_layers=3, dropout=0.5)
    layers = layers_of_states(states(50)) + 1.0
    assert bool((mix(layers=layers) == 0).any())
    assert not bool((mix.eval()(layers=layers) == 0).any())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_layers": 3, "w": [1.0]}, "not several"),
        ({}, "not several"),
        ({"s": [1.0, 0.0]}, "a weight of 0 has no logit"),
        ({"n_layers": 3, "layer_norm": "all"}, "layer_norm='all'"),
        ({"n_layers": 3, "l2": -1.0}, "negative"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScalarMix(**arguments)  # type: ignore[arg-type]


def test_wrong_number_of_layers() -> None:
    with pytest.raises(
        ValueError, match=r"layers of shape \[\.\.\., 3, width\]; the layers given are \(2, 5, 4\)"
    ):
        ScalarMix(n_layers=3)(layers=states(2))


@pytest.mark.parametrize("layer_norm", ["none", "token", "batch"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_states_and_layers_numpy_and_torch_are_one_mix(
    layer_norm: LayerNorm, dtype: torch.dtype
) -> None:
    """The ways to say the same thing; padding does not enter the norm over a batch."""
    given = states(3, 5).to(dtype)
    mask = torch.arange(5)[None] < torch.tensor([5, 2, 0])[:, None]
    w, gamma = [0.3, -1.5, 0.8], 1.3
    trained = ScalarMix(w, gamma=gamma, layer_norm=layer_norm)
    found = trained(states=given, mask=mask).detach()
    assert found.dtype == torch.float32
    others = [trained(layers=layers_of_states(given), mask=mask).detach()]
    if layer_norm != "batch":
        fixed = elmo_store.ScalarMix(w, gamma=gamma, layer_norm=layer_norm)
        others.append(torch.from_numpy(fixed(states=given.numpy())))
    for other in others:
        torch.testing.assert_close(found[mask], other[mask], atol=2e-6, rtol=1e-5)


def test_weights_that_are_used_as_they_are_start_the_learning() -> None:
    mix = ScalarMix(s=[0.2, 0.3, 0.5], gamma=2.0)
    torch.testing.assert_close(mix.s.detach(), torch.tensor([0.2, 0.3, 0.5]))
    assert mix.gamma.item() == 2.0


def test_what_is_mixed_is_said() -> None:
    given = states(2)
    for arguments in ({"tensors": given}, {}, {"states": given, "layers": layers_of_states(given)}):
        with pytest.raises(TypeError, match="say what is mixed"):
            ScalarMix(n_layers=3)(**arguments)


def test_a_list_of_layers_beside_others_is_not_left_out() -> None:
    layers = layers_of_states(states(2))
    with pytest.raises(TypeError, match="say what is mixed"):
        ScalarMix(n_layers=3)(list(layers.unbind(-2)), layers=layers)
    with pytest.raises(TypeError, match="say what is mixed"):
        ScalarMix(n_layers=3)(list(layers.unbind(-2)), states=states(2))
