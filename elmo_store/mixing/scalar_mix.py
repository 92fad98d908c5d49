"""The scalar mix of ELMo in NumPy: ELMo = γ Σ_j s_j h_j (Peters et al. 2018, equation 1)."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elmo_store.errors import WeightSetError
from elmo_store.format.manifest import WeightSet

Array = npt.NDArray[Any]
GREATEST = float(np.finfo(np.float32).max)
ROWS_AT_ONCE = 2048  # rows mixed in float32 at a time: bounds the memory of the intermediate layers
EPSILON = 1e-12  # added to the variance, as AllenNLP's ScalarMix does


def layers_of_states(states: Array) -> Array:
    """The L+1 layers of a biLM's 2L+1 states x, fwd1, bwd1, …: [n, 2L+1, p] → [n, L+1, 2p].

    Layer 0 is [x; x], layer j is [fwd j; bwd j] (section 3.2 of the paper). ValueError for an even number of states.
    """
    if states.ndim != 3 or states.shape[1] % 2 == 0 or states.shape[1] < 3:
        raise ValueError(
            f"states of shape {states.shape} are not [rows, 2L+1, width]: read all the states of a biLM"
        )
    n, n_states, width = states.shape
    doubled = np.concatenate([states[:, :1], states], axis=1)  # [n, 2L+2, p]
    return doubled.reshape(n, (n_states + 1) // 2, 2 * width)  # [n, L+1, 2p]


def softmax(logits: Sequence[float]) -> tuple[float, ...]:
    """s of w, in float64."""
    highest = max(logits)
    if highest == -math.inf:
        raise WeightSetError(f"w is {list(logits)}: one logit must be finite")
    powers = [math.exp(w - highest) for w in logits]
    total = math.fsum(powers)
    return tuple(power / total for power in powers)


class ScalarMix:
    """One mix of a biLM's layers, with fixed weights. `elmo_store.torch.ScalarMix` takes the same, and learns them.

    Attributes:
        s: the weights of layers 0 … L.
        w: the logits they are the softmax of; None if ``s`` was given.
        gamma: γ.
        layer_norm: what happens to each layer first: "none"; "token" = each layer of each token is normalised over its 2p
            channels (no scale, no shift). "batch" is for training: `elmo_store.torch.ScalarMix`.
    """

    def __init__(
        self,
        w: Sequence[float] | None = None,
        *,
        s: Sequence[float] | None = None,
        n_layers: int | None = None,
        gamma: float = 1.0,
        layer_norm: Literal["none", "token"] = "none",
    ) -> None:
        """Give ``w``, logits that are softmaxed, ``s``, weights used as they are, or ``n_layers`` = L+1 for equal weights.

        It is never guessed which numbers are meant. WeightSetError for none or several of them, and for what is not a weight.
        """
        self.w, self.s = chosen_weights(w, s, n_layers)
        self.gamma = _finite("gamma", (gamma,))[0]
        if abs(self.gamma) > GREATEST:
            raise WeightSetError(
                f"gamma is {self.gamma:g}: the mix is computed in float32, which ends at {GREATEST:g}"
            )
        if layer_norm not in ("none", "token"):
            raise ValueError(f"layer_norm={layer_norm!r} is neither 'none' nor 'token'")
        self.layer_norm = layer_norm

    @classmethod
    def of(cls, weights: WeightSet, layer_norm: Literal["none", "token"] = "none") -> "ScalarMix":
        """The mix of a weight set."""
        if weights.w is not None:
            return cls(weights.w, gamma=weights.gamma, layer_norm=layer_norm)
        return cls(s=weights.s, gamma=weights.gamma, layer_norm=layer_norm)

    def __repr__(self) -> str:
        return f"ScalarMix(s={list(self.s)}, gamma={self.gamma}, layer_norm={self.layer_norm!r})"

    def __call__(self, *, states: Array) -> npt.NDArray[np.float32]:
        """Mix, in float32, every row by itself: states [..., 2L+1, p] in the store's order x, fwd1, bwd1, …, to [..., 2p].

        WeightSetError: they have not as many layers as there are weights.
        """
        check_mixable(len(self.s), "states", states)
        mixed = np.zeros((*states.shape[:-2], 2 * states.shape[-1]), np.float32)
        for layer, weight in enumerate(self.s):
            halves = (
                states[..., [0, 0], :]
                if layer == 0
                else states[..., 2 * layer - 1 : 2 * layer + 1, :]
            )
            values: Array = halves.astype(np.float32, "C", copy=False).reshape(
                mixed.shape
            )  # [..., 2p]
            if self.layer_norm == "token":
                values = values - values.mean(axis=-1, keepdims=True)
                values /= np.sqrt(
                    np.square(values).mean(axis=-1, keepdims=True) + np.float32(EPSILON)
                )
            mixed += np.float32(self.gamma * weight) * values
        return mixed


def mix_rows(
    states: Array, weight_sets: Sequence[WeightSet], *, layer_norm: bool, dtype: str
) -> Array:
    """Mix rows with every weight set.

    Args:
        states: [n, 2L+1, p], float16 or float32.
        weight_sets: k sets of L+1 weights each.
        layer_norm: whether each layer of each token is first shifted and scaled over its channels.
        dtype: of the result, "float16" or "float32"; the mix itself is computed in float32.

    Returns:
        [n, k, 2p].

    Raises:
        ValueError: a result does not fit the dtype (float16 ends at 65,504).
    """
    mixes = [ScalarMix.of(weights, "token" if layer_norm else "none") for weights in weight_sets]
    mixed = np.empty((len(mixes), len(states), 2 * states.shape[2]), dtype).transpose(
        1, 0, 2
    )  # in memory as it is stored
    for first in range(0, len(states), ROWS_AT_ONCE):
        rows = states[first : first + ROWS_AT_ONCE]  # [rows, 2L+1, p]
        for column, mix in enumerate(mixes):
            with np.errstate(over="ignore"):  # reported below, with its place
                mixed[first : first + len(rows), column] = mix(states=rows)
    finite = np.isfinite(mixed)
    if not finite.all():
        row, column, _ = (int(axis) for axis in np.argwhere(~finite)[0])
        raise ValueError(
            f"weight set {weight_sets[column].name!r} gives a value that {dtype} can't hold (row {row} of its shard): "
            "mix to `dtype='float32'`, or look at gamma"
        )
    return mixed


def chosen_weights(
    w: Sequence[float] | None, s: Sequence[float] | None, n_layers: int | None
) -> tuple[tuple[float, ...] | None, tuple[float, ...]]:
    """The logits (None if weights were given) and the weights that one of ``w``, ``s``, ``n_layers`` says. WeightSetError."""
    if sum(argument is not None for argument in (w, s, n_layers)) != 1:
        raise WeightSetError(
            "give w (logits, softmaxed), s (weights used as they are) or n_layers (equal weights), one of them and not several"
        )
    if s is not None:
        return None, normalised(s)
    if n_layers is not None:
        if n_layers < 1:
            raise WeightSetError(f"a mix of {n_layers} layers: give n_layers=L+1, 1 or more")
        w = (0.0,) * n_layers
    if w is None or isinstance(w, int | float):
        raise WeightSetError(
            f"w is {w!r}: give one logit for each layer; n_layers={w!r} for as many layers of equal weight"
        )
    _finite(
        "w", [0.0 if value == -math.inf else value for value in w]
    )  # -∞: a layer that is left out
    logits = tuple(float(value) for value in w)
    return logits, softmax(logits)


def check_mixable(n_weights: int, name: str, values: Any) -> None:
    """WeightSetError unless arrays or tensors called ``name``, "states" or "layers", have as many layers as there are weights."""
    wanted = n_weights if name == "layers" else 2 * n_weights - 1
    if values.ndim < 2 or values.shape[-2] != wanted:
        raise WeightSetError(
            f"the mix has {n_weights} weights, for {name} of shape [..., {wanted}, width]; the {name} given are "
            f"{tuple(values.shape)}: they belong to different models, or some of the store's states were left out"
        )


def normalised(s: Sequence[float]) -> tuple[float, ...]:
    """``s`` if it can be a softmax's result: none below 0, sum 1 within 0.001. WeightSetError otherwise."""
    numbers = _finite("s", s)
    total = sum(numbers)  # inf where the numbers are beyond all sense
    if min(numbers) < 0 or not abs(total - 1) <= 1e-3:
        raise WeightSetError(
            f"s is {list(numbers)}, which sums to {total:g}: weights s are normalised, each 0 or more and "
            "1 together; give logits as w, and a common factor as gamma"
        )
    return numbers


def _finite(name: str, values: Sequence[float]) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in np.asarray(values, np.float64).reshape(-1))
    except OverflowError as error:  # a whole number of hundreds of digits
        raise WeightSetError(
            f"{name} holds a number beyond every float: it must be one finite number or more"
        ) from error
    if not numbers or not all(math.isfinite(number) for number in numbers):
        raise WeightSetError(f"{name} is {list(values)}: it must be one finite number or more")
    return numbers
