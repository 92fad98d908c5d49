"""What a token's vectors are in an export: layers of the states, their mix, or what a store of mixes holds.

Everything works row by row, so that it is the same however rows are cut into blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from elmo_store.errors import StoreError
from elmo_store.exports.formats import Settings
from elmo_store.format import layout
from elmo_store.format.manifest import WeightSet
from elmo_store.format.numbers import ROWS_AT_ONCE, assign
from elmo_store.mixing.scalar_mix import ScalarMix
from elmo_store.reading.rows import Array
from elmo_store.reading.store import StoreReader

Fill = Callable[[Array, Array], None]


@dataclass(frozen=True)
class Vectors:
    """K vectors a token.

    Attributes:
        names: of the K.
        width: numbers of each.
        reads: names of the states that are read for them.
        fill: fills its second argument [K, n, width], of any float dtype and strides, from states [n, len(reads), channels].
        single: whether there is one by its nature (a mix, one layer), so that a file's axis of layers falls away.
    """

    names: tuple[str, ...]
    width: int
    reads: tuple[str, ...]
    fill: Fill
    single: bool = False


def vectors_of(store: StoreReader, settings: Settings, weights: WeightSet | None) -> Vectors:
    """The vectors that ``settings`` and the weights of a mix ask for. StoreError for those that the store can't give."""
    states, channels, hub = store.states, store.channels, settings.format == "tfhub"
    if store.manifest.kind == "mix":
        if hub:
            raise StoreError(f"tfhub's names are of all layers, {store.url} holds mixes: export the store that it came from")
        if weights is not None:
            raise StoreError("the store is mixed already: give weights for the store that it came from")
        if settings.weight_set not in (None, *states):
            raise StoreError(f"no weight set {settings.weight_set!r} in the store: it has {', '.join(states)}")
        sets = states if settings.weight_set is None else (settings.weight_set,)
        return Vectors(sets, channels, sets, _copied([(column,) for column in range(len(sets))]), single=len(sets) == 1)
    if settings.layers == "top":
        return _top_layer(store)
    if settings.layers == "all" and not hub:
        return all_layers(states, channels)
    layer_norm = settings.weights is not None and settings.weights["layer_norm"]
    vector = _average(states, channels) if weights is None else _mixed(states, channels, weights, layer_norm)
    return _hub_names(all_layers(states, channels), vector) if hub else vector


def all_layers(states: tuple[str, ...], channels: int) -> Vectors:
    """Layers 0 … L: [x; x], [fwd j; bwd j]. StoreError unless there is every state of a biLM."""
    layers = range(_n_layers(states) + 1)
    halves = [(2 * layer - 1, 2 * layer) if layer else (0, 0) for layer in layers]
    return Vectors(tuple(f"layer_{layer}" for layer in layers), 2 * channels, states, _copied(halves))


def _top_layer(store: StoreReader) -> Vectors:
    """Layer L of the model alone, which a store may have without the others (`embed --states`)."""
    lstm = store.manifest.model.options.get("lstm")
    known = lstm.get("n_layers") if isinstance(lstm, dict) else None
    last = known if isinstance(known, int) and known > 0 else _n_layers(store.states)
    reads = (f"fwd{last}", f"bwd{last}")
    missing = [name for name in reads if name not in store.states]
    if missing:
        raise StoreError(f"the top layer can't be made: the store has no state {missing[0]}, but {', '.join(store.states)}")
    return Vectors((f"layer_{last}",), 2 * store.channels, reads, _copied([(0, 1)]), single=True)


def _average(states: tuple[str, ...], channels: int) -> Vectors:
    """The plain mean of layers 0 … L, in float32, as ``numpy.average(layers, axis=0)``."""
    n_layers = _n_layers(states) + 1

    def fill(values: Array, out: Array) -> None:
        memory = np.empty((3, min(ROWS_AT_ONCE, len(values)), channels), np.float32)
        for first in range(0, len(values), ROWS_AT_ONCE):  # so that they stay in the processor's caches
            rows = values[first : first + ROWS_AT_ONCE]
            halves, state = memory[:2, : len(rows)], memory[2, : len(rows)]  # [2, rows, channels], [rows, channels]
            assign(state, rows[:, 0])
            halves[:] = state
            for column in range(1, len(states)):
                assign(state, rows[:, column])
                halves[(column - 1) % 2] += state
            for half, total in enumerate(halves):
                total /= np.float32(n_layers)
                out[0, first : first + len(rows), half * channels : (half + 1) * channels] = total

    return Vectors(("average",), 2 * channels, states, fill, single=True)


def _mixed(states: tuple[str, ...], channels: int, weights: WeightSet, layer_norm: bool) -> Vectors:
    """γ Σ_j s_j h_j, in float32."""
    mix = ScalarMix.of(weights, "token" if layer_norm else "none")
    if len(mix.s) != _n_layers(states) + 1:
        raise StoreError(f"{len(mix.s)} weights for {_n_layers(states) + 1} layers: they belong to different models")

    def fill(values: Array, out: Array) -> None:
        out[0] = mix(states=values)

    return Vectors((weights.name,), 2 * channels, states, fill, single=True)


def _hub_names(layers: Vectors, mixed: Vectors) -> Vectors:
    """Layers 0 … L and, last, their average or mix: what TensorFlow Hub's module gives names to."""

    def fill(values: Array, out: Array) -> None:
        layers.fill(values, out[:-1])
        mixed.fill(values, out[-1:])

    return Vectors((*layers.names, "elmo"), layers.width, layers.reads, fill)


def _copied(columns: Sequence[Sequence[int]]) -> Fill:
    """Vector k is the states at ``places[k]``, one beside the other."""

    def fill(values: Array, out: Array) -> None:
        channels = values.shape[2]
        for vector, own in zip(out, columns, strict=True):
            for half, column in enumerate(own):
                assign(vector[:, half * channels : (half + 1) * channels], values[:, column])

    return fill


def _n_layers(states: tuple[str, ...]) -> int:
    try:
        return layout.n_layers(states)
    except ValueError as error:
        raise StoreError(f"layers can't be made: {error}") from error
