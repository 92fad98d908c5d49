"""An independent reference of the whole biLM in plain float64 NumPy, to test every engine against.

Written from the paper (Peters et al. 2018, arXiv:1802.05365, sections 3.1 and 3.4) and from the published file's own names and
gate order. It shares no code with `model`: it reads options.json and HDF5 itself and makes the characters itself, so that an
error there can't hide here. One token at a time, no batching, no clever algebra.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from model.files.weights import BiLMWeights

Array = npt.NDArray[np.float64]
State = tuple[Array, Array]  # h [L, p], c [L, d] of one direction


class ReferenceBiLM:
    """The biLM of a folder with options.json and published HDF5 weights.

    Every result has the boundary rows: row 0 is BOS, row n+1 is EOS. States stand in the order x, fwd1, bwd1, fwd2, …
    """

    def __init__(self, options_path: Path, weights_path: Path) -> None:
        self.options: dict[str, Any] = json.loads(options_path.read_text(encoding="utf-8"))
        self.published: dict[str, Array] = {}
        with h5py.File(weights_path, "r") as file:
            file.visititems(self._remember)
        lstm = self.options["lstm"]
        self.n_layers: int = lstm["n_layers"]
        self.width: int = lstm["projection_dim"]
        self.cell: int = lstm["dim"]
        self._x_of: dict[str, Array] = {}

    def _remember(self, name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            self.published[name] = np.asarray(item[()], dtype=np.float64)

    def states(
        self, tokens: Sequence[str], h: npt.ArrayLike | None = None, c: npt.ArrayLike | None = None
    ) -> Array:
        """All states of one sentence [n+2, 2L+1, p]; h [2, L, p] and c [2, L, d] start them, zeros if None."""
        if h is None or c is None:
            h = np.zeros((2, self.n_layers, self.width))
            c = np.zeros((2, self.n_layers, self.cell))
        h, c = np.asarray(h, np.float64), np.asarray(c, np.float64)
        return self._sentence(tokens, [(h[0], c[0]), (h[1], c[1])])[0]

    def carry(self, lanes: Sequence[Sequence[Sequence[str]]]) -> list[list[Array]]:
        """Per lane and sentence [n+2, 2L+1, p], each sentence starting from the state its predecessor left."""
        results: list[list[Array]] = []
        for lane in lanes:
            state = [
                (np.zeros((self.n_layers, self.width)), np.zeros((self.n_layers, self.cell)))
                for _ in range(2)
            ]
            results.append([])
            for tokens in lane:
                states, state = self._sentence(tokens, state)
                results[-1].append(states)
        return results

    def _sentence(self, tokens: Sequence[str], starts: list[State]) -> tuple[Array, list[State]]:
        x = np.stack(
            [self.x("<S>"), *(self.x(token) for token in tokens), self.x("</S>")]
        )  # [n+2, p]
        forward, forward_end = self._direction(0, x, starts[0])
        backward, backward_end = self._direction(1, x[::-1], starts[1])
        states = [x]
        for j in range(self.n_layers):
            states += [forward[j], backward[j][::-1]]
        return np.stack(states, axis=1), [forward_end, backward_end]

    def _direction(self, direction: int, x: Array, start: State) -> tuple[list[Array], State]:
        """Outputs of each layer in reading order, and the state after the last token."""
        outputs, last_h, last_c = [], [], []
        for j in range(self.n_layers):
            h, c = start[0][j], start[1][j]
            rows = []
            for x_t in x:
                h, c = self._step(f"RNN_{direction}/RNN/MultiRNNCell/Cell{j}/LSTMCell", x_t, h, c)
                rows.append(h)
            output = np.stack(rows)
            if j > 0 and self.options["lstm"]["use_skip_connections"]:
                output = output + x
            outputs.append(output)
            last_h.append(h)
            last_c.append(c)
            x = output
        return outputs, (np.stack(last_h), np.stack(last_c))

    def _step(self, cell: str, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """TensorFlow's LSTMCell: gates input, new, forget, output; 1.0 on forget; clip, output, project, clip."""
        gates = np.concatenate([x, h]) @ self.published[f"{cell}/W_0"] + self.published[f"{cell}/B"]
        i, new, f, o = np.split(gates, 4)
        c = _sigmoid(f + 1.0) * c + _sigmoid(i) * np.tanh(new)
        c = _clip(c, self.options["lstm"]["cell_clip"])
        h = (_sigmoid(o) * np.tanh(c)) @ self.published[f"{cell}/W_P_0"]
        return _clip(h, self.options["lstm"]["proj_clip"]), c

    def x(self, token: str) -> Array:
        """The character CNN's vector of one token [p]."""
        if token not in self._x_of:
            self._x_of[token] = self._char_cnn(token)
        return self._x_of[token]

    def _char_cnn(self, token: str) -> Array:
        options = self.options["char_cnn"]
        # Rows of the file's table, which has no padding row: so these ids are not shifted by one.
        length = options["max_characters_per_token"]
        if token in ("<S>", "</S>"):
            ids = [258, 256 if token == "<S>" else 257, 259]
        else:
            ids = [258, *token.encode("utf-8")[: length - 2], 259]
        ids += [260] * (length - len(ids))
        characters = self.published["char_embed"][ids]  # [50, chars]
        activate = np.tanh if options["activation"] == "tanh" else _relu
        parts = []
        for i, (width, _) in enumerate(options["filters"]):
            kernel = self.published[f"CNN/W_cnn_{i}"][0]  # [w, chars, f]
            windows = [
                np.tensordot(characters[t : t + width], kernel, axes=([0, 1], [0, 1]))
                for t in range(length - width + 1)
            ]
            parts.append(activate(np.max(windows, axis=0) + self.published[f"CNN/b_cnn_{i}"]))
        y = np.concatenate(parts)  # [filters]
        for k in range(options["n_highway"]):
            high = f"CNN_high_{k}"
            carry = _sigmoid(
                y @ self.published[f"{high}/W_carry"] + self.published[f"{high}/b_carry"]
            )
            transformed = _relu(
                y @ self.published[f"{high}/W_transform"] + self.published[f"{high}/b_transform"]
            )
            y = carry * transformed + (1.0 - carry) * y
        return np.asarray(y @ self.published["CNN_proj/W_proj"] + self.published["CNN_proj/b_proj"])


def _sigmoid(z: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-z)))


def _relu(z: Array) -> Array:
    return np.maximum(z, 0.0)


def _clip(z: Array, bound: float | None) -> Array:
    return z if bound is None else np.clip(z, -bound, bound)


def reference_of(weights: BiLMWeights, folder: Path) -> ReferenceBiLM:
    """Of these weights, by way of files in ``folder``."""
    weights.save_hdf5(folder)
    return ReferenceBiLM(folder / "options.json", folder / "weights.hdf5")
