"""A sentence of the user's, by the store's own model."""

from elmo_store.embedded import EmbeddedSentence
from elmo_store.format.manifest import Manifest
from pipeline.explore.errors import OwnSentenceError

OWN_CHARACTERS = 2000


def embed_own(text: str, manifest: Manifest, model: str | None = None) -> EmbeddedSentence:
    """The states of ``text``, by the store's own model. OwnSentenceError if it is too long, or the model is not to be had here.

    ``model``: where the user says that the store's model is. What the store names is loaded only if it is on this machine.
    """
    if manifest.kind != "states":
        raise OwnSentenceError("a mixed store holds no states to compare with")
    if len(text) > OWN_CHARACTERS:
        raise OwnSentenceError(f"{len(text):,} characters are too many for this box: at most {OWN_CHARACTERS:,}")
    try:
        from model.files.registry import local_spec
        from pipeline.jobs import in_memory
    except ModuleNotFoundError as error:
        raise OwnSentenceError(f"this needs {error.name}: pip install '.[embed]' in elmo-store's checkout") from error
    try:
        where = model or local_spec(manifest.model.name)
        embedder = in_memory.embedder(where, manifest.precision, manifest.start_state.kind, "cpu")
    except Exception as error:  # not to be found, not readable: whatever it is, the rest of the page goes on
        raise OwnSentenceError(f"the store's model {manifest.model.name} can't be loaded here: {error}") from error
    if embedder.fingerprint != manifest.model.fingerprint:
        raise OwnSentenceError(f"the model {model or manifest.model.name} of this machine is not the one that made the store")
    tokens = in_memory.tokenised(text, "ptb")
    if not tokens:
        raise OwnSentenceError("there are no words in it")
    return embedder.embed([tokens], "float16" if manifest.dtype == "float16" else "float32")[0]
