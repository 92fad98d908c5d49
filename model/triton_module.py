"""Whether a module of Triton kernels can be used on a device; it is imported only when it is asked about."""

from importlib import import_module
from types import ModuleType

import torch


def triton_module(name: str, device: torch.device) -> ModuleType | str:
    """The module, or why it can't be used: Triton is missing, or the module's own `check` says what is wrong."""
    try:
        module = import_module(name)
    except ImportError as error:
        return f"Triton is not installed: {error}"
    problem: str | None = module.check(device)
    return problem or module
