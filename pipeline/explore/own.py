"""A sentence of the user's own, by the store's own model and start state."""

import importlib
from typing import Any

from elmo_store.embedded import EmbeddedSentence
from elmo_store.format.manifest import Manifest

MOST_CHARACTERS = 2000


class OwnSentenceError(ValueError):
    """The sentence can't be embedded as the store's were; says why."""


def embed_own(text: str, manifest: Manifest, model: str | None = None) -> EmbeddedSentence:
    """The states of ``text``. OwnSentenceError if it is too long, or the store's model is not to be had here any more.

    ``model``: where the user says that the store's model is. What the store names is loaded only if it is on this machine.
    """
    if manifest.kind != "states":
        raise OwnSentenceError("a mixed store holds no states to compare with")
    if len(text) > MOST_CHARACTERS:
        raise OwnSentenceError(f"{len(text):,} characters are too many for this box: at most {MOST_CHARACTERS:,}")
    try:
        quick: Any = importlib.import_module("pipeline.jobs.in_memory")
    except ModuleNotFoundError as error:
        raise OwnSentenceError(f"this needs {error.name}: pip install 'elmo-store[embed]'") from error
    try:
        registry: Any = importlib.import_module("model.files.registry")
        where = model or registry.local_spec(manifest.model.name)
        embedder = quick.embedder(where, manifest.precision, manifest.start_state.kind, "cpu")
    except Exception as error:  # not to be found, not readable: whatever it is, the rest of the page goes on
        raise OwnSentenceError(f"the store's model {manifest.model.name} can't be loaded here: {error}") from error
    if embedder.fingerprint != manifest.model.fingerprint:
        raise OwnSentenceError(f"the model {model or manifest.model.name} of this machine is not the one that made the store")
    tokens = quick.tokenised(text, "ptb")
    if not tokens:
        raise OwnSentenceError("there are no words in it")
    found: list[EmbeddedSentence] = embedder.embed([tokens], "float16" if manifest.dtype == "float16" else "float32")
    return found[0]
