"""Arrays from the host to where states are computed. May import torch and NumPy.

A blocking copy to a GPU waits for all that its stream has been asked for, and the host could not prepare the next window
meanwhile. PyTorch keeps pinned memory until the copies out of it have been made, so nothing has to be held here.
"""

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["fill", "send"]


def _pinned(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    host = torch.from_numpy(values)
    return host.pin_memory() if device.type == "cuda" else host


def send(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor on the device, without waiting for a GPU; on the CPU it shares the array's memory."""
    return _pinned(values, device).to(device, non_blocking=True)


def fill(buffer: Tensor, values: npt.NDArray[Any]) -> None:
    """Copy the array into a tensor of its shape, without waiting for a GPU."""
    buffer.copy_(_pinned(values, buffer.device), non_blocking=True)
