"""How the engine computes."""

from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["float32", "bfloat16", "tf32", "int8"]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "tf32": torch.float32, "int8": torch.bfloat16}


@dataclass(frozen=True)
class EngineSettings:
    """How to compute; everything here but `precision` leaves the numbers as they are (on one machine)."""

    # of products: "float32", "bfloat16", or "tf32" (CUDA only; on a CPU it is float32), or "int8" (a CPU with VNNI: the LSTM's
    # products of 8-bit numbers, all else bfloat16). Cells are float32
    precision: Precision = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"  # "cpu", "cuda", or "auto" = cuda where there is one
    # rows of a step, at most; None = 128 on a CPU (256 where cells are 2048 wide or less), 2048 on a GPU. On a GPU it can show in
    # the last bits
    lanes: int | None = None
    threads: int | None = None  # CPU threads for both directions together, None = PyTorch's number
    # what computes the cell on a CPU: "c", "torch", or "auto" = C where it was built. They differ in last bits
    cell: Literal["auto", "c", "torch"] = "auto"

    def __post_init__(self) -> None:
        if self.precision not in _DTYPES:
            raise ValueError(f"precision is {self.precision!r}; known are {', '.join(_DTYPES)}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}; known are auto, cpu, cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is 'cuda', but PyTorch finds no CUDA device here; use 'auto' or 'cpu'")
        if self.cell not in ("auto", "c", "torch"):
            raise ValueError(f"cell is {self.cell!r}; known are auto, c, torch")
        for name in ("lanes", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")

    @property
    def on_cuda(self) -> bool:
        """Whether this computes on a GPU."""
        return self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and inputs of products; with int8 of what they are quantised from."""
        return _DTYPES[self.precision]

    @property
    def quantised(self) -> bool:
        """Whether the LSTM's products are of 8-bit numbers."""
        return self.precision == "int8"
