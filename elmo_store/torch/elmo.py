"""`Elmo`: AllenNLP's module of the same name, reading a store instead of running the biLM.

Source: `allennlp.modules.elmo.Elmo` (0.9.0). What it computes with each batch, a store has: padding, mixes, dropout are the
same.
"""

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
from elmo_store.format.manifest import Manifest
from elmo_store.format.numbers import quantized
from elmo_store.reading.rows import Readable
from elmo_store.store import open as open_store
from elmo_store.torch.mix import ScalarMix, scaled

Inputs = torch.Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[Sequence[str]] | Mapping[str, Any]
# Character ids as ELMoCharacterMapper gives them, already shifted by one for padding.
_BOS, _EOS, _BEGIN_WORD, _END_WORD = 257, 258, 259, 260
_BOUNDARY_WORDS = {_BOS: layout.BOS_TOKEN.encode(), _EOS: layout.EOS_TOKEN.encode()}


@dataclass(frozen=True)
class _Rows:
    """The rows of a batch's sentences, one after the other, and the shape that they are laid out in."""

    states: torch.Tensor  # [rows, 2L+1, p], on any device
    lengths: list[int]  # rows of each sentence
    lead: tuple[int, ...]  # shape of the batch, (B,) but for character ids of more dimensions
    width: int | None = None  # padded length, without boundaries; of the longest sentence by default
    scale: torch.Tensor | None = None  # of int8 states [rows, 2L+1]


class Elmo(nn.Module):
    """ELMo representations of a store's sentences, as `allennlp.modules.elmo.Elmo` gives them of its biLM.

    State dicts go both ways: the mixes have its names (`scalar_mix_K.scalar_parameters.J`, `scalar_mix_K.gamma`); its biLM's
    (`_elmo_lstm.…`) are passed over here, and are all that its module misses in one of ours (``strict=False``).

    Args:
        store: an open store with every state of its model (or a view of one), or its URL.
        num_output_representations: how many mixes.
        requires_grad: only False: a store's states are frozen (γ and w are learned in any case).
        do_layer_norm: each layer is normalised over all real rows of the batch, BOS and EOS among them, as AllenNLP does; the
            store must have their rows (``elmo-store embed --boundaries``). A sentence without tokens has none, here.
        dropout: on the padded representations, while training.
        keep_sentence_boundaries: give the rows of BOS and EOS too; the store must have them.
        scalar_mix_parameters: logits of the layers, the same in every mix, which are not trained then.
        model: computes a sentence that the store does not have: the store's own model, as a name, a folder or a URL. Without one
            such a sentence is an error. Needs the extra ``embed``.
        mask_dtype: of the mask; AllenNLP before 1.0 gave torch.long.

    Raises:
        StoreError: the store can't give what is asked for, and what to do.
    """

    def __init__(
        self,
        store: Readable | str,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        *,
        model: str | None = None,
        mask_dtype: torch.dtype = torch.bool,
    ) -> None:
        super().__init__()
        self.store: Readable = open_store(store) if isinstance(store, str) else store
        n_layers = _layers(self.store)
        if requires_grad:
            raise StoreError(
                f"requires_grad=True trains the biLM, whose states {self.store.url} holds frozen: that takes the biLM itself; "
                "γ and the layers' weights are learned without it"
            )
        if (do_layer_norm or keep_sentence_boundaries) and not self.store.boundaries:
            asked = "do_layer_norm" if do_layer_norm else "keep_sentence_boundaries"
            raise StoreError(f"{asked} needs the rows of BOS and EOS, which {self.store.url} has not: embed with --boundaries")
        self._keep_boundaries = keep_sentence_boundaries
        self._no_rows = np.empty((0, len(self.store.states), self.store.channels), self.store.dtype)
        self._live = None if model is None else _LiveStates(self.store, model)
        self._mask_dtype = mask_dtype
        self._dropout = nn.Dropout(dropout)
        self._mixes: list[str] = []
        for k in range(num_output_representations):
            mix = ScalarMix(
                [0.0] * n_layers if scalar_mix_parameters is None else scalar_mix_parameters,
                layer_norm="batch" if do_layer_norm else "none",
                trainable=scalar_mix_parameters is None,
            )
            if len(mix.scalar_parameters) != n_layers:
                raise ValueError(
                    f"scalar_mix_parameters has {len(mix.scalar_parameters)} logits, {self.store.url} has {n_layers} layers"
                )
            self._mixes.append(f"scalar_mix_{k}")
            self.add_module(self._mixes[-1], mix)
        self.register_load_state_dict_pre_hook(_without_bilm)

    def get_output_dim(self) -> int:
        """2p, the width of a representation."""
        return 2 * self.store.channels

    def forward(self, inputs: Inputs) -> dict[str, Any]:
        """The representations of a batch.

        Args:
            inputs: sentence numbers, int [B]; or lists of tokens, or character ids int [B, timesteps, 50] of `batch_to_ids` (or
                with more dimensions before), both found by their text (`Readable.find_text`); or a batch of `collate`, whose
                states were read by a DataLoader's workers.

        Returns:
            `elmo_representations`: float32 [B, timesteps, 2p], one for each mix, zeros behind each sentence (dropped out like the
            rest); `mask`: [B, timesteps], True for real tokens. With more dimensions of ids, as many of theirs.

        Raises:
            SentenceNotFoundError: the store has no such number or text, and there is no model; names the first sentence.
            TypeError, ValueError: inputs of another kind.
        """
        rows = self._rows(inputs)
        device = next((p.device for p in self.parameters()), rows.states.device)
        states = rows.states.to(device, non_blocking=True)  # in the store's dtype: float16 or int8 travels
        states = scaled(states, None if rows.scale is None else rows.scale.to(device, non_blocking=True))
        kept, lengths, width = self._layout(rows)
        mask = (torch.arange(width)[None] < lengths[:, None]).to(device)  # [B, timesteps]
        kept = kept.to(device)
        representations = []
        for name in self._mixes:
            mixed = getattr(self, name)(states=states)[kept]  # [real rows, 2p]; a norm saw BOS and EOS too
            padded = mixed.new_zeros((*mask.shape, mixed.shape[-1])).masked_scatter(mask[..., None], mixed)
            representations.append(self._dropout(padded).view(*rows.lead, *padded.shape[1:]))
        return {"elmo_representations": representations, "mask": mask.to(self._mask_dtype).view(*rows.lead, width)}

    def _layout(self, rows: _Rows) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Which rows are given, bool [rows]; how many of each sentence, int64 [B]; the padded length."""
        lengths = torch.tensor(rows.lengths, dtype=torch.int64)
        kept = torch.ones(int(lengths.sum()), dtype=torch.bool)
        if self.store.boundaries and not self._keep_boundaries:
            stops, filled = lengths.cumsum(0), lengths > 0
            kept[(stops - lengths)[filled]] = False
            kept[stops[filled] - 1] = False
            lengths = (lengths - 2).clamp(min=0)
        width = 0 if rows.width is None else rows.width + 2 * self._keep_boundaries
        return kept, lengths, max([width, *lengths.tolist()])

    def _rows(self, inputs: Inputs) -> _Rows:
        """The rows that inputs of any kind stand for."""
        if isinstance(inputs, Mapping):
            return _of_batch(inputs)
        if isinstance(inputs, torch.Tensor | np.ndarray):
            array = inputs.cpu().numpy() if isinstance(inputs, torch.Tensor) else inputs
            if array.dtype.kind not in "iu" or array.ndim == 0 or array.ndim == 2:
                raise TypeError(
                    f"inputs are {array.dtype} of shape {array.shape}: give sentence numbers [B], or character ids "
                    "[B, timesteps, 50] of batch_to_ids"
                )
            if array.ndim == 1:
                return self._of_numbers(array.tolist())
            *lead, timesteps, characters = array.shape
            texts = tokens_of_ids(array.reshape(-1, timesteps, characters))
            return self._of_texts(texts, tuple(lead), timesteps)
        items: Sequence[Any] = inputs
        if all(isinstance(item, int | np.integer) for item in items):
            return self._of_numbers([int(item) for item in items])
        if isinstance(inputs, str) or any(isinstance(item, str | bytes) or not isinstance(item, Sequence) for item in items):
            raise TypeError(f"inputs are {inputs!r:.200}: give a list of sentences, each a list of tokens, or sentence numbers")
        return self._of_texts(items, (len(items),), None)

    def _of_numbers(self, numbers: list[int]) -> _Rows:
        read = self._read(sorted(set(numbers)))
        return self._together([read[number] for number in numbers], (len(numbers),), None)

    def _of_texts(self, texts: Sequence[Sequence[str | bytes]], lead: tuple[int, ...], width: int | None) -> _Rows:
        filled = [tuple(text) for text in texts if len(text)]
        numbers = dict(zip(filled, self.store.find_text(filled), strict=True)) if filled else {}
        missing = [text for text, number in numbers.items() if number is None]
        if missing and self._live is None:
            raise SentenceNotFoundError(
                f"{self.store.url} has no sentence of these {len(missing[0])} tokens: {' '.join(map(_shown, missing[0]))}"
                + (f" (nor {len(missing) - 1} others of this batch)" if len(missing) > 1 else "")
                + ": embed it into the store, or give Elmo(…, model=…) to compute such sentences"
            )
        computed = self._live.rows([[_text(token) for token in text] for text in missing]) if self._live and missing else []
        read = self._read(sorted({number for number in numbers.values() if number is not None}))
        rows_of = {text: read[number] for text, number in numbers.items() if number is not None}
        rows_of |= dict(zip(missing, computed, strict=True))
        return self._together([rows_of.get(tuple(text), self._no_rows) for text in texts], lead, width)

    def _read(self, numbers: list[int]) -> dict[int, Array]:
        """Rows of each sentence [n_rows, 2L+1, p], all read at once."""
        return {sentence.index: rows for sentence, rows in self.store.read_sentences(numbers)}

    def _together(self, rows: Sequence[Array], lead: tuple[int, ...], width: int | None) -> _Rows:
        states = torch.from_numpy(np.concatenate([self._no_rows, *rows]))
        return _Rows(states, [len(own) for own in rows], lead, width)


def tokens_of_ids(ids: npt.NDArray[Any]) -> list[list[bytes]]:
    """The words, in UTF-8, that `batch_to_ids` [B, timesteps, 50] was made of, as far as ids tell (48 bytes of each).

    ValueError for numbers that are no character ids.
    """
    texts: list[list[bytes]] = []
    for sentence in ids:
        real = (sentence != 0).any(axis=1)
        length = int(real.sum())
        if not real[:length].all():
            raise ValueError("character ids have a word of zeros between others: padding stands behind a sentence only")
        texts.append([_word(word) for word in sentence[:length]])
    return texts


def _word(ids: npt.NDArray[Any]) -> bytes:
    if ids[0] == _BEGIN_WORD:
        if ids[1] in _BOUNDARY_WORDS:
            return _BOUNDARY_WORDS[int(ids[1])]
        stop = int(np.argmax(ids == _END_WORD))
        if stop and ids[1:stop].min(initial=1) >= 1 and ids[1:stop].max(initial=1) <= 256:
            return bytes((ids[1:stop] - 1).astype(np.uint8))
    raise ValueError(f"{ids[:12].tolist()} … are no character ids of a word: batch_to_ids begins each with {_BEGIN_WORD}")


def _of_batch(batch: Mapping[str, Any]) -> _Rows:
    """The rows of a collated batch, whose padding goes."""
    if "states" not in batch or "mask" not in batch:
        raise TypeError(f"a batch has {', '.join(batch)}: `collate` gives states [B, n, 2L+1, p] and mask [B, n]")
    mask: torch.Tensor = batch["mask"].bool()
    scale = batch["scale"][mask] if "scale" in batch else None
    return _Rows(batch["states"][mask], mask.sum(dim=1).tolist(), (len(mask),), scale=scale)


def _text(token: str | bytes) -> str:
    """A token as the model can be asked for it; of character ids, what a cut inside a character leaves can't."""
    if isinstance(token, str):
        return token
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"the word {_shown(token)}… was cut inside a character when it became ids, so it can't be computed from them: "
            "give tokens instead of character ids"
        ) from None


def _shown(token: str | bytes) -> str:
    return token if isinstance(token, str) else token.decode(errors="replace")


def _layers(store: Readable) -> int:
    """L+1 of a store of all states. StoreError for another one."""
    try:
        return layout.n_layers(store.states) + 1
    except ValueError as error:
        raise StoreError(f"{store.url} has not every state of a biLM, which layers are made of: {error}") from error


def _without_bilm(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """AllenNLP's state dicts hold the biLM too, which the store stands for."""
    for name in [name for name in state_dict if name.startswith(f"{prefix}_elmo_lstm.")]:
        del state_dict[name]


class _LiveStates:
    """Rows of sentences that a store does not have, as it would have them: of its precision, start state, dtype, boundaries.

    The model is loaded when it is first needed. Its name is as of ``elmo-store embed --model``.
    """

    def __init__(self, store: Readable, model: str) -> None:
        self._store, self._name = store, model
        self._model: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_model": None}  # another process loads it itself

    def rows(self, sentences: Sequence[Sequence[str]]) -> list[Array]:
        """The rows [n_rows, 2L+1, p] of each sentence. StoreError if the model is not the store's; ImportError."""
        if self._model is None:
            self._model = self._load()
        computed = self._model.embed(sentences, self._store.dtype.name, boundaries=self._store.boundaries)
        if self._store.is_int8:  # with what 8 bits lose, as the store's own rows
            return [quantized(sentence.rows).floats() for sentence in computed]
        return [sentence.rows for sentence in computed]

    def _load(self) -> Any:
        held: Any = self._store
        while not hasattr(held, "manifest"):  # a view of stores
            held = held.store if hasattr(held, "store") else held.stores[0]
        manifest: Manifest = held.manifest
        model = loaded_model(self._name, precision=manifest.precision, start_state=manifest.start_state.kind)
        if model.fingerprint != manifest.model.fingerprint:
            raise StoreError(
                f"{self._name} is not the model of {self._store.url}: its fingerprint is {model.fingerprint}, the store's "
                f"{manifest.model.fingerprint} ({manifest.model.name}): give the store's own as model="
            )
        return model
