"""The published layout of a biLM's weights, whatever file they stand in: names, shapes, and the way to canonical tensors. NumPy.

Layout (float32; w = width of a filter, f = its count, n = all filters, p = projection, d = cell):

    char_embed                  (261, chars)    one row a byte or marker; the padding row 0 is left out
    CNN/W_cnn_i, CNN/b_cnn_i    (1, w, chars, f), (f,)
    CNN_high_k/W_transform, b_transform, W_carry, b_carry    (n, n), (n,): in, out
    CNN_proj/W_proj, b_proj     (n, p), (p,)
    RNN_r/RNN/MultiRNNCell/Cellj/LSTMCell/W_0, B, W_P_0      (2p, 4d), (4d,), (d, p); r = 0 forward, 1 backward

W_0's rows are those of the layer's input, then of h. Its columns are TensorFlow's gates: input, new, forget, output.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from model.options import DIRECTIONS, BiLMOptions

Array = npt.NDArray[np.float32]


def _cell(direction: int, layer: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer - 1}/LSTMCell"


def layout(options: BiLMOptions, *, has_projection: bool) -> dict[str, tuple[int, ...]]:
    """Published names and shapes; ``has_projection``: whether CNN_proj stands in the file, which it need not where n = p."""
    n, p, d, chars = options.n_filters, options.projection_dim, options.dim, options.char_embedding_dim
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (options.n_characters - 1, chars)}
    for i, (width, count) in enumerate(options.filters):
        shapes[f"CNN/W_cnn_{i}"] = (1, width, chars, count)
        shapes[f"CNN/b_cnn_{i}"] = (count,)
    for k in range(options.n_highway):
        for part in ("transform", "carry"):
            shapes[f"CNN_high_{k}/W_{part}"] = (n, n)
            shapes[f"CNN_high_{k}/b_{part}"] = (n,)
    # bilm-tf makes no projection where the filters are as many as it would be wide.
    if n != p or has_projection:
        shapes["CNN_proj/W_proj"] = (n, p)
        shapes["CNN_proj/b_proj"] = (p,)
    for direction in range(len(DIRECTIONS)):
        for layer in range(1, options.n_layers + 1):
            cell = _cell(direction, layer)
            shapes[f"{cell}/W_0"] = (2 * p, 4 * d)
            shapes[f"{cell}/B"] = (4 * d,)
            shapes[f"{cell}/W_P_0"] = (d, p)
    return shapes


def canonical(published: Mapping[str, Array], options: BiLMOptions) -> dict[str, Array]:
    """Published arrays under canonical names, turned to torch's orientation."""
    p = options.projection_dim
    no_row = np.zeros((1, options.char_embedding_dim), np.float32)
    arrays = {"char_embed": np.concatenate([no_row, published["char_embed"]])}  # [262, chars]
    for i in range(len(options.filters)):
        arrays[f"conv{i}.weight"] = published[f"CNN/W_cnn_{i}"][0].transpose(2, 1, 0)  # [f, chars, w]
        arrays[f"conv{i}.bias"] = published[f"CNN/b_cnn_{i}"]
    for k in range(options.n_highway):
        for part in ("transform", "carry"):
            arrays[f"highway{k}.{part}.weight"] = published[f"CNN_high_{k}/W_{part}"].T
            arrays[f"highway{k}.{part}.bias"] = published[f"CNN_high_{k}/b_{part}"]
    if "CNN_proj/W_proj" in published:
        arrays["proj.weight"] = published["CNN_proj/W_proj"].T
        arrays["proj.bias"] = published["CNN_proj/b_proj"]
    else:
        arrays["proj.weight"] = np.eye(p, dtype=np.float32)
        arrays["proj.bias"] = np.zeros(p, np.float32)
    for r, direction in enumerate(DIRECTIONS):
        for layer in range(1, options.n_layers + 1):
            cell, name = _cell(r, layer), f"lstm.{direction}{layer}"
            weight = _swap_gates(published[f"{cell}/W_0"].T)  # [4d, 2p]
            arrays[f"{name}.weight_ih"] = weight[:, :p]
            arrays[f"{name}.weight_hh"] = weight[:, p:]
            arrays[f"{name}.bias"] = _swap_gates(published[f"{cell}/B"])
            arrays[f"{name}.weight_proj"] = published[f"{cell}/W_P_0"].T
    return arrays


def published_arrays(arrays: Mapping[str, Array], options: BiLMOptions) -> dict[str, Array]:
    """The way back of `canonical`."""
    published = {"char_embed": arrays["char_embed"][1:]}
    for i in range(len(options.filters)):
        published[f"CNN/W_cnn_{i}"] = arrays[f"conv{i}.weight"].transpose(2, 1, 0)[None]  # [1, w, chars, f]
        published[f"CNN/b_cnn_{i}"] = arrays[f"conv{i}.bias"]
    for k in range(options.n_highway):
        for part in ("transform", "carry"):
            published[f"CNN_high_{k}/W_{part}"] = arrays[f"highway{k}.{part}.weight"].T
            published[f"CNN_high_{k}/b_{part}"] = arrays[f"highway{k}.{part}.bias"]
    published["CNN_proj/W_proj"] = arrays["proj.weight"].T
    published["CNN_proj/b_proj"] = arrays["proj.bias"]
    for r, direction in enumerate(DIRECTIONS):
        for layer in range(1, options.n_layers + 1):
            cell, name = _cell(r, layer), f"lstm.{direction}{layer}"
            weight = np.concatenate([arrays[f"{name}.weight_ih"], arrays[f"{name}.weight_hh"]], axis=1)  # [4d, 2p]
            published[f"{cell}/W_0"] = _swap_gates(weight).T
            published[f"{cell}/B"] = _swap_gates(arrays[f"{name}.bias"])
            published[f"{cell}/W_P_0"] = arrays[f"{name}.weight_proj"].T
    return published


def _swap_gates(array: Array) -> Array:
    """Both ways between TensorFlow's gates (input, new, forget, output) and torch's (input, forget, cell, output).

    The gates lie along axis 0.
    """
    first, second, third, fourth = np.split(array, 4)
    return np.concatenate([first, third, second, fourth])
