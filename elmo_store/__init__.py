"""What consumers of a store import: layout, reading, scalar mix, exports. No Beam; PyTorch in `elmo_store.torch` only.

import elmo_store
store = elmo_store.open("out/sample")
store.sentence(0)["fwd1"]        # [n_tokens, projection_dim]

The names below are imported when they are first used: the command line looks at paths before it needs NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

from elmo_store import errors

if TYPE_CHECKING:
    from elmo_store.embedded import embed
    from elmo_store.mixing.scalar_mix import ScalarMix
    from elmo_store.reading.sentence import Batch, Sentence
    from elmo_store.store import Store, concat, open

    __version__: str

__all__ = [
    "Batch",
    "ScalarMix",
    "Sentence",
    "Store",
    "__version__",
    "concat",
    "embed",
    "errors",
    "open",
]

_HOMES = {
    "embedded": ("embed",),
    "mixing.scalar_mix": ("ScalarMix",),
    "reading.sentence": ("Batch", "Sentence"),
    "store": ("Store", "concat", "open"),
}


if not TYPE_CHECKING:  # a type checker sees the imports above, and nothing else

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            value: Any = _version()
        else:
            home = next((home for home, names in _HOMES.items() if name in names), None)
            if home is None:
                raise AttributeError(f"module 'elmo_store' has no attribute {name!r}")
            value = getattr(importlib.import_module(f"elmo_store.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import (
        PackageNotFoundError,
        version,
    )  # half of what importing this package would cost

    try:
        return version("elmo-store")
    except PackageNotFoundError:
        return "0+unknown"
