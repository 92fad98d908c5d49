"""Models in the files of other programs, read once to be written as ours: what `elmo-store models convert` adds to `load_model`.

Known are the models of ELMoForManyLangs and the checkpoints that bilm-tf's training leaves, each a folder.
"""

from pathlib import Path

from model.files import locate, manylangs, tf_checkpoint
from model.files.registry import available_models, load_model, name_of
from model.files.weights import BiLMWeights
from model.options import read_options


def load_any(spec: str) -> tuple[str, BiLMWeights]:
    """Load a model in any form that is known, and say what to call it.

    ``spec`` is what `load_model` takes, or a local folder with another program's model.

    Raises:
        UnknownModelError: there is no such model.
        WeightsError, OptionsError: its files can't be used.
    """
    folder = Path(spec)
    if folder.is_dir() and spec not in {model.name for model in available_models()}:
        kind = locate.foreign_kind([path.name for path in folder.iterdir()])
        if kind == locate.MANYLANGS:
            return name_of(spec), BiLMWeights(*manylangs.read(folder))
        if kind == locate.CHECKPOINT:
            options = read_options(folder / "options.json")
            return name_of(spec), BiLMWeights(options, tf_checkpoint.read(tf_checkpoint.latest(folder), options))
    return load_model(spec)
