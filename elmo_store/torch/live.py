"""Sentences that a store does not have, computed by its model: the fallback of `Elmo(model=…)`. Needs the extra ``embed``."""

from collections.abc import Sequence
from typing import Any

from elmo_store.embedded import Array, loaded_model
from elmo_store.errors import StoreError
from elmo_store.format.int8 import quantized
from elmo_store.format.manifest import Manifest
from elmo_store.reading.rows import Readable


class LiveStates:
    """Rows as the store would have them: its model, precision, start state, dtype and boundaries. Loaded when first needed.

    Args:
        store: whose rows they stand beside.
        model: where its model is: a name, a folder or a URL, as ``elmo-store embed --model``.
    """

    def __init__(self, store: Readable, model: str) -> None:
        self._store, self._name = store, model
        self._model: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_model": None}  # another process loads it itself

    def rows(self, sentences: Sequence[Sequence[str]]) -> list[Array]:
        """The rows [n_rows, 2L+1, p] of each sentence.

        Raises:
            StoreError: the model is not the store's.
            ImportError: the extra ``embed`` is not installed.
        """
        if self._model is None:
            self._model = self._load()
        computed = self._model.embed(sentences, self._store.dtype.name, boundaries=self._store.boundaries)
        if self._store.is_int8:  # with what 8 bits lose, as the store's own rows
            return [quantized(sentence.rows).floats() for sentence in computed]
        return [sentence.rows for sentence in computed]

    def _load(self) -> Any:
        manifest = _manifest(self._store)
        model = loaded_model(self._name, precision=manifest.precision, start_state=manifest.start_state.kind)
        if model.fingerprint != manifest.model.fingerprint:
            raise StoreError(
                f"{self._name} is not the model of {self._store.url}: its fingerprint is {model.fingerprint}, the store's "
                f"{manifest.model.fingerprint} ({manifest.model.name}): give the store's own as model="
            )
        return model


def _manifest(store: Any) -> Manifest:
    """Of a store, or of what a view of stores looks at."""
    while not hasattr(store, "manifest"):
        store = store.store if hasattr(store, "store") else store.stores[0]
    manifest: Manifest = store.manifest
    return manifest
