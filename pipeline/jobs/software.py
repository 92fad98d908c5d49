"""Versions of what the bytes of a store depend on, for its manifest."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("elmo-store", "apache-beam", "torch", "numpy", "pyarrow", "zarr", "nltk", "safetensors")


def versions() -> dict[str, str]:
    """Name → version of Python and of each package; "unknown" for one that was not installed as a package."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
