"""Products of 8-bit numbers for the LSTM on a CPU: u8 × s8, added up exactly in 32 bits.

Weights are quantised by output channel, once; each row of x by its own largest number, every time. PyTorch shows oneDNN's
product through private operators, those that its quantiser lowers linear layers to:

    onednn.qlinear_prepack(weight, shape)      pack once
    onednn.qlinear_pointwise(x, scale, zero, packed, channel scales, …)    product

`int8_problem` proves them on a small product. What precision it costs: docs/development/performance.md, `benchmarks.precision`.
"""

import functools

import torch
from torch import Tensor

__all__ = ["Int8Linear", "int8_problem"]

_ZERO = 128  # of the unsigned rows
_LEVELS = 127  # either side of it


@functools.cache
def int8_problem() -> str | None:
    """Why products of 8-bit numbers can't be used here, or None where they can."""
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    if supported is None or not supported():
        return "this processor has no VNNI, without which 8-bit products are slower than bfloat16's"
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(32, 64, generator=generator), torch.randn(48, 64, generator=generator)
    bias = torch.randn(48, generator=generator)
    try:
        got = Int8Linear(weight, bias, 32)(x.bfloat16()).float()
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"this PyTorch ({torch.__version__}) lacks the quantised operators: {error}"
    want = x @ weight.t() + bias
    return None if (got - want).abs().max() < 0.05 * want.abs().max() else "oneDNN's 8-bit product gave wrong numbers"


class Int8Linear:
    """y = x · Wᵀ + b for bfloat16 rows, multiplied in 8 bits.

    Args:
        weight: float32 [out, in].
        bias: float32 [out] or None.
        rows: how many rows of x a call will most often have.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        scale = weight.abs().amax(dim=1).clamp(min=1e-30) / _LEVELS  # [out]
        levels = (weight / scale[:, None]).round().to(torch.int8)  # [out, in]
        self.in_features, self.dtype, self.device = weight.shape[1], torch.bfloat16, torch.device("cpu")
        self._packed = torch.ops.onednn.qlinear_prepack(levels, [rows, self.in_features])
        self._scale, self._zero = scale, torch.zeros(len(scale), dtype=torch.int64)
        self._bias = None if bias is None else bias.bfloat16()

    def __call__(self, x: Tensor) -> Tensor:
        """Product of x bfloat16 [rows, in] → bfloat16 [rows, out]."""
        wide = x.float()
        scale = wide.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30) / _LEVELS  # [rows, 1]
        levels = (wide / scale).round_().add_(_ZERO).to(torch.uint8)  # [rows, in]
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels, 1.0, _ZERO, self._packed, self._scale, self._zero, None, 1.0, 0, torch.bfloat16, "none", [], ""
        )  # [rows, out]
        y.mul_(scale.bfloat16())
        return y if self._bias is None else y.add_(self._bias)
