"""The scalar mix of ELMo in NumPy: ELMo = γ Σ_j s_j h_j (Peters et al. 2018, equation 1).

May import NumPy, manifest (for WeightSet) and errors.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.errors import WeightSetError
from elmo_store.manifest import WeightSet

Array = npt.NDArray[Any]
EPSILON = 1e-12  # added to the variance, as AllenNLP's ScalarMix does


def layers_of_states(states: Array) -> Array:
    """The L+1 layers of a biLM's 2L+1 states x, fwd1, bwd1, …: [n, 2L+1, p] → [n, L+1, 2p].

    Layer 0 is [x; x], layer j is [fwd j; bwd j] (section 3.2 of the paper). ValueError for an even number of states.
    """
    if states.ndim != 3 or states.shape[1] % 2 == 0 or states.shape[1] < 3:
        raise ValueError(f"states of shape {states.shape} are not [rows, 2L+1, width]: read all the states of a biLM")
    n, n_states, width = states.shape
    doubled = np.concatenate([states[:, :1], states], axis=1)  # [n, 2L+2, p]
    return doubled.reshape(n, (n_states + 1) // 2, 2 * width)  # [n, L+1, 2p]


def softmax(logits: Sequence[float]) -> tuple[float, ...]:
    """s of w, in float64."""
    highest = max(logits)
    powers = [math.exp(w - highest) for w in logits]
    total = math.fsum(powers)
    return tuple(power / total for power in powers)


class ScalarMix:
    """One mix of a biLM's layers, with fixed weights. `elmo_store.torch.ScalarMix` is the one that learns them.

    Attributes:
        s: the weights of layers 0 … L.
        w: the logits they are the softmax of; None if ``s`` was given.
        gamma: γ.
        layer_norm: whether each layer of each token is first normalised over its 2p channels (no scale, no shift).
    """

    def __init__(
        self,
        w: Sequence[float] | None = None,
        *,
        s: Sequence[float] | None = None,
        gamma: float = 1.0,
        layer_norm: bool = False,
    ) -> None:
        """Give ``w``, logits that are softmaxed, or ``s``, weights used as they are: it is never guessed which they are."""
        if (w is None) == (s is None):
            raise WeightSetError("give w (logits, softmaxed) or s (weights used as they are), and not both")
        self.w = None if w is None else _finite("w", w)
        self.s = softmax(self.w) if self.w is not None else normalised(() if s is None else s)
        self.gamma = _finite("gamma", (gamma,))[0]
        self.layer_norm = layer_norm

    @classmethod
    def of(cls, weights: WeightSet, layer_norm: bool = False) -> "ScalarMix":
        """The mix of a weight set."""
        if weights.w is not None:
            return cls(weights.w, gamma=weights.gamma, layer_norm=layer_norm)
        return cls(s=weights.s, gamma=weights.gamma, layer_norm=layer_norm)

    def _repr_html_(self) -> str:
        from elmo_store.notebook import mix_html

        return mix_html(self)

    def __repr__(self) -> str:
        return f"ScalarMix(s={list(self.s)}, gamma={self.gamma}, layer_norm={self.layer_norm})"

    def __call__(self, states: Array) -> npt.NDArray[np.float32]:
        """Mix a biLM's states: [n, 2L+1, p] → float32 [n, 2p], computed in float32, every row by itself.

        WeightSetError if the states have not as many layers as there are weights.
        """
        n, n_states, width = states.shape
        if n_states != 2 * len(self.s) - 1:
            raise WeightSetError(
                f"{len(self.s)} weights mix {len(self.s)} layers, {2 * len(self.s) - 1} states; there are {n_states} states"
            )
        mixed = np.zeros((n, 2, width), np.float32)  # [n, forward | backward, p]
        for layer, weight in enumerate(self.s):
            pair = states[:, [0, 0]] if layer == 0 else states[:, 2 * layer - 1 : 2 * layer + 1]
            values = pair.astype(np.float32)  # [n, 2, p]
            if self.layer_norm:
                values = _normalised(values.reshape(n, 2 * width)).reshape(n, 2, width)
            mixed += np.float32(self.gamma * weight) * values
        return mixed.reshape(n, 2 * width)


def _normalised(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Each row [2p] with mean 0 and variance 1."""
    centred = values - values.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1, keepdims=True)
    normal: npt.NDArray[np.float32] = centred / np.sqrt(variance + np.float32(EPSILON))
    return normal


def normalised(s: Sequence[float]) -> tuple[float, ...]:
    """``s`` if it can be a softmax's result: none below 0, sum 1 within 0.001. WeightSetError otherwise."""
    numbers = _finite("s", s)
    if min(numbers) < 0 or abs(math.fsum(numbers) - 1) > 1e-3:
        raise WeightSetError(
            f"s is {list(numbers)}, which sums to {math.fsum(numbers):g}: weights s are normalised, each 0 or more and "
            "1 together; give logits as w, and a common factor as gamma"
        )
    return numbers


def _finite(name: str, values: Sequence[float]) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in np.asarray(values, np.float64).reshape(-1))
    if not numbers or not all(math.isfinite(number) for number in numbers):
        raise WeightSetError(f"{name} is {list(values)}: it must be one finite number or more")
    return numbers
