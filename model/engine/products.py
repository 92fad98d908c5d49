"""Products with fixed weights: packed once for oneDNN on a CPU, in 8 bits too, and plain PyTorch elsewhere.

oneDNN multiplies by weights in a blocked layout of its own about twice as fast as torch.mm (MKL) does in float32 on the
machines we measured, and adds the bias while the result is still in registers. PyTorch shows that only through private
operators, those that torch.compile and its quantiser lower linear layers to:

    mkldnn._reorder_linear_weight(weight, rows)             pack once
    mkldnn._linear_pointwise(x, packed, bias, "none", …)    product and bias
    onednn.qlinear_prepack, qlinear_pointwise               the same with u8 × s8, added up exactly in 32 bits

`onednn_problem` and `int8_problem` prove them on small products before they are used.
"""

import functools
import logging
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_LOG = logging.getLogger(__name__)
_ZERO, _LEVELS = (
    128,
    127,
)  # of unsigned 8-bit rows: their zero, and how far they go on either side of it


@functools.cache
def onednn_problem(dtype: torch.dtype) -> str | None:
    """Why packed products can't be used for this dtype here, or None where they can."""
    if not torch.backends.mkldnn.is_available():
        return "this build of PyTorch has no oneDNN"
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(32, 32, generator=generator).to(dtype) for _ in range(2))
    bias = torch.randn(32, generator=generator)
    try:
        ops = torch.ops.mkldnn
        if dtype == torch.bfloat16 and not ops._is_mkldnn_bf16_supported():
            return "oneDNN has no bfloat16 on this processor (it needs AVX-512)"
        got = ops._linear_pointwise(x, ops._reorder_linear_weight(weight, 32), bias, "none", [], "")
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"this PyTorch ({torch.__version__}) lacks the packed operators: {error}"
    want, tolerance = (
        F.linear(x.float(), weight.float(), bias),
        1e-4 if dtype == torch.float32 else 2e-2,
    )
    right = torch.allclose(got.float(), want, rtol=tolerance, atol=tolerance)
    return None if right else f"oneDNN's product gave wrong numbers in {dtype}"


@functools.cache
def _say_once(problem: str) -> None:
    _LOG.warning(
        "packed products are off, computing with torch.nn.functional.linear (slower): %s", problem
    )


class PackedLinear:
    """y = x · Wᵀ + b, weight [out, in] and bias [out] given in float32, packed for oneDNN where that works.

    ``dtype``, float32 or bfloat16, is that of input and output; products add up in float32. ``rows``: how many rows of x a call
    will most often have; the layout is chosen for it, any other count works. ``packed`` False: public functions in any case.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        rows: int,
        packed: bool = True,
    ) -> None:
        problem = onednn_problem(dtype) if packed else "not asked for"
        if packed and problem is not None:
            _say_once(problem)
        self.packed = problem is None
        self.in_features, self.dtype, self.device = weight.shape[1], dtype, weight.device
        # oneDNN adds a float32 bias to bfloat16 products; torch.nn.functional.linear wants one dtype.
        self._bias = (
            None if bias is None else bias.to(torch.float32 if self.packed else dtype).contiguous()
        )
        dense = weight.to(dtype).contiguous()
        self._weight: Tensor = (
            torch.ops.mkldnn._reorder_linear_weight(dense, rows) if self.packed else dense
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Product of x [rows, in] → [rows, out]."""
        if not self.packed:
            return F.linear(x, self._weight, self._bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


def has_amx() -> bool:
    """Whether this processor has the matrix units of AMX, as PyTorch says."""
    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return supported is not None and bool(supported())


@functools.cache
def int8_problem() -> str | None:
    """Why products of 8-bit numbers can't be used here, or None where they can."""
    if has_amx():
        return "this processor has AMX, where an engine in int8 computed two thirds of bfloat16's tokens a second"
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
    return (
        None
        if (got - want).abs().max() < 0.05 * want.abs().max()
        else "oneDNN's 8-bit product gave wrong numbers"
    )


class Int8Linear:
    """As `PackedLinear` for bfloat16 rows on a CPU, multiplied in 8 bits.

    Weights are quantised by output channel, once; each row of x by its own largest number, every time.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        scale = weight.abs().amax(dim=1).clamp(min=1e-30) / _LEVELS  # [out]
        levels = (weight / scale[:, None]).round().to(torch.int8)  # [out, in]
        self.in_features, self.dtype, self.device = weight.shape[1], torch.bfloat16, weight.device
        self._packed = torch.ops.onednn.qlinear_prepack(levels, [rows, self.in_features])
        self._scale, self._zero = scale, torch.zeros(len(scale), dtype=torch.int64)
        self._bias = None if bias is None else bias.bfloat16()

    def __call__(self, x: Tensor) -> Tensor:
        """Product of x bfloat16 [rows, in] → bfloat16 [rows, out]."""
        wide = x.float()
        scale = wide.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30) / _LEVELS  # [rows, 1]
        levels = (wide / scale).round_().add_(_ZERO).to(torch.uint8)  # [rows, in]
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels,
            1.0,
            _ZERO,
            self._packed,
            self._scale,
            self._zero,
            None,
            1.0,
            0,
            torch.bfloat16,
            "none",
            [],
            "",
        )  # [rows, out]
        y.mul_(scale.bfloat16())
        return y if self._bias is None else y.add_(self._bias)


Linear = PackedLinear | Int8Linear


def largest_stable(linears: Sequence[Linear], counts: Sequence[int]) -> list[int]:
    """The row counts with which these products give every row the bytes it has in the largest, wherever in the batch it stands.

    The largest count is always among them, with a warning where even its rows depend on their places.
    """
    largest, kept = max(counts), set(counts)
    for linear in linears:
        generator = torch.Generator().manual_seed(largest)
        x = torch.randn(largest, linear.in_features, generator=generator).to(
            linear.device, linear.dtype
        )  # [largest, in]
        want = linear(x)
        for count in counts:
            turned = (
                torch.arange(count, device=x.device) * 7 + 3
            ) % largest  # other rows beside it, other places
            if not torch.equal(linear(x[turned]), want[turned]):
                kept.discard(count)
    if largest not in kept:
        _LOG.warning(
            "products on this machine depend on a row's place in the batch; last digits may vary with it"
        )
    return sorted(kept | {largest})
