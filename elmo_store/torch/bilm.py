"""What stands where AllenNLP's modules have their biLM: the states of sentences, read from a store or computed."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from elmo_store.embedded import Array, loaded_model
from elmo_store.errors import SentenceNotFoundError, StoreError
from elmo_store.format import layout
from elmo_store.format.numbers import quantized
from elmo_store.reading.index import resolve_numbers
from elmo_store.store import Store
from elmo_store.torch.characters import tokens_of_ids
from elmo_store.torch.mix import layers_of_states

Inputs = (
    torch.Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[Sequence[str]] | Mapping[str, Any]
)


@dataclass(frozen=True)
class BatchRows:
    """The rows of a batch's sentences, zeros behind each.

    Attributes:
        states: [B, n, 2L+1, p], on any device.
        mask: bool [B, n], True for real rows.
        lead: shape of the batch, (B,) but for character ids of more dimensions.
    """

    states: torch.Tensor
    mask: torch.Tensor
    lead: tuple[int, ...]


class _Carried(nn.Module):
    """AllenNLP's stateful LSTM, as far as programs ask for what it carries from batch to batch: nothing, here."""

    stateful = False
    _states: tuple[torch.Tensor, ...] = ()

    def reset_states(self) -> None:
        """Nothing: each sentence has the store's start state."""


@dataclass(frozen=True)
class LiveModel:
    """A model that computes sentences; each process loads it when it is first needed (`elmo_store.embedded.loaded_model`).

    Of a store it gives the rows that the store would have: of its precision, start state, dtype and boundaries. Without one rows
    are float32, those of BOS and EOS among them.

    Attributes:
        name: as of ``elmo-store embed --model``.
        store: that the rows are to be as of.
        settings: options, start_state, device of `loaded_model`; the start state is the store's where it is given.
    """

    name: str
    store: Store | None
    settings: Mapping[str, Any]

    def loaded(self) -> Any:
        """The model. StoreError if it is not the store's; ImportError."""
        if self.store is None:
            return loaded_model(self.name, **self.settings)
        manifest = self.store.manifest
        as_stored = {"precision": manifest.precision, "start_state": manifest.start_state.kind}
        model = loaded_model(self.name, **{**self.settings, **as_stored})
        if model.fingerprint != manifest.model.fingerprint:
            raise StoreError(
                f"{self.name} is not the model of {self.store.url}: its fingerprint is {model.fingerprint}, the store's "
                f"{manifest.model.fingerprint} ({manifest.model.name}): give the store's own as model="
            )
        return model

    def rows(self, sentences: Sequence[Sequence[str]]) -> list[Array]:
        """The rows [n_rows, 2L+1, p] of each sentence. Errors as of `loaded`."""
        store = self.store
        dtype, boundaries = (
            ("float32", True) if store is None else (store.dtype.name, store.boundaries)
        )
        computed: list[Array] = self.loaded().embed(sentences, dtype, boundaries=boundaries)
        if (
            store is not None and store._view.is_int8
        ):  # with what 8 bits lose, as the store's own rows
            return [quantized(rows).floats() for rows in computed]
        return computed


def live_model(
    store: Store | None,
    options_file: str | os.PathLike[str] | None,
    weight_file: str | os.PathLike[str] | None,
    model: str | None,
    **settings: Any,
) -> LiveModel | None:
    """The model of two files, or the one called ``model``; None without any. TypeError for two, and for options alone."""
    if options_file is not None and (weight_file is None or model is not None):
        raise TypeError(
            f"options_file={options_file}: options are of a weight_file: pass both, or model=… alone; a store is store=…"
        )
    if weight_file is not None and model is not None:
        raise TypeError(f"weight_file={weight_file} and model={model!r}: give one of them")
    name = model if weight_file is None else os.fspath(weight_file)
    settings["options"] = options_file and os.fspath(options_file)
    return None if name is None else LiveModel(name, store, settings)


class BiLM(nn.Module):
    """`_elmo_lstm` of `Elmo`, `elmo_bilm` of `ElmoEmbedder`: AllenNLP's `_ElmoBiLm` by its names, without its weights.

    Args:
        store: has the sentences' states, of every layer; None: all are computed.
        live: computes the sentences that the store does not have; None: such a sentence is an error.

    Attributes:
        num_layers: L+1, as AllenNLP counts them.
        where: what errors call the store, or the model.
        boundaries: whether rows of BOS and EOS are there.

    Raises:
        StoreError: a store without some states.
    """

    def __init__(self, store: Store | None, live: LiveModel | None) -> None:
        super().__init__()
        self._elmo_lstm = _Carried()
        self._store, self._live = store, live
        rows_of: Any = live.loaded() if store is None and live is not None else store
        self.where, self.boundaries = (
            ("the model", True) if store is None else (store.url, store.boundaries)
        )
        try:
            self.num_layers = layout.n_layers(rows_of.states) + 1
        except ValueError as error:
            raise StoreError(f"{self.where}: {error}") from error
        self._no_rows = np.empty(
            (0, len(rows_of.states), rows_of.channels), np.float32 if store is None else store.dtype
        )

    def get_output_dim(self) -> int:
        """2p, the width of a layer."""
        return 2 * self._no_rows.shape[2]

    def forward(self, inputs: Inputs) -> dict[str, Any]:
        """`activations`: L+1 layers, float32 [B, timesteps + 2, 2p], zeros behind each sentence; `mask`, int64, of the same rows.

        ``inputs`` as of `Elmo`. Errors as there; StoreError for a store without the rows of BOS and EOS.
        """
        if not self.boundaries:
            raise StoreError(
                "the biLM's own layers have rows of BOS and EOS, which the store has not: "
                "use a store of `elmo-store embed --boundaries`"
            )
        rows = self.rows(inputs)
        layers = layers_of_states(rows.states.float())
        device = inputs.device if isinstance(inputs, torch.Tensor) else layers.device
        return {
            "activations": list(layers.to(device).unbind(2)),
            "mask": rows.mask.to(device, torch.int64),
        }

    def rows(self, inputs: Inputs) -> BatchRows:
        """Return the rows that inputs of any kind stand for, as of `Elmo`."""
        if torch.compiler.is_compiling():
            # Reading is no work for a compiler: files, hashes and caches. The compiled graph begins with its
            # result. The decorator is applied here because it takes seconds to import the compiler.
            return torch.compiler.disable(self._rows)(inputs)
        return self._rows(inputs)

    def _rows(self, inputs: Inputs) -> BatchRows:
        if isinstance(inputs, Mapping):
            if "states" not in inputs or "mask" not in inputs:
                raise TypeError(
                    f"a batch has {', '.join(inputs)}: `collate` gives states [B, n, 2L+1, p] and mask [B, n]"
                )
            return BatchRows(inputs["states"], inputs["mask"].bool(), (len(inputs["mask"]),))
        if isinstance(inputs, torch.Tensor | np.ndarray):
            array = inputs.cpu().numpy() if isinstance(inputs, torch.Tensor) else inputs
            if array.dtype.kind not in "iu" or array.ndim == 0 or array.ndim == 2:
                raise TypeError(
                    f"inputs are {array.dtype} of shape {array.shape}: give sentence numbers [B], or character ids "
                    "[B, timesteps, 50] of batch_to_ids"
                )
            if array.ndim == 1:
                return self._padded(self._of_numbers(array))
            *lead, timesteps, characters = array.shape
            n_sentences = math.prod(lead)  # NumPy can't infer it of an empty batch
            texts = tokens_of_ids(array.reshape(n_sentences, timesteps, characters))
            return self._padded(self.of_texts(texts), tuple(lead), timesteps + 2 * self.boundaries)
        items: Sequence[Any] = inputs
        if all(isinstance(item, int | np.integer) and type(item) is not bool for item in items):
            return self._padded(self._of_numbers(items))
        if isinstance(inputs, str) or any(
            isinstance(item, str | bytes) or not isinstance(item, Sequence) for item in items
        ):
            raise TypeError(
                f"inputs are {inputs!r:.200}: give a list of sentences, each a list of tokens, or sentence numbers"
            )
        return self._padded(self.of_texts(items))

    def of_texts(self, texts: Sequence[Sequence[str | bytes]]) -> list[Array]:
        """Rows [n_rows, 2L+1, p] of each sentence. SentenceNotFoundError if the store lacks one and there is no model."""
        filled = [tuple(text) for text in texts if len(text)]
        numbers: dict[tuple[str | bytes, ...], int | None] = dict.fromkeys(filled)
        if self._store is not None and filled:
            numbers = dict(zip(filled, self._store.find_text(filled), strict=True))
        missing = [text for text, number in numbers.items() if number is None]
        if missing and self._live is None:
            shown = " ".join(_text(token, "replace") for token in missing[0])
            raise SentenceNotFoundError(
                f"{self.where} has no sentence of these {len(missing[0])} tokens: {shown}"
                + (f" (nor {len(missing) - 1} others of this batch)" if len(missing) > 1 else "")
                + ": embed it into the store, or give model=… to compute such sentences"
            )
        computed = (
            self._live.rows([[_text(token) for token in text] for text in missing])
            if self._live and missing
            else []
        )
        stored = {text: number for text, number in numbers.items() if number is not None}
        read = self._read(sorted(set(stored.values())))
        rows_of = {text: read[number] for text, number in stored.items()}
        if self._store is not None:
            for text, number in stored.items():
                self._store._view.check_row_count(number, len(text))
        rows_of |= dict(zip(missing, computed, strict=True))
        return [rows_of.get(tuple(text), self._no_rows) for text in texts]

    def _of_numbers(self, index: Sequence[int] | npt.NDArray[Any]) -> list[Array]:
        if self._store is None:
            if len(index):
                raise TypeError("sentence numbers are of a store, and there is none: pass tokens")
            return []
        n_sentences = len(self._store)
        numbers = list(resolve_numbers(index, n_sentences, "sentence", self._store.url))
        read = self._read(sorted(set(numbers)))
        return [read[number] for number in numbers]

    def _read(self, numbers: list[int]) -> dict[int, Array]:
        """Rows of each sentence [n_rows, 2L+1, p], all read at once."""
        if self._store is None:
            return {}
        return {sentence.index: rows for sentence, rows in self._store.read_sentences(numbers)}

    def _padded(
        self, rows: Sequence[Array], lead: tuple[int, ...] | None = None, least: int = 0
    ) -> BatchRows:
        """Rows of each sentence with zeros behind, up to ``least`` at least."""
        n = max([least, *map(len, rows)])
        states = np.zeros((len(rows), n, *self._no_rows.shape[1:]), self._no_rows.dtype)
        for padded, own in zip(states, rows, strict=True):
            padded[: len(own)] = own
        mask = np.arange(n) < np.array([len(own) for own in rows], np.int64)[:, None]
        return BatchRows(
            torch.from_numpy(states), torch.from_numpy(mask), (len(rows),) if lead is None else lead
        )


def _text(token: str | bytes, errors: str = "strict") -> str:
    """A token; of one that was cut inside a character when it became ids UnicodeDecodeError, which is a ValueError."""
    return token if isinstance(token, str) else token.decode(errors=errors)
