"""The sampled softmax over counted classes, both directions' shared Θs.

Source: Jean et al. 2015 (arXiv:1412.2007), as TensorFlow's `sampled_softmax_loss`: negatives drawn without repetition
from a log-uniform distribution over classes in order of frequency, shared by a batch, logits lowered by the logarithm
of how often a class was expected among them; a row's own class is taken out of its negatives.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from model.errors import TrainingError

NEVER = -1e30  # the logit of a negative that is the row's own class


@dataclass(frozen=True, eq=False)
class Negatives:
    classes: Tensor  # int64 [k], distinct, rising
    tries: Tensor  # draws that it took to find k distinct ones, a float64 scalar
    n_classes: int  # what they were drawn from

    def to(self, device: torch.device) -> "Negatives":
        return Negatives(self.classes.to(device), self.tries.to(device), self.n_classes)

    def log_expected(self, classes: Tensor) -> Tensor:
        """Logarithm of how often each class is expected among the negatives, float32, the shape of `classes`."""
        rank = classes.double()
        p = ((rank + 2) / (rank + 1)).log() / math.log(self.n_classes + 1)
        return (-torch.expm1(self.tries * torch.log1p(-p))).log().float()


def draw(n_classes: int, k: int, generator: np.random.Generator) -> Negatives:
    """Draw k distinct classes, P(class) = log((class + 2) / (class + 1)) / log(n_classes + 1)."""
    k = min(k, n_classes)
    first = np.full(n_classes, -1, dtype=np.int64)  # at which draw each class came first
    drawn = np.empty(0, dtype=np.int64)
    while True:
        uniform = generator.random(2 * k)
        more = (
            (np.exp(uniform * math.log(n_classes + 1)) - 1).astype(np.int64).clip(0, n_classes - 1)
        )
        drawn = np.concatenate((drawn, more))
        first[drawn[::-1]] = np.arange(len(drawn))[
            ::-1
        ]  # of a class drawn twice the earlier place is written last
        firsts = first[first >= 0]
        if len(firsts) >= k:
            last = int(np.partition(firsts, k - 1)[k - 1])
            classes = torch.from_numpy(np.flatnonzero((first >= 0) & (first <= last)))
            return Negatives(classes, torch.tensor(last + 1.0, dtype=torch.float64), n_classes)


@dataclass(frozen=True, eq=False)
class SampledLoss:
    """The loss of one direction's positions and its gradients, none of them averaged yet."""

    loss: Tensor  # scalar, Σ weight · -log p over the positions
    dh: Tensor  # [n, p], gradient of the outputs, in their dtype
    d_negatives: Tensor  # [k, p] and d_negative_bias: [k], gradients of the negatives' rows
    d_negative_bias: Tensor
    d_targets: Tensor  # [n, p] and d_target_bias: [n], of each position's own row
    d_target_bias: Tensor


def sampled_loss(
    h: Tensor, targets: Tensor, weights: Tensor, weight: Tensor, bias: Tensor, negatives: Negatives
) -> SampledLoss:
    """Loss and gradients for outputs h [n, p] of one direction, in the products' dtype.

    targets int64 [n] with the weights [n] of their losses; the softmax's weight [classes, p] and bias [classes], float32 or
    wider; negatives on h's device.
    """
    wide, classes = weight.dtype, negatives.classes
    read = (h, weight[classes], bias[classes], weight[targets], bias[targets])
    h, rows, row_bias, own, own_bias = leaves = [part.detach().requires_grad_() for part in read]
    true_logit = (
        (h.to(wide) * own).sum(1) + own_bias - negatives.log_expected(targets).to(wide)
    )  # [n]
    logits = (h @ rows.to(h.dtype).t()).to(wide) + (
        row_bias - negatives.log_expected(classes).to(wide)
    )  # [n, k]
    # A row's own class stands among the candidates once: as itself, not as a negative.
    logits = logits.masked_fill(classes == targets[:, None], NEVER)
    losses = torch.cat((logits, true_logit[:, None]), dim=1).logsumexp(1) - true_logit  # [n]
    loss = (losses * weights).sum()
    return SampledLoss(loss.detach(), *torch.autograd.grad(loss, leaves))


class SoftmaxRows:
    """The softmax Θs, shared by both directions, weight [classes, p] and bias [classes], and its Adagrad.

    Its accumulator `seen` is one number per row, [classes, 1].
    """

    def __init__(self, weight: Tensor, bias: Tensor, rate: float) -> None:
        self.weight, self.bias, self.rate = weight, bias, rate
        self.seen = weight.new_full((len(weight), 1), 0.1)

    def step(self, rows: Tensor, gradient: Tensor, factor: float) -> None:
        """Change distinct rows, int64 [r], by their gradient [r, p + 1], that of the bias last; `factor` of the learning rate."""
        seen = self.seen[rows] + gradient.square().mean(1, keepdim=True)
        self.seen[rows] = seen
        change = gradient * (-self.rate * factor / seen.sqrt())  # [r, p + 1]
        self.weight.index_add_(0, rows, change[:, :-1])
        self.bias.index_add_(0, rows, change[:, -1])


def sum_rows(n: int, row_of: Tensor, losses: Sequence[SampledLoss]) -> Tensor:
    """The gradient of n rows of the softmax [n, p + 1], that of the bias last, added up where a row comes more than once.

    row_of int64 [m]: which of them is each negative, then each target, of the first loss, then of the next.
    """
    weight = torch.cat(
        [part for loss in losses for part in (loss.d_negatives, loss.d_targets)]
    )  # [m, p]
    bias = torch.cat(
        [part for loss in losses for part in (loss.d_negative_bias, loss.d_target_bias)]
    )  # [m]
    both = torch.cat((weight, bias[:, None]), dim=1)  # [m, p + 1]
    total = both.new_zeros(n, both.shape[1])
    if total.is_cuda:  # sorted first, and so summed in one order; index_add_ has none there
        return total.index_put_((row_of,), both, accumulate=True)
    return total.index_add_(0, row_of, both)


@dataclass(frozen=True, eq=False)
class SoftmaxWeights:
    """A trained softmax: what perplexity needs beside the biLM, and `embed` does not."""

    weight: Tensor  # float32 [classes, p]; bias: float32 [classes]
    bias: Tensor
    words: tuple[
        str, ...
    ]  # the classes behind the boundaries and the unknown word, commonest first: [classes - 3]

    def save(self, path: Path) -> None:
        """Write one safetensors file, the words as JSON in its metadata."""
        weight, bias = (
            part.detach().float().cpu().contiguous() for part in (self.weight, self.bias)
        )
        save_file(
            {"weight": weight, "bias": bias},
            path,
            {"words": json.dumps(self.words, ensure_ascii=False)},
        )

    @classmethod
    def load(cls, path: Path) -> "SoftmaxWeights":
        """Read what `save` wrote, or the packaged model's softmax, `weight` = `scale` [classes, 1] · int8.

        TrainingError: no such file, or not a softmax.
        """
        if not path.is_file():
            raise TrainingError(
                f"{path} does not exist: perplexity needs the softmax that `elmo-store train` leaves beside the weights; a "
                "model for embedding alone does not have it"
            )
        try:
            with safe_open(path, "pt") as file:
                words = tuple(json.loads(file.metadata()["words"]))
                weight = file.get_tensor("weight").float()
                if "scale" in file.keys():  # noqa: SIM118 - it is not a dictionary
                    weight = weight * file.get_tensor("scale")
                read = cls(weight, file.get_tensor("bias"), words)
        except (SafetensorError, KeyError, TypeError, ValueError, OSError, RuntimeError) as error:
            raise TrainingError(
                f"{path} can't be read ({error}); it is damaged or not written by `elmo-store train`"
            ) from error
        if (
            read.weight.ndim != 2
            or read.bias.shape != read.weight.shape[:1]
            or len(read.weight) != len(words) + 3
        ):
            raise TrainingError(
                f"{path} holds weights {tuple(read.weight.shape)} and biases {tuple(read.bias.shape)} for {len(words)} words "
                "and three marks: it is damaged or not written by `elmo-store train`"
            )
        return read
