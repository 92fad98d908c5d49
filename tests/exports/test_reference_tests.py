"""The reference's own tests of `allennlp elmo` (0.9.0) pass on files of `embed` and `export`, unmodified but for one number.

They lie in its wheel (Apache License 2.0), as does the model that they use; ELMO_STORE_ALLENNLP names the wheel
(pip download --no-deps allennlp==0.9.0). What they start, `allennlp.commands.main`, is our two commands here, or
`elmo_store.torch.ElmoEmbedder`; what they compare with, `ElmoEmbedder`, is the wheel's own biLM; the rest that they import is
stood in for: AllenNLP itself does not install beside today's libraries. The number: they allow 1e-4 of each value and nothing
beside it, which two float32 sides that round differently miss next to zero (1.4e-7 at a value of 0.0009, on one processor and
not on another), so 1e-6 is allowed beside it.
"""

import os
import sys
import tempfile
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo_store.torch import ElmoEmbedder
from pipeline.main import main as elmo_store_command
from tests.store import allennlp_elmo

FIXTURES = "allennlp/tests/fixtures/elmo"
TESTS = "allennlp/tests/commands/elmo_test.py"
LAYERS = {"--all": "all", "--top": "top", "--average": "average"}


def allennlp_main() -> None:
    """`allennlp elmo SENTENCES OUTPUT --all|--top|--average --options-file … --weight-file …`, by our commands."""
    _, command, sentences, output, *options = sys.argv
    assert command == "elmo"
    layers = next(ours for theirs, ours in LAYERS.items() if theirs in options)
    model = Path(options[options.index("--weight-file") + 1]).parent
    with tempfile.TemporaryDirectory() as folder:
        embed = [
            "embed",
            sentences,
            "--input-format",
            "lines",
            "--output",
            f"{folder}/store",
            "--model",
            str(model),
            "--quiet",
        ]
        assert elmo_store_command([*embed, "--dtype", "float32", "--start-state", "zero"]) == 0
        export = [
            "export",
            f"{folder}/store",
            "--format",
            "allennlp",
            "--output",
            output,
            "--layers",
            layers,
            "--quiet",
        ]
        assert elmo_store_command(export) == 0


def embedder_main() -> None:
    """The same command by `elmo_store.torch.ElmoEmbedder`."""
    _, command, sentences, output, *options = sys.argv
    assert command == "elmo"
    layers = next(ours for theirs, ours in LAYERS.items() if theirs in options)
    options_file, weight_file = (
        options[options.index(name) + 1] for name in ("--options-file", "--weight-file")
    )
    keys = {
        name: f"--{name.replace('_', '-')}" in options
        for name in ("forget_sentences", "use_sentence_keys")
    }
    with open(sentences, encoding="utf-8") as file:
        ElmoEmbedder(options_file, weight_file).embed_file(file, output, layers, **keys)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[types.ModuleType]:
    """The module of the reference's tests."""
    wheel = os.environ.get("ELMO_STORE_ALLENNLP")
    if not wheel:
        pytest.skip(
            "no wheel: pip download --no-deps allennlp==0.9.0, and its path in ELMO_STORE_ALLENNLP"
        )
    folder = tmp_path_factory.mktemp("reference")
    bilm = allennlp_elmo.original(Path(wheel))
    with zipfile.ZipFile(wheel) as archive:
        for name in ("options.json", "lm_weights.hdf5"):
            target = folder / name.replace("lm_weights", "weights")
            target.write_bytes(archive.read(f"{FIXTURES}/{name}"))
        original = archive.read(TESTS).decode()
    source = original.replace("rtol=1e-4)", "rtol=1e-4, atol=1e-6)")
    assert source != original

    class ElmoTestCase:
        options_file, weight_file = str(folder / "options.json"), str(folder / "weights.hdf5")

        def setUp(self) -> None:
            self.FIXTURES_ROOT = folder

    class ElmoEmbedder:
        """Layers [3, n, 2p] of a sentence by the wheel's `_ElmoBiLm`, from zeros, without the rows of BOS and EOS."""

        def __init__(self, options_file: str, weight_file: str) -> None:
            self._bilm: Any = bilm._ElmoBiLm(options_file, weight_file).eval()

        def embed_sentence(self, sentence: list[str]) -> np.ndarray:
            ids = [bilm.ELMoCharacterMapper().convert_word_to_char_ids(word) for word in sentence]
            with torch.no_grad():
                found = self._bilm(torch.tensor([ids]))
            return torch.stack([one[0, 1:-1] for one in found["activations"]]).numpy()

    given: dict[str, dict[str, Any]] = {
        "allennlp.common.checks": {"ConfigurationError": ValueError},
        "allennlp.commands": {"main": allennlp_main},
        "allennlp.commands.elmo": {"ElmoEmbedder": ElmoEmbedder},
        "allennlp.tests.modules.elmo_test": {"ElmoTestCase": ElmoTestCase},
    }
    before, argv = dict(sys.modules), sys.argv
    for name, contents in given.items():
        parts = name.split(".")
        for i in range(1, len(parts)):
            sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        sys.modules[name] = module
    tests = types.ModuleType("reference_tests")
    try:
        exec(compile(source, f"{wheel}/{TESTS}", "exec"), tests.__dict__)
        yield tests
    finally:
        sys.argv = argv
        for name in [name for name in sys.modules if name.split(".")[0] == "allennlp"]:
            del sys.modules[name]
        sys.modules.update(
            {name: module for name, module in before.items() if name not in sys.modules}
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "test_all_embedding_works",
        "test_top_embedding_works",
        "test_average_embedding_works",
        "test_batch_embedding_works",
        "test_duplicate_sentences",
    ],
)
def test_the_reference_tests_its_own_file(reference: types.ModuleType, name: str) -> None:
    case = reference.TestElmoCommand()
    case.setUp()
    getattr(case, name)()  # the assertions are the reference's own


def test_all_reference_tests_of_the_command_by_our_embedder(
    reference: types.ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reference, "main", embedder_main)
    names = [name for name in dir(reference.TestElmoCommand) if name.startswith("test_")]
    assert len(names) == 8
    for name in names:
        case = reference.TestElmoCommand()
        case.setUp()
        case.output_path = str(tmp_path / f"{name}.hdf5")
        getattr(case, name)()
