"""The model and its warm state, loaded beside whatever else a job begins with: importing Beam, listing inputs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.cli.exit_codes import CommandError, Exit

if TYPE_CHECKING:
    from elmo_store.storage.root import Root
    from model.files.weights import BiLMWeights
    from model.start_state import StartState


@dataclass(frozen=True)
class JobModel:
    """A model by the name that it was found by, and the state that its sentences start from."""

    name: str
    weights: "BiLMWeights"
    start: "StartState"


def loading_model(model: str | None, start_state: str) -> Callable[[], JobModel]:
    """`load` in a thread. What is returned gives the model once, so that nobody holds weights that the engine has packed."""
    loaded = [ThreadPoolExecutor(1, "model").submit(load, model, start_state)]
    return lambda: loaded.pop().result()


def start_state_of(root: "Root") -> "StartState":
    """What the sentences of a complete store started from. ShardMissingError, ShardCorruptError."""
    from elmo_store.errors import ShardCorruptError, ShardMissingError
    from elmo_store.format.layout import START_STATE
    from model.errors import ModelError
    from model.start_state import StartState

    try:
        return StartState.from_bytes(root.get(START_STATE))
    except FileNotFoundError as error:
        raise ShardMissingError(f"{root.url(START_STATE)} is missing: restore it") from error
    except ModelError as error:
        raise ShardCorruptError(f"{root.url(START_STATE)}: {error}: restore it") from error


def load(model: str | None, start_state: str) -> JobModel:
    """The model (a name, folder or URL; None = the default one), hashed, with its start state ("warm" or "zero").

    CommandError for what the user can mend.
    """
    from model.errors import ModelError
    from model.files.registry import load_model
    from model.start_state import StartState
    from model.warm import warm_state

    try:
        name, weights = load_model(model)
    except ModelError as error:
        raise CommandError(Exit.BAD_USAGE, f"--model: {error}") from error
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    start = warm_state(weights) if start_state == "warm" else StartState.zero(weights.options)
    _ = weights.fingerprint  # hundreds of megabytes to hash: here, not where it is asked for
    return JobModel(name, weights, start)
