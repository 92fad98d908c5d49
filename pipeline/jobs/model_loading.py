"""The model and its warm state, loaded beside whatever else a job begins with: importing Beam, listing inputs."""

from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

from pipeline.cli.exit_codes import CommandError, Exit

if TYPE_CHECKING:
    from model.files.weights import BiLMWeights
    from model.start_state import StartState


@dataclass(frozen=True)
class JobModel:
    """A model by the name that it was found by, and the state that its sentences start from."""

    name: str
    weights: "BiLMWeights"
    start: "StartState"

    @property
    def weight_bytes(self) -> int:
        """Of all its tensors."""
        return sum(tensor.nbytes for tensor in self.weights.tensors.values())


class LoadingModel:
    """A model that is being loaded, hashed, and asked for the state that its sentences start from.

    Args:
        model: name, folder or URL; None = the default model.
        start_state: "warm" or "zero".
    """

    def __init__(self, model: str | None, start_state: str) -> None:
        self._model, self._kind = model, start_state
        self._loaded: Future[JobModel] = Future()
        # The future is passed along: `result` may have put another one into its place before there is anything to tell.
        Thread(target=self._run, args=(self._loaded,), name="model", daemon=True).start()  # a refused job does not wait for it

    def _run(self, loaded: "Future[JobModel]") -> None:
        try:
            loaded.set_result(self._load())
        except BaseException as error:  # whoever asks gets it
            loaded.set_exception(error)

    def _load(self) -> JobModel:
        from model.errors import ModelError
        from model.files.registry import load_model
        from model.start_state import StartState
        from model.warm import warm_state

        try:
            name, weights = load_model(self._model)
        except ModelError as error:
            raise CommandError(Exit.BAD_USAGE, f"--model: {error}") from error
        except OSError as error:
            raise CommandError(Exit.BAD_LOCATION, f"the model {self._model} can't be read: {error}") from error
        start = warm_state(weights) if self._kind == "warm" else StartState.zero(weights.options)
        _ = weights.fingerprint  # hundreds of megabytes to hash: here, not where it is asked for
        return JobModel(name, weights, start)

    def result(self) -> JobModel:
        """The model: once, so that nobody holds weights that the engine has packed. CommandError for what the user can mend."""
        loaded, self._loaded = self._loaded, Future()
        return loaded.result()
