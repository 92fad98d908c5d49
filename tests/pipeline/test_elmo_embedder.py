"""`elmo_store.torch.ElmoEmbedder` beside AllenNLP's own, called as published programs call that: over stores, and computing."""

import inspect
import itertools
import json
import os
import pickle
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import elmo_store
from elmo_store.errors import SentenceNotFoundError, StoreError
from elmo_store.exports import export
from elmo_store.torch import ElmoEmbedder, batch_to_ids
from elmo_store.torch.embedder import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE
from model.files.registry import random_weights
from pipeline.main import main
from tests.pipeline.conftest import TINY, zero_stores
from tests.store import allennlp_elmo

SENTENCES = [
    ["The", "cat", "sat", "on", "the", "mat", "."],
    ["End"],
    ["naïve", "東京", "a/b", "</S>", "x" * 60],
    ["The", "cat", "sat", "on", "the", "mat", "."],
    ["Dogs", "ran", "."],
]
Embedders = dict[str, ElmoEmbedder]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A model's options and weights, whose names do not belong together, and no other options beside them."""
    folder = tmp_path_factory.mktemp("models")
    random_weights(TINY).save_hdf5(folder)
    (folder / "options.json").rename(folder / "options262.json")
    (folder / "weights.hdf5").rename(folder / "en_weights.hdf5")
    return str(folder / "options262.json"), str(folder / "en_weights.hdf5")


@pytest.fixture(scope="module")
def stores(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """Stores of SENTENCES in float32, from zeros; by whether they have boundaries."""
    return zero_stores(SENTENCES, tiny_model, tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def embedders(files: tuple[str, str], tiny_model: Path, stores: dict[bool, str]) -> Embedders:
    """Each kind, of one model."""
    return {
        "files": ElmoEmbedder(*files, -1),
        "model": ElmoEmbedder(model=str(tiny_model)),
        "store": ElmoEmbedder(store=stores[False]),
        "store with boundaries": ElmoEmbedder(store=elmo_store.open(stores[True])),
        "store and files": ElmoEmbedder(*files, store=stores[False]),
    }


@pytest.fixture(scope="module")
def theirs(files: tuple[str, str]) -> Any:
    """AllenNLP's own class, with the same files."""
    wheel = os.environ.get("ELMO_STORE_ALLENNLP")
    if not wheel:
        pytest.skip(
            "no wheel: pip download --no-deps allennlp==0.9.0, and its path in ELMO_STORE_ALLENNLP"
        )
    return allennlp_elmo.original_embedder(Path(wheel)).ElmoEmbedder


def test_layers_and_order_are_theirs(
    embedders: Embedders, theirs: Any, files: tuple[str, str]
) -> None:
    """What theirs gives in its first batch; [] among others, alone, and the one without a store gives new sentences too."""
    batch = [*SENTENCES[:2], [], *SENTENCES[2:]]
    wanted = theirs(*files).embed_batch(batch)
    activations, mask = theirs(*files).batch_to_embeddings(batch)
    for name, embedder in embedders.items():
        found = embedder.embed_batch(batch)
        assert [own.dtype for own in found] == [np.float32] * 6, name
        assert [own.shape for own in found] == [(3, len(sentence), 32) for sentence in batch], name
        for a, b, sentence in zip(found, wanted, batch, strict=True):
            if sentence:  # theirs gives [3, 0, 1024] whatever the model
                np.testing.assert_allclose(a, b, atol=3e-6, rtol=1e-5, err_msg=name)
        assert embedder.embed_sentence([]).shape == (3, 0, 32)
        assert (
            embedder.embed_sentence(SENTENCES[2]).tobytes() == found[3].tobytes()
        )  # whatever was asked before
        ours, real = embedder.batch_to_embeddings(batch)
        assert torch.equal(real, mask)
        torch.testing.assert_close(ours, activations, atol=3e-6, rtol=1e-5)
    new = [["never", "embedded"]]
    np.testing.assert_allclose(
        embedders["files"].embed_batch(new)[0],
        theirs(*files).embed_batch(new)[0],
        atol=3e-6,
        rtol=1e-5,
    )
    parameters = inspect.signature(ElmoEmbedder).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == list(
        inspect.signature(theirs).parameters
    )


def test_its_indexer_gives_their_ids(embedders: Embedders) -> None:
    words = [*SENTENCES[2], "<S>", ""]
    tokens = [SimpleNamespace(text=word) for word in words]
    found = embedders["store"].indexer.tokens_to_indices(tokens, None, "character_ids")
    assert found == {"character_ids": batch_to_ids([words])[0].tolist()}


def test_stores_and_models_agree_to_the_last_bit(embedders: Embedders) -> None:
    wanted = embedders["files"].embed_batch(SENTENCES)
    for name, embedder in embedders.items():
        for a, b in zip(embedder.embed_batch(SENTENCES), wanted, strict=True):
            assert a.tobytes() == b.tobytes(), name
            assert a.flags.c_contiguous


def test_other_numbers_and_views(stores: dict[bool, str], tmp_path: Path) -> None:
    """float32 of an int8 store with boundaries, of the other form, and of views, whatever stands in which place there."""
    convert = [
        "convert",
        stores[True],
        "--output",
        str(tmp_path / "int8"),
        "--dtype",
        "int8",
        "--store",
        "parquet",
        "--quiet",
    ]
    assert main(convert) == 0
    int8 = elmo_store.open(str(tmp_path / "int8"))
    plain = elmo_store.open(stores[False])
    for store in (
        int8,
        int8.select([4, 2, 1, 0]),
        plain[:5],
        elmo_store.concat([plain, plain]),
    ):
        for found, tokens in zip(
            ElmoEmbedder(store=store).embed_batch(SENTENCES), SENTENCES, strict=True
        ):
            layers = store.sentence(text=tokens).layers(boundaries=False)
            assert found.tobytes() == layers.swapaxes(0, 1).astype(np.float32).tobytes()


def test_sentences_are_taken_as_they_are_asked_for(embedders: Embedders) -> None:
    taken = []

    def given() -> Iterator[list[str]]:
        for sentence in SENTENCES:
            taken.append(sentence)
            yield sentence

    found = embedders["store"].embed_sentences(given(), batch_size=2)
    assert taken == []
    first = next(iter(found))
    assert taken == SENTENCES[:2]
    rest = list(found)
    for a, b in zip([first, *rest], embedders["store"].embed_batch(SENTENCES), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("kind", ["files", "store", "store with boundaries"])
def test_flairs_way(embedders: Embedders, kind: str) -> None:
    """A batch of a list of lists; three layers of a token as FloatTensors side by side; pickled, its states moved after."""
    ee = embedders[kind]
    ee = pickle.loads(pickle.dumps(ee))
    ee.cuda_device = -1
    ee.elmo_bilm.to(device=torch.device("cpu"))
    ee.elmo_bilm._elmo_lstm._states = tuple(
        state.to("cpu") for state in ee.elmo_bilm._elmo_lstm._states
    )
    embeddings = ee.embed_batch(SENTENCES)
    for sentence, layers in zip(SENTENCES, embeddings, strict=True):
        for i in range(len(sentence)):
            vector = torch.cat([torch.FloatTensor(layers[k, i, :]) for k in range(3)], 0)
            assert vector.shape == (96,)
            assert torch.equal(vector[:32], torch.from_numpy(layers[0, i]))


@pytest.mark.parametrize("kind", ["files", "store"])
def test_ukplabs_way(embedders: Embedders, kind: str) -> None:
    """Positional files; sentences through a loop; the average, and a cache by tuples of tokens that is pickled."""
    elmo = embedders[kind]
    cache = {
        tuple(sentence): layers
        for sentence, layers in zip(SENTENCES, elmo.embed_sentences(SENTENCES), strict=True)
    }
    cache = pickle.loads(pickle.dumps(cache, -1))
    for sentence in SENTENCES:
        average = np.average(cache[tuple(sentence)], axis=0).astype(np.float32)
        both = np.append(np.zeros((len(sentence), 2)), average, axis=1).astype(np.float32)
        assert both.shape == (len(sentence), 34)


@pytest.mark.parametrize("kind", ["model", "store"])
def test_kawines_way(embedders: Embedders, kind: str, tmp_path: Path) -> None:
    """A sentence at a time into datasets of a file of the program's own."""
    with h5py.File(tmp_path / "elmo.hdf5", "w") as file:
        for number, sentence in enumerate(SENTENCES):
            embeddings = embedders[kind].embed_sentence(list(map(str, sentence)))
            file.create_dataset(str(number), embeddings.shape, dtype="float32", data=embeddings)
        assert [file[str(i)].shape for i in range(5)] == [
            (3, len(sentence), 32) for sentence in SENTENCES
        ]


def test_cross_lingual_contextual_embs_way(
    embedders: Embedders, stores: dict[bool, str], files: tuple[str, str]
) -> None:
    """Lines split at spaces, empty ones too, in groups; running means of words by layer."""

    def lines() -> Iterator[list[str]]:
        for line in ["The cat sat on the mat .", "", "End"]:
            yield line.strip().split()

    for elmo in (ElmoEmbedder(*files, -1), ElmoEmbedder(*files, -1, store=stores[True])):
        iterator, anchors, words = lines(), np.zeros((3, 32)), 0
        while batch := list(itertools.islice(iterator, 2)):
            for sentence, layers in zip(batch, elmo.embed_batch(batch), strict=True):
                for j, _ in enumerate(sentence):
                    for layer in range(3):
                        anchors[layer] = anchors[layer] * (words / (words + 1)) + layers[
                            layer, j, :
                        ] / (words + 1)
                    words += 1
        assert words == 8
        both = np.concatenate(embedders["store"].embed_batch([SENTENCES[0], SENTENCES[1]]), axis=1)
        np.testing.assert_allclose(anchors, both.mean(axis=1), atol=1e-6)


def contents(path: Path) -> dict[str, Any]:
    """Every dataset by its name; sentence_to_index as the JSON in it."""
    with h5py.File(path, "r") as file:
        names: list[str] = []
        file.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
        found = {name: file[name][...] for name in names if name != "sentence_to_index"}
        if "sentence_to_index" in file:
            assert file["sentence_to_index"].shape == (1,)
            found["sentence_to_index"] = json.loads(file["sentence_to_index"][0])
        return found


LINES = (
    "The cat sat on the mat .\nEnd\nnaïve 東京  a/b\t</S> "
    + "x" * 60
    + "\n The cat sat on the mat .\nDogs ran ."
)
SETTINGS: list[dict[str, Any]] = [
    {"output_format": "all"},
    {"output_format": "top", "batch_size": 2},
    {"output_format": "average"},
    {"output_format": "average", "forget_sentences": True},
    {"output_format": "top", "use_sentence_keys": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
def test_their_file(
    embedders: Embedders,
    theirs: Any,
    files: tuple[str, str],
    tmp_path: Path,
    settings: dict[str, Any],
) -> None:
    text = (
        LINES.replace("\n The cat sat", "\n The cat  sat")
        if "use_sentence_keys" in settings
        else LINES
    )
    (tmp_path / "in.txt").write_text(text, encoding="utf-8")
    own = theirs(*files)
    own.elmo_bilm.register_forward_pre_hook(lambda *_: own.elmo_bilm._elmo_lstm.reset_states())
    with (tmp_path / "in.txt").open(encoding="utf-8") as lines, torch.no_grad():
        own.embed_file(lines, str(tmp_path / "theirs.hdf5"), **settings)
    wanted = contents(tmp_path / "theirs.hdf5")
    assert len(wanted) == 5 + (len(settings) == 1 or "batch_size" in settings)
    for name, embedder in embedders.items():
        path = tmp_path / f"{name}.hdf5"
        with (tmp_path / "in.txt").open(encoding="utf-8") as lines:
            embedder.embed_file(input_file=lines, output_file_path=str(path), **settings)
        found = contents(path)
        assert list(found) == list(wanted)
        assert found.pop("sentence_to_index", None) == wanted.get("sentence_to_index")
        for key, vectors in found.items():
            assert vectors.dtype == np.float32
            np.testing.assert_allclose(vectors, wanted[key], atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("layers", ["all", "top", "average"])
def test_the_exports_file(stores: dict[bool, str], tmp_path: Path, layers: str) -> None:
    """The same bytes as `elmo-store export --format allennlp` writes of the store: one writer."""
    with open(Path(stores[True]).parent / "in.txt", encoding="utf-8") as lines:
        ElmoEmbedder(store=stores[True]).embed_file(lines, tmp_path / "drop-in.hdf5", layers)
    export(elmo_store.open(stores[True]), tmp_path / "export.hdf5", "allennlp", layers=layers)
    assert (tmp_path / "drop-in.hdf5").read_bytes() == (tmp_path / "export.hdf5").read_bytes()


@pytest.mark.parametrize(
    ("lines", "settings", "error", "message"),
    [
        (
            ["End\n", " \n", "End\n", "\u3000\n"],
            {},
            ValueError,
            r"empty lines.* at \[1, 3\]: remove",
        ),
        (["End\n"], {"output_format": "mean"}, ValueError, "'mean': known are all, top, average"),
        (
            ["End\n", "End\n"],
            {"use_sentence_keys": True},
            StoreError,
            "'End' can't name a dataset in HDF5 .*already exists",
        ),
        (["End\n", "never seen\n"], {}, SentenceNotFoundError, "never seen"),
    ],
)
def test_a_file_that_is_not_written(
    embedders: Embedders,
    tmp_path: Path,
    lines: Iterable[str],
    settings: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    (tmp_path / "in.txt").write_text("".join(lines), encoding="utf-8")
    with (tmp_path / "in.txt").open(encoding="utf-8") as file, pytest.raises(error, match=message):
        embedders["store"].embed_file(file, tmp_path / "out.hdf5", **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_what_is_there_stays(embedders: Embedders, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("End\n")
    (tmp_path / "out.hdf5").write_bytes(b"mine")
    with (
        (tmp_path / "in.txt").open() as file,
        pytest.raises(FileExistsError, match=r"out\.hdf5 is there already"),
    ):
        embedders["store"].embed_file(file, tmp_path / "out.hdf5")
    assert (tmp_path / "out.hdf5").read_bytes() == b"mine"


def test_a_sentence_that_the_store_lacks(
    stores: dict[bool, str], embedders: Embedders, files: tuple[str, str]
) -> None:
    batch = [["never", "seen"], SENTENCES[0]]
    with pytest.raises(SentenceNotFoundError, match=r"these 2 tokens: never seen: embed it"):
        embedders["store"].embed_batch(batch)
    wanted = embedders["files"].embed_batch(batch)
    for embedder in (embedders["store and files"], ElmoEmbedder(*files, store=stores[True])):
        assert [own.tobytes() for own in embedder.embed_batch(batch)] == [
            own.tobytes() for own in wanted
        ]
    with pytest.raises(StoreError, match="random-small is not the model of"):
        ElmoEmbedder(store=stores[False], model="random-small").embed_batch(batch)


def test_what_it_is_made_of(files: tuple[str, str], tmp_path: Path) -> None:
    options, weights = files
    for wrong in (
        {"options_file": options},
        {"options_file": options, "model": "default"},
        {"weight_file": weights, "model": "x"},
    ):
        with pytest.raises(TypeError, match=re.escape(next(iter(wrong.values())))):
            ElmoEmbedder(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a string for a sentence"):
        ElmoEmbedder(*files).embed_sentence("a sentence")
    changed = json.loads(Path(options).read_text())
    changed["lstm"]["cell_clip"] = (
        0.01  # the options that are given count, not those beside the weights
    )
    (tmp_path / "given.json").write_text(json.dumps(changed))
    shutil.copy(weights, tmp_path / "weights.hdf5")
    shutil.copy(options, tmp_path / "options.json")
    beside = ElmoEmbedder(weight_file=tmp_path / "weights.hdf5").embed_sentence(["End"])
    given = ElmoEmbedder(tmp_path / "given.json", tmp_path / "weights.hdf5").embed_sentence(["End"])
    assert beside.tobytes() == ElmoEmbedder(*files).embed_sentence(["End"]).tobytes()
    assert beside[0].tobytes() == given[0].tobytes()
    assert beside[1].tobytes() != given[1].tobytes()
    warm = ElmoEmbedder(*files, start_state="warm").embed_sentence(["End"])
    assert warm[1].tobytes() != beside[1].tobytes()


def test_a_gpu_by_its_number(
    files: tuple[str, str], embedders: Embedders, stores: dict[bool, str]
) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no CUDA device"):
            ElmoEmbedder(*files, 0)
        assert ElmoEmbedder(*files, 0, store=stores[False]).embed_sentence(["End"]).shape == (
            3,
            1,
            32,
        )  # nothing to compute
        return
    with pytest.raises(ValueError, match=r"set_device\(7\)"):
        ElmoEmbedder(*files, 7)
    activations, mask = ElmoEmbedder(*files, 0).batch_to_embeddings(SENTENCES)
    assert activations.is_cuda
    assert mask.is_cuda
    torch.testing.assert_close(
        activations.cpu(),
        embedders["files"].batch_to_embeddings(SENTENCES)[0],
        atol=1e-5,
        rtol=1e-4,
    )


def test_the_published_model_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ElmoEmbedder()` asks for AllenNLP's default files; nothing is fetched here."""
    asked: dict[str, Any] = {}

    def loaded_model(name: str, **settings: Any) -> Any:
        asked.update(settings, name=name)
        raise InterruptedError

    monkeypatch.setattr("elmo_store.torch.bilm.loaded_model", loaded_model)
    with pytest.raises(InterruptedError):
        ElmoEmbedder()
    assert asked == {
        "name": DEFAULT_WEIGHT_FILE,
        "options": DEFAULT_OPTIONS_FILE,
        "device": "cpu",
        "start_state": "zero",
    }
    assert DEFAULT_WEIGHT_FILE.replace("weights.hdf5", "options.json") == DEFAULT_OPTIONS_FILE
