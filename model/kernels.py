"""Modules of fused kernels, C's or Triton's: imported when they are asked for, proved before they are used."""

from importlib import import_module
from types import ModuleType

import torch


def kernel_module(name: str, device: torch.device) -> ModuleType | str:
    """The module, or why it can't be used on the device: it can't be imported, or its own `check` says what is wrong."""
    try:
        module = import_module(name)
    except ImportError as error:
        return f"it is not installed ({error})"
    problem: str | None = module.check(device)
    return problem or module
