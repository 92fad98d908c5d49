"""Small models that the tests of this room share."""

from dataclasses import replace
from pathlib import Path

import pytest

from model.files.registry import SMALL_OPTIONS, random_weights
from model.files.weights import BiLMWeights
from model.options import BiLMOptions
from tests.model.reference import ReferenceBiLM, reference_of


@pytest.fixture(scope="session")
def tiny_options() -> BiLMOptions:
    """Three layers, tanh, two highways, tight clips that do bite: everything the golden model does not exercise."""
    return replace(
        SMALL_OPTIONS, cell_clip=0.8, proj_clip=0.5, projection_dim=8, dim=12, n_layers=3,
        activation="tanh", filters=((1, 3), (2, 4), (5, 6)), n_highway=2, char_embedding_dim=5,
    )  # fmt: skip


@pytest.fixture(scope="session")
def tiny(tiny_options: BiLMOptions) -> BiLMWeights:
    return random_weights(tiny_options, seed=7)


@pytest.fixture(scope="session")
def tiny_reference(tiny: BiLMWeights, tmp_path_factory: pytest.TempPathFactory) -> ReferenceBiLM:
    return reference_of(tiny, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def golden_weights(shared_dir: Path) -> BiLMWeights:
    return BiLMWeights.load(str(shared_dir / "golden"))


@pytest.fixture(scope="session")
def golden_reference(shared_dir: Path) -> ReferenceBiLM:
    folder = shared_dir / "golden"
    return ReferenceBiLM(folder / "options.json", folder / "lm_weights.hdf5")
