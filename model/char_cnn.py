"""The context-free word vector x from a word's characters, as plain equations. Imports torch and the model's options.

Source: Peters et al. 2018 (arXiv:1802.05365, section 3.4) after Kim et al. 2016 (arXiv:1508.06615); details of bilm-tf.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from model.options import BiLMOptions


def char_cnn(tensors: Mapping[str, Tensor], options: BiLMOptions, ids: Tensor) -> Tensor:
    """Word vectors.

    Args:
        tensors: canonical tensors (`BiLMOptions.tensor_shapes`), of any floating dtype, on the device to compute on.
        options: the model's shape.
        ids: int64 [n, 50] from `characters.char_ids`, on the same device.

    Returns:
        x [n, p] in the tensors' dtype.
    """
    activate = torch.relu if options.activation == "relu" else torch.tanh
    characters = F.embedding(ids, tensors["char_embed"]).transpose(1, 2)  # [n, chars, 50]
    # The maximum runs over every window of the 50 characters, those of padding too.
    pooled = [
        F.conv1d(characters, tensors[f"conv{i}.weight"], tensors[f"conv{i}.bias"]).amax(dim=2)  # [n, f]
        for i in range(len(options.filters))
    ]
    x = activate(torch.cat(pooled, dim=1))  # [n, filters]
    for k in range(options.n_highway):
        x = _highway(x, tensors, f"highway{k}")  # [n, filters]
    return F.linear(x, tensors["proj.weight"], tensors["proj.bias"])  # [n, p]


def _highway(x: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """carry · relu(transform(x)) + (1 - carry) · x, x [n, filters]."""
    carry = torch.sigmoid(F.linear(x, tensors[f"{name}.carry.weight"], tensors[f"{name}.carry.bias"]))
    transformed = torch.relu(F.linear(x, tensors[f"{name}.transform.weight"], tensors[f"{name}.transform.bias"]))
    return carry * transformed + (1 - carry) * x
