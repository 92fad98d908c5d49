"""PyTorch over a store: the trainable mix, AllenNLP's classes, datasets. These are the only modules here that need torch.

`mix` learns γ and s; `elmo`, `embedder` and `characters` are AllenNLP's `Elmo`, `ElmoEmbedder` and `batch_to_ids`, over a store;
`dataset` and `stream` are map-style and iterable datasets.
"""

from elmo_store.torch.characters import batch_to_ids
from elmo_store.torch.dataset import SentenceDataset, collate
from elmo_store.torch.elmo import Elmo
from elmo_store.torch.embedder import ElmoEmbedder
from elmo_store.torch.mix import LayerNorm, ScalarMix, layers_of_states
from elmo_store.torch.stream import SentenceStream

__all__ = [
    "Elmo", "ElmoEmbedder", "LayerNorm", "ScalarMix", "SentenceDataset", "SentenceStream", "batch_to_ids", "collate",
    "layers_of_states",
]  # fmt: skip
