"""What a token's vectors are in an export: layers of the states, their mix, or what a store of mixes holds.

Everything works row by row, so that it is the same however rows are cut into blocks.
"""

from abc import ABC, abstractmethod

import numpy as np

from elmo_store.errors import StoreError
from elmo_store.format import layout
from elmo_store.format.halves import ROWS_AT_ONCE, assign
from elmo_store.format.manifest import WeightSet
from elmo_store.mixing.scalar_mix import ScalarMix
from elmo_store.reading.rows import Array


class Vectors(ABC):
    """K vectors a token.

    Attributes:
        names: of the K.
        width: numbers of each.
        reads: names of the states that are read for them.
        single: whether there is one by its nature (a mix, one layer), so that a file's axis of layers falls away.
    """

    names: tuple[str, ...]
    width: int
    reads: tuple[str, ...]
    single = False

    @abstractmethod
    def fill(self, states: Array, out: Array) -> None:
        """Fill ``out`` [K, n, width], of any float dtype and strides, from ``states`` [n, len(reads), channels]."""


class AllLayers(Vectors):
    """Layers 0 … L: [x; x], [fwd j; bwd j]."""

    def __init__(self, states: tuple[str, ...], channels: int) -> None:
        self.reads, self.width = states, 2 * channels
        self.names = tuple(f"layer_{layer}" for layer in range(_n_layers(states) + 1))

    def fill(self, states: Array, out: Array) -> None:
        """See `Vectors.fill`."""
        channels = self.width // 2
        for layer in range(len(self.names)):
            forward, backward = (0, 0) if layer == 0 else (2 * layer - 1, 2 * layer)
            assign(out[layer, :, :channels], states[:, forward])
            assign(out[layer, :, channels:], states[:, backward])


class TopLayer(Vectors):
    """Layer L alone, which a store may have without the others (`embed --states`). ``n_layers``: L of the model, if known."""

    single = True

    def __init__(self, states: tuple[str, ...], channels: int, n_layers: int | None) -> None:
        last = n_layers or _n_layers(states)
        self.width, self.names, self.reads = 2 * channels, (f"layer_{last}",), (f"fwd{last}", f"bwd{last}")
        missing = [name for name in self.reads if name not in states]
        if missing:
            raise StoreError(f"the top layer can't be made: the store has no state {missing[0]}, but {', '.join(states)}")

    def fill(self, states: Array, out: Array) -> None:
        """See `Vectors.fill`."""
        channels = self.width // 2
        assign(out[0, :, :channels], states[:, 0])
        assign(out[0, :, channels:], states[:, 1])


class AverageLayer(Vectors):
    """The plain mean of layers 0 … L, in float32, as ``numpy.average(layers, axis=0)``."""

    single = True

    def __init__(self, states: tuple[str, ...], channels: int) -> None:
        _n_layers(states)
        self.reads, self.width, self.names = states, 2 * channels, ("average",)

    def fill(self, states: Array, out: Array) -> None:
        """See `Vectors.fill`."""
        channels = self.width // 2
        memory = np.empty((3, min(ROWS_AT_ONCE, len(states)), channels), np.float32)
        for first in range(0, len(states), ROWS_AT_ONCE):  # so that they stay in the processor's caches
            rows = states[first : first + ROWS_AT_ONCE]
            halves, one = memory[:2, : len(rows)], memory[2, : len(rows)]  # [2, rows, channels], [rows, channels]
            assign(one, rows[:, 0])
            halves[:] = one
            for place in range(1, len(self.reads)):
                assign(one, rows[:, place])
                halves[(place - 1) % 2] += one
            for half, total in enumerate(halves):
                total /= np.float32((len(self.reads) + 1) // 2)
                out[0, first : first + len(rows), half * channels : (half + 1) * channels] = total


class Mix(Vectors):
    """γ Σ_j s_j h_j, in float32."""

    single = True

    def __init__(self, states: tuple[str, ...], channels: int, mix: ScalarMix, name: str) -> None:
        if len(mix.s) != _n_layers(states) + 1:
            raise StoreError(f"{len(mix.s)} weights for {_n_layers(states) + 1} layers: they belong to different models")
        self.reads, self.width, self.names, self._mix = states, 2 * channels, (name,), mix

    def fill(self, states: Array, out: Array) -> None:
        """See `Vectors.fill`."""
        out[0] = self._mix(states=states)


class MixedColumns(Vectors):
    """What a store of mixes holds: the columns of these weight sets."""

    def __init__(self, sets: tuple[str, ...], channels: int) -> None:
        self.names = self.reads = sets
        self.width, self.single = channels, len(sets) == 1

    def fill(self, states: Array, out: Array) -> None:
        """See `Vectors.fill`."""
        for place in range(len(self.names)):
            assign(out[place], states[:, place])


class HubNames(Vectors):
    """Layers 0 … L and, last, their average or mix: what TensorFlow Hub's module gives names to."""

    def __init__(self, states: tuple[str, ...], channels: int, mixed: Vectors) -> None:
        self._layers, self._mixed = AllLayers(states, channels), mixed
        self.reads, self.width, self.names = states, 2 * channels, (*self._layers.names, "elmo")

    def fill(self, states: Array, out: Array) -> None:
        """See `Vectors.fill`."""
        self._layers.fill(states, out[:-1])
        self._mixed.fill(states, out[-1:])


def vectors_of(
    states: tuple[str, ...],
    channels: int,
    kind: str,
    n_layers: int | None,
    layers: str | None,
    mix: tuple[WeightSet, bool] | None,
    weight_set: str | None,
) -> Vectors:
    """The vectors that are asked for.

    Args:
        states, channels, kind: of the store.
        n_layers: L of its model, if that is known.
        layers: "all", "top", "average", or None with a mix.
        mix: the weight set and whether layers are normalised first.
        weight_set: the one to take, of a store of mixes.
    """
    if kind == "mix":
        if mix is not None:
            raise StoreError("the store is mixed already: give weights for the store that it came from")
        if weight_set is not None and weight_set not in states:
            raise StoreError(f"no weight set {weight_set!r} in the store: it has {', '.join(states)}")
        return MixedColumns(states if weight_set is None else (weight_set,), channels)
    if mix is not None:
        weights, layer_norm = mix
        return Mix(states, channels, ScalarMix.of(weights, "token" if layer_norm else "none"), weights.name)
    if layers == "top":
        return TopLayer(states, channels, n_layers)
    return AllLayers(states, channels) if layers == "all" else AverageLayer(states, channels)


def _n_layers(states: tuple[str, ...]) -> int:
    try:
        return layout.n_layers(states)
    except ValueError as error:
        raise StoreError(f"layers can't be made: {error}") from error
