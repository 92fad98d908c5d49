"""What consumers of a store import: layout, reading, scalar mix, exports. No Beam; PyTorch in `elmo_store.torch` only."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("elmo-store")
except PackageNotFoundError:
    __version__ = "0+unknown"

__all__ = ["__version__"]
