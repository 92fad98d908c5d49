"""The trainable scalar mix: its formula, its norms, and AllenNLP's names."""

import numpy as np
import pytest
import torch

from elmo_store.torch import ScalarMix, layers_of_states

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
    mix = ScalarMix(3, initial=[0.5, -1.0, 2.0])
    mix.gamma.data.fill_(1.7)
    layers = layers_of_states(states(2, 6))
    w = np.array([0.5, -1.0, 2.0])
    s = np.exp(w) / np.exp(w).sum()
    expected = 1.7 * np.einsum("btlc,l->btc", layers.numpy().astype(np.float64), s)
    np.testing.assert_allclose(mix(layers).detach().numpy(), expected, atol=1e-6)


def test_names_and_shapes_are_allennlps() -> None:
    shapes = {name: tuple(value.shape) for name, value in ScalarMix(3).state_dict().items()}
    assert shapes == {"gamma": (1,), "scalar_parameters.0": (1,), "scalar_parameters.1": (1,), "scalar_parameters.2": (1,)}


def test_token_norm_depends_on_the_token_alone() -> None:
    mix = ScalarMix(3, layer_norm="token")
    layers = layers_of_states(states(7))
    torch.testing.assert_close(mix(layers)[2], mix(layers[2:3])[0])
    normed = ScalarMix(1, layer_norm="token")(layers[:, 1:2])
    torch.testing.assert_close(normed.mean(-1), torch.zeros(7), atol=1e-6, rtol=0)
    torch.testing.assert_close(normed.var(-1, correction=0), torch.ones(7), atol=1e-5, rtol=0)


def test_batch_norm_leaves_padding_out_of_its_mean() -> None:
    mix = ScalarMix(2, layer_norm="batch")
    layers = layers_of_states(states(2, 4, n_states=3))
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    changed = layers.clone()
    changed[~mask] = 1e3
    torch.testing.assert_close(mix(layers, mask)[mask], mix(changed, mask)[mask])
    kept = layers.numpy().astype(np.float64)[mask.numpy()]  # [4, 2, 8]
    normed = (kept - kept.mean((0, 2), keepdims=True)) / np.sqrt(kept.var((0, 2), keepdims=True) + 1e-12)
    np.testing.assert_allclose(mix(layers, mask)[mask].detach().numpy(), normed.mean(1), atol=1e-5)


def test_penalty_and_gradients() -> None:
    mix = ScalarMix(3, initial=[1.0, 2.0, -2.0], l2=0.1)
    assert mix.penalty().item() == pytest.approx(0.9)
    (mix(layers_of_states(states(5))).square().sum() + mix.penalty()).backward()
    assert all(parameter.grad is not None and bool(parameter.grad.abs() > 0) for parameter in mix.parameters())


def test_frozen_mix_has_nothing_to_train() -> None:
    assert not any(parameter.requires_grad for parameter in ScalarMix(3, trainable=False).parameters())


def test_dropout_only_while_training() -> None:
    mix = ScalarMix(3, dropout=0.5)
    layers = layers_of_states(states(50)) + 1.0
    assert bool((mix(layers) == 0).any())
    assert not bool((mix.eval()(layers) == 0).any())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"initial": [1.0]}, "1 initial logits for 3"), ({"layer_norm": "all"}, "layer_norm='all'"), ({"l2": -1.0}, "negative")],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScalarMix(3, **arguments)  # type: ignore[arg-type]


def test_wrong_number_of_layers() -> None:
    with pytest.raises(ValueError, match="5 layers"):
        ScalarMix(3)(states(2))
