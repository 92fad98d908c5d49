"""How the engine computes."""

from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["float32", "bfloat16", "tf32", "int8"]
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "tf32": torch.float32,
    "int8": torch.bfloat16,
}


@dataclass(frozen=True)
class EngineSettings:
    """How to compute; everything here but `precision` leaves the numbers as they are (on one machine)."""

    # Of products: "float32", "bfloat16", or "tf32" (CUDA only; on a CPU it is float32), or "int8" (a CPU with VNNI and no AMX:
    # the LSTM's products of 8-bit numbers, all else bfloat16). Cells are float32.
    precision: Precision = "float32"
    device: Literal["auto", "cpu", "cuda"] = (
        "auto"  # "cpu", "cuda", or "auto" = cuda where there is one
    )
    # Rows of a step, at most; None = 2048 on a GPU, where it can show in the last bits, and on a CPU as `cpu.step_lanes` says.
    lanes: int | None = None
    threads: int | None = None  # CPU threads for both directions together, None = PyTorch's number
    # What computes the cell on a CPU: "c", "torch", or "auto" = C where it was built. They differ in last bits.
    cell: Literal["auto", "c", "torch"] = "auto"

    def __post_init__(self) -> None:
        choices = {
            "precision": (*_DTYPES,),
            "device": ("auto", "cpu", "cuda"),
            "cell": ("auto", "c", "torch"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}; known are {', '.join(known)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device is 'cuda', but PyTorch finds no CUDA device here; use 'auto' or 'cpu'"
            )

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and inputs of products; with int8 of what they are quantised from."""
        return _DTYPES[self.precision]

    @property
    def quantised(self) -> bool:
        return self.precision == "int8"
