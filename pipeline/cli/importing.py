"""Libraries that may be missing."""

import importlib.util


def is_installed(module: str) -> bool:
    """Whether the module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None
