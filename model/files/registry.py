"""Models by name: packaged, published, generated; and by folder or URL.

Packaged models live in model/data/NAME/ (weights.safetensors, README.md as model card).
"""

import math
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from model.errors import UnknownModelError
from model.files import locate, manylangs, tf_checkpoint
from model.files.weights import BiLMWeights
from model.options import BiLMOptions, read_options

RANDOM_SMALL = "random-small"
DEFAULT_MODEL = "default"

_PACKAGED = Path(__file__).parent.parent / "data"
_PUBLISHED_BASE = "https://allennlp.s3.amazonaws.com/models/elmo/"


@dataclass(frozen=True)
class ListedModel:
    """One line of `elmo-store models`."""

    name: str  # what --model takes
    description: str  # one line
    where: str  # folder, URL or "generated"
    bytes: int  # size of the weights file as stored (of published ones about that, until downloaded); 0 if generated


# The models of Peters et al. 2018: English, trained on the 1 Billion Word Benchmark, the last one on 5.5 billion tokens.
_PUBLISHED = {
    name: ListedModel(
        name,
        f"published, {description}",
        f"{_PUBLISHED_BASE}{shape}/elmo_{shape}_weights.hdf5",
        n_bytes,
    )
    for name, shape, description, n_bytes in (
        ("small", "2x1024_128_2048cnn_1xhighway", "2 × 1024/128, 13.6M parameters", 54_373_184),
        ("medium", "2x2048_256_2048cnn_1xhighway", "2 × 2048/256, 28.0M parameters", 112_000_000),
        ("original", "2x4096_512_2048cnn_2xhighway", "2 × 4096/512, 93.6M parameters", 374_403_392),
        (
            "original-5.5b",
            "2x4096_512_2048cnn_2xhighway_5.5B",
            "2 × 4096/512, trained on 5.5 billion tokens",
            374_403_392,
        ),
    )
}


def available_models() -> list[ListedModel]:
    """Every model that has a name: packaged ones first, then the generated one, then the published ones."""
    models = [
        ListedModel(
            folder.name,
            _description(folder),
            str(folder),
            (folder / "weights.safetensors").stat().st_size,
        )
        for folder in packaged_folders()
    ]
    models.append(
        ListedModel(
            RANDOM_SMALL, "random weights, 2 × 1024/128: for trying things out", "generated", 0
        )
    )
    return [*models, *_PUBLISHED.values()]


def load_model(spec: str | None = None, options: str | None = None) -> tuple[str, BiLMWeights]:
    """Load a model and say what to call it.

    Args:
        spec: a name of `available_models`, a folder or weights file, or any fsspec URL of one; None = the default
            model. A name wins over a folder of the same spelling: write `./small` for the folder.
        options: a file of options, in place of the one beside; ``spec`` is then a folder, a file or a URL.

    Raises:
        UnknownModelError: there is no such model.
        WeightsError, OptionsError: its files can't be used.
        OSError: it can't be reached, or access is denied.
    """
    if spec is not None and options is not None:
        return name_of(spec), BiLMWeights.load(spec, options=options)
    packaged = {folder.name: folder for folder in packaged_folders()}
    if spec is None and DEFAULT_MODEL not in packaged:
        raise UnknownModelError(
            "this installation carries no default model: pass `model='random-small'` to try things out, "
            "or `model=FOLDER`, a folder with options.json and weights.hdf5 or weights.safetensors"
        )
    spec = DEFAULT_MODEL if spec is None else spec
    if spec in packaged:
        return spec, BiLMWeights.load_safetensors(packaged[spec] / "weights.safetensors")
    if spec == RANDOM_SMALL:
        return spec, random_weights(SMALL_OPTIONS)
    if spec in _PUBLISHED:
        return spec, _load_published(_PUBLISHED[spec])
    try:
        weights = BiLMWeights.load(spec)
    except UnknownModelError as error:
        names = ", ".join(info.name for info in available_models())
        raise UnknownModelError(f"{error}; nor is it the name of a model: {names}") from error
    return name_of(spec), weights


def _load_published(model: ListedModel) -> BiLMWeights:
    """Download a published model, or take it from the cache. OSError if that fails, with what to do without a network."""
    try:
        return BiLMWeights.load(model.where)
    except OSError as error:
        options = posixpath.basename(model.where).replace("weights.hdf5", "options.json")
        raise type(error)(
            f"the model {model.name} can't be downloaded: {error}, or copy this file and {options}, which is beside it, "
            "into a folder, and pass the folder as the model"
        ) from error


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
            return name_of(spec), BiLMWeights(
                options, tf_checkpoint.read(tf_checkpoint.latest(folder), options)
            )
    return load_model(spec)


def local_spec(name: str) -> str:
    """What `load_model` takes for a name that a store gives, whoever wrote it.

    That is a model of this installation, or a folder or file of that name in the current folder. UnknownModelError for anything
    else: paths, URLs, and models that would have to be downloaded are for the user to name.
    """
    if name == RANDOM_SMALL or name in {folder.name for folder in packaged_folders()}:
        return name
    if re.fullmatch(r"\w[\w.+ -]*", name) and Path(name).exists():
        return f"./{name}"
    raise UnknownModelError(
        f"{name!r} is not a model of this installation, nor a folder or file here, and what a store names is not fetched"
    )


SMALL_OPTIONS = BiLMOptions(
    cell_clip=3.0,
    proj_clip=3.0,
    use_skip_connections=True,
    projection_dim=128,
    dim=1024,
    n_layers=2,
    activation="relu",
    filters=((1, 32), (2, 64), (3, 96), (4, 128), (5, 192)),
    n_highway=1,
    char_embedding_dim=16,
)


def random_weights(options: BiLMOptions, seed: int = 0) -> BiLMWeights:
    """Weights of no training, the same on every machine and with every library version.

    Each matrix is uniform with the variance 1 / (inputs), so that states neither vanish nor sit at their clips. The
    bits come from PCG64's raw stream, which NumPy keeps stable, unlike the distributions on top of it.
    """
    bits = np.random.PCG64(seed)
    tensors = {}
    for name, shape in options.tensor_shapes().items():
        raw = bits.random_raw(math.prod(shape))  # uint64
        uniform = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(
            1
        )  # [-1, 1), exact
        inputs = math.prod(shape[1:]) if len(shape) > 1 else 100
        scale = 1.0 if name == "char_embed" else math.sqrt(3 / inputs)
        tensors[name] = torch.from_numpy((uniform * np.float32(scale)).reshape(shape))
    tensors["char_embed"][0] = 0
    return BiLMWeights(options, tensors)


def packaged_folders() -> list[Path]:
    """Folders of the models that came with this installation."""
    return sorted(path.parent for path in _PACKAGED.glob("*/weights.safetensors"))


def _description(folder: Path) -> str:
    """The first line of text of the model card, headings left out."""
    lines = (folder / "README.md").read_text("utf-8").splitlines()
    return next(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def name_of(spec: str) -> str:
    """Last part of a path or URL, without the endings of weights files."""
    stem = posixpath.basename(spec.rstrip("/"))
    return stem.removesuffix(".safetensors").removesuffix(".hdf5") or spec
