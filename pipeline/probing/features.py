"""The features of a probe: what of a token's states the tagger sees.

A feature is a mix of the layers, γ Σ s_j h_j, with w frozen (one layer, or all alike) or learned; γ is learned for every
feature, so that a feature is not behind for the length of its vectors. Three more are the ways to use ELMo that Peters et al.
2018 write of: beside x at the task network's input, beside h at its output, and a projection of all layers that the task learns
instead of a mix.
"""

import math
from dataclasses import dataclass
from typing import Literal

Form = Literal["mix", "x and mix", "h", "h and mix", "projection"]
LEARNED_MIX = "mix"


class FeatureError(ValueError):
    """A feature that a model does not have."""


@dataclass(frozen=True)
class Feature:
    """One row of a probe's table.

    Attributes:
        name: of the row.
        logits: w of the L+1 layers, frozen; None = learned. A layer alone is (…, 0, …) among -∞.
        form: what the tagger sees: the mix; [x; mix]; h, the output of a BiLSTM over x; [h; mix]; or a learned
            projection of all layers, which takes the mix's place.
    """

    name: str
    logits: tuple[float, ...] | None
    form: Form = "mix"


def layer_names(n_layers: int) -> list[str]:
    """x, each layer (the last is the top)."""
    names = ["x", *(f"layer {j}" for j in range(1, n_layers))]
    if n_layers > 1:
        names[-1] += " (top)"
    return names


def features(n_layers: int) -> dict[str, Feature]:
    """All features of a model with L+1 layers, by name, in the order of tables."""
    names = layer_names(n_layers)
    found = [Feature(name, tuple(0.0 if i == j else -math.inf for i in range(n_layers))) for j, name in enumerate(names)]
    found += [
        Feature("average", (0.0,) * n_layers),
        Feature(LEARNED_MIX, None),
        Feature("projection", None, "projection"),
        Feature("[x; mix]", None, "x and mix"),
        Feature("h", None, "h"),
        Feature("[h; mix]", None, "h and mix"),
    ]
    return {feature.name: feature for feature in found}


def usual(n_layers: int) -> list[str]:
    """What is probed unless more is asked for: each layer, the average and the mix."""
    return [name for name, feature in features(n_layers).items() if feature.form == "mix"]
