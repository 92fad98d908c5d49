"""PyTorch over a store: the trainable mix, the `Elmo` module, datasets. These are the only modules here that need torch.

`mix` learns γ and s, `elmo` is AllenNLP's module over a store, `dataset` and `stream` are map-style and iterable datasets.
"""

from elmo_store.torch.dataset import SentenceDataset, collate
from elmo_store.torch.elmo import Elmo
from elmo_store.torch.mix import LayerNorm, ScalarMix, layers_of_states
from elmo_store.torch.stream import SentenceStream

__all__ = ["Elmo", "LayerNorm", "ScalarMix", "SentenceDataset", "SentenceStream", "collate", "layers_of_states"]
