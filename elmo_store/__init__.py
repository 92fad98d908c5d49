"""What consumers of a store import: layout, reading, scalar mix, exports. No Beam; PyTorch in `elmo_store.torch` only.

import elmo_store
store = elmo_store.open("out/sample")
store.sentence(0)["fwd1"]        # [n_tokens, projection_dim]
"""

from importlib.metadata import PackageNotFoundError, version

from elmo_store import errors
from elmo_store.mix import ScalarMix
from elmo_store.store import Batch, Sentence, Store, open

try:
    __version__ = version("elmo-store")
except PackageNotFoundError:
    __version__ = "0+unknown"

__all__ = ["Batch", "ScalarMix", "Sentence", "Store", "__version__", "errors", "open"]
