"""The trainable scalar mix (Peters et al. 2018, equation 1), under AllenNLP's names."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from elmo_store.errors import WeightSetError
from elmo_store.mixing.scalar_mix import EPSILON, check_mixable, chosen_weights
from elmo_store.torch.allennlp import takes_scalar_mix_calls

LayerNorm = Literal["none", "token", "batch"]


def layers_of_states(states: torch.Tensor) -> torch.Tensor:
    """The L+1 layers that ELMo mixes, from the 2L+1 states of the biLM (Peters et al. 2018, section 3.2).

    Args:
        states: [..., 2L+1, p] in the store's order x, fwd1, bwd1, …, fwdL, bwdL.

    Returns:
        [..., L+1, 2p]: layer 0 = [x; x], layer j = [fwd j; bwd j].
    """
    if states.dim() < 2 or states.shape[-2] % 2 == 0:
        raise ValueError(
            f"states must be [..., 2L+1, p] with an odd count of states, got {tuple(states.shape)}"
        )
    *lead, n_states, p = states.shape
    return torch.cat([states[..., :1, :], states], dim=-2).reshape(
        *lead, (n_states + 1) // 2, 2 * p
    )


class ScalarMix(nn.Module):
    """ELMo = γ Σ_j s_j h_j with s = softmax(w); γ and w are learned. `elmo_store.ScalarMix` is the same in NumPy, fixed.

    Parameter names are AllenNLP's (`scalar_parameters.0` … `scalar_parameters.L`, `gamma`, each of shape [1]), so that state
    dicts go both ways; `elmo-store mix` reads them too. AllenNLP's own call, `ScalarMix(mixture_size, do_layer_norm,
    initial_scalar_parameters, trainable)`, means the same here.

    Args:
        w: starting logits, one a layer; or
        s: starting weights, of which the logarithms are the logits; or
        n_layers: L+1, for equal weights.
        gamma: starting γ.
        layer_norm: "none"; "token" = each layer of each token over its channels (any reader can reproduce it); "batch" = over all
            unmasked tokens of the batch at once, as AllenNLP's do_layer_norm: its result depends on what else is in the batch.
        trainable: False freezes γ and w.
        dropout: probability on the mixed vectors, while training (Peters et al. 2018, section 3.4).
        l2: λ of the penalty λ‖w‖² (section 3.4), see `penalty`.

    Raises:
        WeightSetError: none or several of w, s, n_layers, or what is not a weight.
    """

    @takes_scalar_mix_calls
    def __init__(
        self,
        w: Sequence[float] | None = None,
        *,
        s: Sequence[float] | None = None,
        n_layers: int | None = None,
        gamma: float = 1.0,
        layer_norm: LayerNorm = "none",
        trainable: bool = True,
        dropout: float = 0.0,
        l2: float = 0.0,
    ) -> None:
        super().__init__()
        logits, weights = chosen_weights(w, s, n_layers)
        if logits is None:
            if trainable and 0 in weights:
                raise WeightSetError(
                    f"s is {list(weights)}: a weight of 0 has no logit that can be learned; give w"
                )
            logits = tuple(math.log(weight) if weight else -math.inf for weight in weights)
        if layer_norm not in ("none", "token", "batch"):
            raise ValueError(f"layer_norm={layer_norm!r} is none of 'none', 'token', 'batch'")
        if l2 < 0:
            raise ValueError(f"l2={l2} is negative: the penalty λ‖w‖² wants λ ≥ 0")
        self.scalar_parameters = nn.ParameterList(
            [
                nn.Parameter(torch.tensor([logit], dtype=torch.float32), requires_grad=trainable)
                for logit in logits
            ]
        )
        self.gamma = nn.Parameter(torch.full((1,), float(gamma)), requires_grad=trainable)
        self.layer_norm = layer_norm
        self.dropout = nn.Dropout(dropout)
        self.l2 = l2

    @property
    def w(self) -> torch.Tensor:
        """The logits [L+1]."""
        return torch.cat(list(self.scalar_parameters))

    @property
    def s(self) -> torch.Tensor:
        """softmax(w) [L+1]."""
        return torch.softmax(self.w, dim=0)

    def extra_repr(self) -> str:
        """s and γ as they are now."""
        s = ", ".join(f"{share:.4f}" for share in self.s.tolist())
        return f"s=[{s}], gamma={self.gamma.item():.4f}, layer_norm={self.layer_norm!r}"

    def penalty(self) -> torch.Tensor:
        """λ‖w‖², to be added to the loss: it pulls towards the uniform average."""
        return self.l2 * self.w.square().sum()

    def forward(
        self,
        tensors: Iterable[torch.Tensor] | None = None,
        mask: torch.Tensor | None = None,
        *,
        states: torch.Tensor | None = None,
        layers: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mix.

        Args:
            tensors: L+1 layers, each [..., 2p], as AllenNLP's ScalarMix takes them. Or
            mask: [...] bool, True for real tokens, which alone enter the norm over a batch; all by default.
            states: [..., 2L+1, p] in the store's order; what a dataset's batch has, on any device. Or
            layers: [..., L+1, 2p], as `layers_of_states` gives.

        Returns:
            [..., 2p] in the dtype of what is given, at least float32.

        Raises:
            TypeError: none of tensors, states and layers, or several; one tensor in place of a list of them.
            WeightSetError: they have not as many layers as the mix has weights.
        """
        # Of one tensor nobody knows which axis is the layers'.
        if (
            isinstance(tensors, torch.Tensor)
            or sum(given is not None for given in (tensors, states, layers)) != 1
        ):
            raise TypeError(
                "say what is mixed: a list of L+1 layers, or states=…, or layers=…, one of them"
            )
        if tensors is not None:
            layers = torch.stack(list(tensors), dim=-2)
        given: Any = states if layers is None else layers
        check_mixable(len(self.scalar_parameters), "states" if layers is None else "layers", given)
        values: torch.Tensor = (
            given.float() if given.dtype in (torch.float16, torch.bfloat16) else given
        )
        if states is not None and self.layer_norm == "none":
            # γ M · states with M [2, 2L+1]: what both halves take of each state. [x; x] is never made.
            mixed = torch.matmul(self._halves().to(values.dtype), values).flatten(-2)  # [..., 2p]
        else:
            of_layers = values if states is None else layers_of_states(values)  # [..., L+1, 2p]
            if self.layer_norm == "token":
                of_layers = nn.functional.layer_norm(of_layers, of_layers.shape[-1:], eps=EPSILON)
            elif self.layer_norm == "batch":
                of_layers = _batch_layer_norm(of_layers, mask)
            mixed = torch.matmul(
                self.s.to(values.dtype), of_layers
            )  # [..., 2p]; einsum copies the layers first, and takes 4 ×
        return self.dropout(self.gamma * mixed)

    def _halves(self) -> torch.Tensor:
        """[2, 2L+1]: weights of the states x, fwd1, bwd1, … in the forward half (0) and in the backward one (1) of the mix."""
        own = (
            self.s[1:, None] * torch.eye(2, device=self.gamma.device)[:, None]
        )  # [2, L, 2]: half, layer, direction
        x = self.s[:1].expand(2, 1)
        return torch.cat([x, own.flatten(1)], dim=1)


def _batch_layer_norm(layers: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Each layer [..., channels] shifted and scaled by mean and variance over all unmasked tokens and channels together."""
    real = (
        layers.reshape(-1, *layers.shape[-2:]) if mask is None else layers[mask.bool()]
    )  # [n, L+1, channels]
    if not real.numel():  # there is nothing to be normalised, and no variance of it
        return layers
    mean = real.mean(dim=(0, 2), keepdim=True)[0]  # [L+1, 1]
    variance = real.var(dim=(0, 2), keepdim=True, correction=0)[0]  # [L+1, 1]
    return (layers - mean) / torch.sqrt(variance + EPSILON)
