"""Understand calls as AllenNLP's classes take them, whose arguments have another order or other names than ours.

``Elmo(options_file, weight_file, 2)`` is the first line of most programs that come from AllenNLP. Ours begin with a store,
which such a call does not have, so the two can't be confused.
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

from elmo_store.errors import WeightSetError

P = ParamSpec("P")
# Positional arguments of AllenNLP 0.9, in their order.
ELMO = (
    "options_file", "weight_file", "num_output_representations", "requires_grad", "do_layer_norm", "dropout", "vocab_to_cache",
    "keep_sentence_boundaries", "scalar_mix_parameters",
)  # fmt: skip
SCALAR_MIX = ("mixture_size", "do_layer_norm", "initial_scalar_parameters", "trainable")


def takes_elmo_calls(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate ``Elmo.__init__``: positional options and weights are taken for what they are."""

    @functools.wraps(init)
    def understanding(self: Any, *args: Any, **named: Any) -> None:
        if _begins_with_model_files(args):
            args, named = (), _by_name(ELMO, args, named)
        init(self, *args, **named)

    return understanding  # type: ignore[return-value]


def takes_scalar_mix_calls(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate ``ScalarMix.__init__``: a positional number, or a name that only AllenNLP has, is of AllenNLP's call."""

    @functools.wraps(init)
    def understanding(self: Any, *args: Any, **named: Any) -> None:
        begins_with_size = bool(args) and type(args[0]) is int
        if begins_with_size or not set(SCALAR_MIX[:3]).isdisjoint(named):
            args, named = (), _our_mix(**_by_name(SCALAR_MIX, args, named))
        init(self, *args, **named)

    return understanding  # type: ignore[return-value]


def _begins_with_model_files(args: Sequence[Any]) -> bool:
    """Return True for paths of options and weights, or of options alone, whose weights have a name then."""
    paths = [os.fspath(value) for value in args[:2] if isinstance(value, str | os.PathLike)]
    return len(paths) == 2 or (len(paths) == 1 and str(paths[0]).endswith(".json"))


def _by_name(names: Sequence[str], args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(names):
        raise TypeError(
            f"{len(args)} positional arguments: AllenNLP's are {', '.join(names)}; pass others by name"
        )
    by_name = dict(zip(names, args, strict=False))
    if twice := sorted(by_name.keys() & named.keys()):
        raise TypeError(f"got two values for the argument {twice[0]!r}")
    return by_name | dict(named)


def _our_mix(
    mixture_size: int,
    do_layer_norm: bool = False,
    initial_scalar_parameters: Sequence[float] | None = None,
    **named: Any,
) -> dict[str, Any]:
    """Return the arguments of our `ScalarMix` that mean the same as AllenNLP's."""
    norm = {"layer_norm": "batch"} if do_layer_norm else {}
    logits = initial_scalar_parameters
    if logits is None:
        return {"n_layers": mixture_size} | norm | named
    if len(logits) != mixture_size:
        raise WeightSetError(
            f"initial_scalar_parameters has {len(logits)} logits for a mix of {mixture_size} layers"
        )
    return {"w": logits} | norm | named
