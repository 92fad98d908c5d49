"""`Elmo`: AllenNLP's module of the same name, reading a store instead of running the biLM.

Source: `allennlp.modules.elmo.Elmo` (0.9.0). What it computes with each batch, a store has: padding, mixes, dropout are the
same.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn

from elmo_store.errors import StoreError
from elmo_store.store import Store
from elmo_store.store import open as open_store
from elmo_store.torch.allennlp import takes_elmo_calls
from elmo_store.torch.bilm import BiLM, Inputs, live_model
from elmo_store.torch.mix import ScalarMix


class Elmo(nn.Module):
    """ELMo representations of a store's sentences, as `allennlp.modules.elmo.Elmo` gives them of its biLM.

    State dicts go both ways: the mixes have its names (`scalar_mix_K.scalar_parameters.J`, `scalar_mix_K.gamma`); its biLM's
    (`_elmo_lstm.…`) are passed over here, and are all that its module misses in one of ours (``strict=False``).

    AllenNLP's own call, `Elmo(options_file, weight_file, 2)`, computes with the model of these files.

    Args:
        store: an open store with every state of its model (or a view of one), or its URL. None: all is computed.
        num_output_representations: how many mixes.
        requires_grad: only False: a store's states are frozen (γ and w are learned in any case).
        do_layer_norm: each layer is normalised over all real rows of the batch, BOS and EOS among them, as AllenNLP does; the
            store must have their rows (``elmo-store embed --boundaries``). A sentence without tokens has none, here.
        dropout: on the padded representations, while training.
        keep_sentence_boundaries: give the rows of BOS and EOS too; the store must have them.
        scalar_mix_parameters: logits of the layers, the same in every mix, which are not trained then.
        options_file, weight_file, or model: the model's files, or its name, folder or URL. It computes a sentence that the store
            does not have, and must be the store's own; without it such a sentence is an error. Needs the extra ``embed``.
        vocab_to_cache: taken for AllenNLP's sake; results are the same without it.

    Raises:
        TypeError: neither a store nor a model; two models.
        StoreError: the store can't give what is asked for, and what to do.
    """

    @takes_elmo_calls
    def __init__(
        self,
        store: Store | str | os.PathLike[str] | None = None,
        num_output_representations: int = 1,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        *,
        options_file: str | os.PathLike[str] | None = None,
        weight_file: str | os.PathLike[str] | None = None,
        model: str | None = None,
        vocab_to_cache: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.store: Store | None = (
            open_store(store) if isinstance(store, str | os.PathLike) else store
        )
        live = live_model(self.store, options_file, weight_file, model)
        if self.store is None and live is None:
            raise TypeError(
                "there is nothing to read or to compute with: give a store, or options_file and weight_file"
            )
        self._elmo_lstm = BiLM(self.store, live)
        where = self._elmo_lstm.where
        if requires_grad:
            raise StoreError(
                f"requires_grad=True trains the biLM, whose states {where} gives frozen: that takes the biLM itself; "
                "γ and the layers' weights are learned without it"
            )
        if (do_layer_norm or keep_sentence_boundaries) and not self._elmo_lstm.boundaries:
            asked = "do_layer_norm" if do_layer_norm else "keep_sentence_boundaries"
            raise StoreError(
                f"{asked} needs the rows of BOS and EOS, which {where} has not: use a store of `elmo-store embed --boundaries`"
            )
        self._keep_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(dropout)
        self.num_output_representations = num_output_representations
        n_layers = self._elmo_lstm.num_layers
        for k in range(num_output_representations):
            mix = ScalarMix(
                [0.0] * n_layers if scalar_mix_parameters is None else scalar_mix_parameters,
                layer_norm="batch" if do_layer_norm else "none",
                trainable=scalar_mix_parameters is None,
            )
            if len(mix.scalar_parameters) != n_layers:
                raise ValueError(
                    f"scalar_mix_parameters has {len(mix.scalar_parameters)} logits, {where} has {n_layers} layers"
                )
            self.add_module(f"scalar_mix_{k}", mix)
        self.register_load_state_dict_pre_hook(_without_bilm)

    @property
    def _scalar_mixes(self) -> nn.ModuleList:
        """The mixes `scalar_mix_0`, …, under which names alone they stand in state dicts."""
        return nn.ModuleList(
            [self.get_submodule(f"scalar_mix_{k}") for k in range(self.num_output_representations)]
        )

    def get_output_dim(self) -> int:
        """2p, the width of a representation."""
        return self._elmo_lstm.get_output_dim()

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """An `Elmo` of a dictionary, or AllenNLP's `Params`, that has its arguments by name."""
        return cls(**dict(params))

    def forward(self, inputs: Inputs, word_inputs: torch.Tensor | None = None) -> dict[str, Any]:
        """The representations of a batch.

        Args:
            inputs: sentence numbers, int [B]; or lists of tokens, or character ids int [B, timesteps, 50] of `batch_to_ids` (or
                with more dimensions before), both found by their text (`Store.find_text`); or a batch of `collate`, whose
                states were read by a DataLoader's workers.
            word_inputs: taken for AllenNLP's sake: ids of a cached vocabulary; the character ids say the same.

        Returns:
            `elmo_representations`: float32 [B, timesteps, 2p], one for each mix, zeros behind each sentence (after do_layer_norm
                with boundaries other numbers, as in AllenNLP; dropped out like the
            rest); `mask`: int64 [B, timesteps], 1 for real tokens. With more dimensions of ids, as many of theirs.

        Raises:
            SentenceNotFoundError: the store has no such number or text, and there is no model; names the first sentence.
            TypeError, ValueError: inputs of another kind.
        """
        rows = self._elmo_lstm.rows(inputs)
        device = next((p.device for p in self.parameters()), rows.states.device)
        states = rows.states.to(device, non_blocking=True)  # in the store's dtype
        mask = rows.mask.to(device)
        inner = self._elmo_lstm.boundaries and not self._keep_boundaries
        representations = []
        for mix in self._scalar_mixes:
            mixed = mix(states=states, mask=mask)  # [B, n, 2p]; a norm sees BOS and EOS too
            if inner:
                mixed = mixed[:, 1:-1] * mask[:, 2:, None]
            representations.append(self._dropout(mixed).reshape(*rows.lead, *mixed.shape[1:]))
        mask = mask[:, 2:] if inner else mask
        return {
            "elmo_representations": representations,
            "mask": mask.long().reshape(*rows.lead, mask.shape[1]),
        }


def _without_bilm(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """AllenNLP's state dicts hold the biLM too, which the store stands for."""
    for name in [name for name in state_dict if name.startswith(f"{prefix}_elmo_lstm.")]:
        del state_dict[name]
