"""What can be wrong with a training run's input. Imports model.errors only."""

from model.errors import ModelError


class TrainingError(ModelError):
    """The text, the recipe or the checkpoint cannot be trained from; the message names which, and the remedy."""
