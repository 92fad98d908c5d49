"""PyTorch over a store: a trainable scalar mix, and a Dataset whose items are sentences. The only module here that needs torch.

May import torch, NumPy and the rest of elmo_store.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import Dataset

from elmo_store.layout import n_layers
from elmo_store.store import Store
from elmo_store.store import open as open_store

LayerNorm = Literal["none", "token", "batch"]
_EPSILON = 1e-12  # AllenNLP's ScalarMix


def layers_of_states(states: torch.Tensor) -> torch.Tensor:
    """The L+1 layers that ELMo mixes, from the 2L+1 states of the biLM (Peters et al. 2018, section 3.2).

    Args:
        states: [..., 2L+1, p] in the store's order x, fwd1, bwd1, …, fwdL, bwdL.

    Returns:
        [..., L+1, 2p]: layer 0 = [x; x], layer j = [fwd j; bwd j].
    """
    if states.dim() < 2 or states.shape[-2] % 2 == 0:
        raise ValueError(f"states must be [..., 2L+1, p] with an odd count of states, got {tuple(states.shape)}")
    *lead, n_states, p = states.shape
    halves = states.new_empty((*lead, n_states + 1, p))  # [..., 2(L+1), p], filled in one pass whatever the states' strides
    halves[..., 0, :] = states[..., 0, :]
    halves[..., 1:, :] = states
    return halves.view(*lead, (n_states + 1) // 2, 2 * p)


class ScalarMix(nn.Module):
    """ELMo = γ Σ_j s_j h_j with s = softmax(w); γ and w are learned (Peters et al. 2018, equation 1).

    Parameter names are AllenNLP's (`scalar_parameters.0` … `scalar_parameters.L`, `gamma`, each of shape [1]), so that state
    dicts go both ways; `elmo-store mix` reads them too.

    Args:
        n_layers: L+1.
        initial: starting logits w [n_layers]; zeros (a uniform average) by default.
        trainable: False freezes γ and w.
        layer_norm: "none"; "token" = each layer of each token over its channels (any reader can reproduce it); "batch" = over all
            unmasked tokens of the batch at once, as AllenNLP's do_layer_norm: its result depends on what else is in the batch.
        dropout: probability on the mixed vectors, while training (Peters et al. 2018, section 3.4).
        l2: λ of the penalty λ‖w‖² (section 3.4), see `penalty`.
    """

    def __init__(
        self,
        n_layers: int,
        *,
        initial: Sequence[float] | None = None,
        trainable: bool = True,
        layer_norm: LayerNorm = "none",
        dropout: float = 0.0,
        l2: float = 0.0,
    ) -> None:
        super().__init__()
        logits = [0.0] * n_layers if initial is None else list(initial)
        if n_layers < 1 or len(logits) != n_layers:
            raise ValueError(f"{len(logits)} initial logits for {n_layers} layers: give one for each, at least one layer")
        if layer_norm not in ("none", "token", "batch"):
            raise ValueError(f"layer_norm={layer_norm!r} is none of 'none', 'token', 'batch'")
        if l2 < 0:
            raise ValueError(f"l2={l2} is negative: the penalty λ‖w‖² wants λ ≥ 0")
        self.scalar_parameters = nn.ParameterList(
            [nn.Parameter(torch.tensor([w], dtype=torch.float32), requires_grad=trainable) for w in logits]
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)
        self.layer_norm: LayerNorm = layer_norm
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

    def penalty(self) -> torch.Tensor:
        """λ‖w‖², to be added to the loss: it pulls towards the uniform average."""
        return self.l2 * self.w.square().sum()

    def forward(self, layers: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Mix.

        Args:
            layers: [..., L+1, channels], as `layers_of_states` gives.
            mask: [...] bool, True for real tokens; needed for batch-wide layer norm, which must not see padding.

        Returns:
            [..., channels] in the layers' dtype, at least float32.
        """
        if layers.shape[-2] != len(self.scalar_parameters):
            raise ValueError(
                f"{layers.shape[-2]} layers in a tensor of shape {tuple(layers.shape)}, this mix has "
                f"{len(self.scalar_parameters)}: pass [..., L+1, channels], see layers_of_states"
            )
        layers = layers.float() if layers.dtype in (torch.float16, torch.bfloat16) else layers
        if self.layer_norm == "token":
            layers = nn.functional.layer_norm(layers, layers.shape[-1:], eps=_EPSILON)
        elif self.layer_norm == "batch":
            layers = _batch_layer_norm(layers, mask)
        mixed = torch.matmul(self.s.to(layers.dtype), layers)  # [..., channels]; einsum copies the layers first, and takes 4 ×
        return self.dropout(self.gamma * mixed)


def _batch_layer_norm(layers: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Each layer [..., channels] shifted and scaled by mean and variance over all unmasked tokens and channels together."""
    if mask is None:
        mask = torch.ones(layers.shape[:-2], dtype=torch.bool, device=layers.device)
    real = layers[mask]  # [n, L+1, channels]
    mean = real.mean(dim=(0, 2), keepdim=True)[0]  # [L+1, 1]
    variance = real.var(dim=(0, 2), keepdim=True, correction=0)[0]  # [L+1, 1]
    return (layers - mean) / torch.sqrt(variance + _EPSILON)


class SentenceDataset(Dataset[dict[str, Any]]):
    """The sentences of a store as PyTorch items; picklable, so DataLoader workers may read side by side.

    Item i is sentence i, also where it has no tokens, unless ``indices`` says otherwise; nothing is read to make the dataset.

    An item is a dict: `index` (number of the sentence), `id`, `tokens` (strings), and `layers` [n_rows, L+1, 2p] in the
    store's dtype, which is what travels from a worker (`ScalarMix` computes in float32); of a mixed store, of one that holds
    some of the states only, or with `states` given, `states` [n_rows, len(states), channels] instead.

    Args:
        store: an open store, or its URL.
        states: names to read instead of all layers; the other states are not read from the store.
        indices: numbers of the sentences to take, in that order; by default every sentence, those without tokens too.
        text: False leaves out `id` and `tokens`: in random order they cost more than the vectors.
    """

    def __init__(
        self,
        store: Store | str,
        *,
        states: Sequence[str] | None = None,
        indices: Sequence[int] | None = None,
        text: bool = True,
    ) -> None:
        self.store = open_store(store) if isinstance(store, str) else store
        self._states = tuple(states) if states is not None else self.store.states
        self._as_layers = states is None and _has_layers(self.store)
        self._text = text
        self.indices: Sequence[int] = range(len(self.store)) if indices is None else indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> dict[str, Any]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """The items of a batch, all of them read at once, in the order of the store."""
        numbers = [int(self.indices[item]) for item in items]
        wanted = sorted(set(numbers))
        batch = self.store.read_sentences(wanted, states=self._states)
        rows = torch.from_numpy(batch.states)  # [rows, S, C], of a state after the other
        # One copy either way: rows one after the other, and of states their layers.
        name, vectors = ("layers", layers_of_states(rows)) if self._as_layers else ("states", rows.contiguous())
        edges = batch.offsets.tolist()
        read: dict[int, dict[str, Any]] = {}
        for place, number in enumerate(wanted):
            read[number] = {"index": number, name: vectors[edges[place] : edges[place + 1]]}
        if self._text:
            for record in self.store._records(wanted):
                read[record.index] |= {"id": record.id, "tokens": record.tokens}
        return [read[number] for number in numbers]


def _has_layers(store: Store) -> bool:
    """True for a store of all 2L+1 states."""
    if store.manifest.kind != "states":
        return False
    try:
        return n_layers(store.states) > 0
    except ValueError:
        return False


def _padded(items: Sequence[torch.Tensor], longest: int) -> torch.Tensor:
    """Items [n, …] as [B, longest, …], zeros behind each. Zeros are written there only: half the time of pad_sequence."""
    padded = items[0].new_empty((len(items), longest, *items[0].shape[1:]))
    for own, rows in zip(padded, items, strict=True):
        own[: len(rows)] = rows
        own[len(rows) :] = 0
    return padded


def collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A batch of `SentenceDataset` items: tensors padded with zeros to the longest, `mask` [B, n_max] True for real rows.

    Other entries become lists, so labels that a dataset of yours adds travel along.
    """
    batch: dict[str, Any] = {name: [item[name] for item in items] for name in items[0]}
    for name in ("layers", "states"):
        if name in batch:
            lengths = torch.tensor([len(rows) for rows in batch[name]])  # [B]
            batch["mask"] = torch.arange(int(lengths.max()))[None] < lengths[:, None]  # [B, n_max]
            batch[name] = _padded(batch[name], int(lengths.max()))
    return batch
