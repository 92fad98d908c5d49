"""A store's states in memory, sentence by sentence, with boundaries left out and checked against labels.

A probe reads every vector in each of its epochs, so it holds them: the store's own bytes (1.3 KB a token for 128 dimensions in
float16, 5.1 KB for 512).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo_store.format.layout import n_layers
from elmo_store.store import Store
from pipeline.probing.labels import LabelError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TokenStates:
    """Sentences and the states of their tokens, those of BOS and EOS left out.

    Attributes:
        states: [tokens, 2L+1, p] in the store's dtype.
        offsets: int64 [sentences + 1]; tokens ``offsets[i] … offsets[i + 1]`` are those of sentence i.
        names: what a message calls each sentence: its number in the store and its id.
        url: the store.
        n_rejected: records that were refused when the store was made.
    """

    states: Array
    offsets: npt.NDArray[np.int64]
    names: tuple[str, ...]
    url: str
    n_rejected: int

    @property
    def n_layers(self) -> int:
        """L+1."""
        return (self.states.shape[1] + 1) // 2

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each sentence [sentences]."""
        return np.diff(self.offsets)


def load_states(store: Store) -> TokenStates:
    """The sentences of ``store`` that have tokens. LabelError for a store of mixes, which has no layers to choose from."""
    if store.manifest.kind != "states":
        origin = store.manifest.mix.source if store.manifest.mix else "unknown"
        raise LabelError(f"{store.url} is a store of mixes: probe the store it came from, {origin}")
    n_layers(store.states)  # the order x, fwd1, bwd1, … is what the layers are made of
    edge = int(store.manifest.boundaries)
    states = np.empty((store.n_tokens, len(store.states), store.channels), store.dtype)
    offsets, names, at = [0], [], 0
    for batch in store.batches(256):
        for sentence, rows in batch:
            if not len(rows):
                continue
            tokens = rows[edge : len(rows) - edge]
            states[at : at + len(tokens)] = tokens
            at += len(tokens)
            offsets.append(at)
            names.append(f"sentence {sentence.index} ({sentence.id})")
    rejected = store.manifest.sizes.rejected
    return TokenStates(states[:at], np.asarray(offsets, np.int64), tuple(names), store.url, rejected)


def check_alignment(vectors: TokenStates, lengths: Sequence[int], wheres: Sequence[str]) -> None:
    """Sentence by sentence the same count of tokens, or a LabelError that names the first sentence that differs.

    Words are not compared: labels may keep escapes (``-LRB-``) that were mapped before embedding.
    """
    have = vectors.lengths()
    refused = (
        f"; {vectors.n_rejected} records were refused when the store was made, see its rejects/" if vectors.n_rejected else ""
    )
    for i, (tokens, labels) in enumerate(zip(have.tolist(), lengths, strict=False)):
        if tokens != labels:
            raise LabelError(
                f"{vectors.names[i]} of {vectors.url} has {tokens} tokens, its labels at {wheres[i]} are {labels}: labels and "
                f"store must come from the same sentences in the same order{refused}"
            )
    if len(have) != len(lengths):
        longer = vectors.names[len(lengths)] if len(have) > len(lengths) else wheres[len(have)]
        raise LabelError(
            f"{vectors.url} has {len(have)} sentences with tokens, the labels are of {len(lengths)}: {longer} has no "
            f"counterpart{refused}"
        )
