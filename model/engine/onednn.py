"""Products with weights that are packed once, for the CPU. May import torch only.

oneDNN multiplies by weights in a blocked layout of its own about twice as fast as torch.mm (MKL) does in float32 on the
machines we measured, and applies bias, activation or an addition while the result is still in registers. PyTorch shows
that only through private operators (`torch.ops.mkldnn`), the ones torch.compile lowers linear layers to:

    _reorder_linear_weight(weight, rows)                      pack once
    _linear_pointwise(x, packed, bias, activation, scalars)   product, bias, activation
    _linear_pointwise.binary(x, other, packed, None, "add")   product and addition

`onednn_problem` proves them on a small product before they are used; without them the public torch functions do the
same, slower, and a log line says so once. docs/performance.md lists these interfaces.
"""

import functools
import logging
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)

Activation = Literal["none", "sigmoid", "tanh", "relu", "clip"]
_ONEDNN_NAME = {"none": "none", "sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu", "clip": "hardtanh"}

__all__ = ["Activation", "PackedLinear", "largest_stable", "onednn_problem"]


@functools.cache
def onednn_problem(dtype: torch.dtype) -> str | None:
    """Why packed products can't be used for this dtype here, or None where they can."""
    if not torch.backends.mkldnn.is_available():
        return "this build of PyTorch has no oneDNN"
    try:
        ops = torch.ops.mkldnn
        if dtype == torch.bfloat16 and not ops._is_mkldnn_bf16_supported():
            return "oneDNN has no bfloat16 on this processor (it needs AVX-512)"
        generator = torch.Generator().manual_seed(0)
        x, weight, other = (torch.randn(32, 32, generator=generator).to(dtype) for _ in range(3))
        bias = torch.randn(32, generator=generator)
        packed = ops._reorder_linear_weight(weight, 32)
        want = F.linear(x.float(), weight.float(), bias)
        for name, got, expected in (
            ("product", ops._linear_pointwise(x, packed, bias, "none", [], ""), want),
            ("sigmoid", ops._linear_pointwise(x, packed, bias, "sigmoid", [], ""), want.sigmoid()),
            ("tanh", ops._linear_pointwise(x, packed, bias, "tanh", [], ""), want.tanh()),
            ("relu", ops._linear_pointwise(x, packed, bias, "relu", [], ""), want.relu()),
            ("clip", ops._linear_pointwise(x, packed, bias, "hardtanh", [-1.0, 1.0], ""), want.clamp(-1, 1)),
            ("sum", ops._linear_pointwise.binary(x, other, packed, None, "add"), want - bias + other.float()),
        ):
            if not torch.allclose(got.float(), expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-1):
                return f"oneDNN's {name} gave wrong numbers in {dtype}"
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"this PyTorch ({torch.__version__}) lacks the packed operators: {error}"
    return None


@functools.cache
def _say_once(problem: str) -> None:
    logger.warning("packed products are off, computing with torch.nn.functional.linear (slower): %s", problem)


class PackedLinear:
    """y = activation(x · Wᵀ + b) with W packed for oneDNN where that works, plain otherwise.

    Args:
        weight: float32 [out, in].
        bias: float32 [out] or None.
        dtype: float32 or bfloat16, of weight, input and output; products add up in float32.
        rows: how many rows of x a call will most often have; the layout is chosen for it, any other count works.
        packed: False to use the public functions in any case.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, rows: int, packed: bool = True) -> None:
        problem = onednn_problem(dtype) if packed else "not asked for"
        if packed and problem is not None:
            _say_once(problem)
        self.packed = problem is None
        self.out_features, self.in_features = weight.shape
        self.dtype = dtype
        # oneDNN adds a float32 bias to bfloat16 products; torch.nn.functional.linear wants one dtype.
        self._bias = None if bias is None else bias.to(torch.float32 if self.packed else dtype).contiguous()
        dense = weight.to(dtype).contiguous()
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(dense, rows) if self.packed else dense

    def __call__(self, x: Tensor, activation: Activation = "none", bound: float = 0.0) -> Tensor:
        """Product of x [rows, in] → [rows, out]; `bound` is the ±limit of activation "clip"."""
        if self.packed:
            scalars = [-bound, bound] if activation == "clip" else []
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, _ONEDNN_NAME[activation], scalars, "")
            return y
        y = F.linear(x, self._weight, self._bias)
        match activation:
            case "sigmoid":
                return y.sigmoid_()
            case "tanh":
                return y.tanh_()
            case "relu":
                return y.relu_()
            case "clip":
                return y.clamp_(-bound, bound)
        return y

    def add_to(self, other: Tensor, x: Tensor) -> Tensor:
        """x · Wᵀ + other, x [rows, in], other [rows, out]; for weights without bias."""
        if self._bias is not None:
            raise ValueError("add_to is for weights without bias: oneDNN takes no float32 bias beside an addition")
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, None, "add")
            return y
        return F.linear(x, self._weight).add_(other)

    def stable_rows(self, counts: Sequence[int]) -> list[int]:
        """Which of these row counts give every row the bytes it has in the largest, wherever in the batch it stands."""
        largest = max(counts)
        generator = torch.Generator().manual_seed(largest)
        x = torch.randn(largest, self.in_features, generator=generator).to(self.dtype)  # [largest, in]
        want = self(x)
        stable = []
        for count in counts:
            turned = (torch.arange(count) * 7 + 3) % largest  # other rows beside it, other places
            if torch.equal(self(x[turned]), want[turned]):
                stable.append(count)
        return stable


def largest_stable(linears: Sequence[PackedLinear], counts: Sequence[int]) -> list[int]:
    """The row counts that all of these products agree on; the largest count is always among them."""
    kept = set(counts)
    for linear in linears:
        kept &= set(linear.stable_rows(counts))
    if max(counts) not in kept:
        logger.warning("products on this machine depend on a row's place in the batch; last digits may vary with it")
    return sorted(kept | {max(counts)})
