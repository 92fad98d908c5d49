"""The errors that this room raises."""


class ModelError(ValueError):
    """Something about a model is unusable; the message names the value, the place and the remedy."""


class OptionsError(ModelError):
    """An options.json that does not describe a biLM of the published kind."""


class WeightsError(ModelError):
    """Weights that are missing, of another shape than the options say, not finite, or in an unsafe format."""


class UnknownModelError(ModelError):
    """A name, folder or URL under which there is no model."""


class TrainingError(ModelError):
    """The text, the recipe or the checkpoint can't be trained from; the message names which, and the remedy."""


class DeviceLostError(RuntimeError):
    """A GPU failed in a way that no later call of this process gets over; the process has to be started again."""
