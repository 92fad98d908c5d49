"""HDF5 exports, read as each consumer's own code reads them: its paths, its key types, its checks. Not by our reader.

Each function below names the program and what of it is followed; none of our package's code takes part in reading.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest

from elmo_store.exports import FORMATS, export
from elmo_store.exports.place import ExportRefusedError
from elmo_store.mixing.scalar_mix import ScalarMix
from elmo_store.store import Store
from tests.exports.conftest import DOCUMENTS, SENTENCES, layers, make
from tests.store.support import make_store

Array = npt.NDArray[Any]


def datasets_of(path: Path) -> set[str]:
    """Every path in the file that is a dataset."""
    found: set[str] = set()
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, one: found.add(name) if isinstance(one, h5py.Dataset) else None
        )
    return found


def structural_probes(path: Path, sentences: list[list[str]], layer: int) -> list[Array]:
    """structural-probes, SimpleDataset: every key but sentence_to_index is an int; its layer must have the sentence's length."""
    file = h5py.File(path, "r")
    numbers = sorted(int(key) for key in file if key != "sentence_to_index")
    found = []
    for number in numbers:
        features = file[str(number)][layer]
        assert features.shape[0] == len(sentences[number])
        found.append(features)
    return found


def contextual_repr_analysis(path: Path, tokens: list[str]) -> Array:
    """contextual-repr-analysis, PrecomputedContextualizer: the sentence is looked up by its tokens with spaces between them."""
    with h5py.File(path, "r") as file:
        numbers = json.loads(file["sentence_to_index"][0])
        return np.asarray(file[numbers[" ".join(tokens)]][:])


def e2e_coref(path: Path, document: str, size: int, n_layers: int) -> Array:
    """e2e-coref, load_lm_embeddings: as many sentences as the group has keys, padded to the longest."""
    with h5py.File(path, "r") as file:
        group = file[document.replace("/", ":")]
        found = [group[str(i)][...] for i in range(len(list(group.keys())))]
    padded = np.zeros([len(found), max(one.shape[0] for one in found), size, n_layers])
    for i, one in enumerate(found):
        padded[i, : one.shape[0], :, :] = one
    return padded


def lsgn(path: Path, document: str, sentence: int) -> Array:
    """lsgn, load_lm_embeddings_for_sentence: layers first in the file, turned after reading."""
    with h5py.File(path, "r") as file:
        return np.asarray(file[document.replace("/", ":")][str(sentence)][...]).transpose(1, 2, 0)


def dygie(path: Path, document: str, sentence: int) -> Array:
    """DyGIE: the flat key DOCUMENT_SENTENCE, taken as it is; it writes the key without replacing anything."""
    with h5py.File(path, "r") as file:
        return np.asarray(file[f"{document}_{sentence}"][...])


def elmoformanylangs(path: Path, tokens: list[str]) -> Array:
    """ELMoForManyLangs' users: the words with tabs between them, "." and "/" written out."""
    key = "\t".join(tokens).replace(".", "$period$").replace("/", "$backslash$")
    with h5py.File(path, "r") as file:
        return np.asarray(file[key])


def test_allennlp_all(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "out.hdf5"
    report = export(store, path, "allennlp")
    assert (report.sentences, report.tokens, report.files) == (7, 26, ("out.hdf5",))
    assert datasets_of(path) == {*map(str, range(7)), "sentence_to_index"}
    with h5py.File(path, "r") as file:
        for number in range(7):
            dataset = file[str(number)]
            assert dataset.dtype == np.float32
            assert dataset.shape == (3, len(SENTENCES[number]), 16)
            assert np.array_equal(dataset[...], layers(store, number))
        index = file["sentence_to_index"]
        assert index.shape == (1,)
        assert h5py.check_string_dtype(index.dtype).length is None  # variable length
        found = json.loads(index[0])
    assert found == {" ".join(tokens): str(i) for i, tokens in enumerate(SENTENCES) if tokens}
    assert found["The cat sat on the mat ."] == "3"  # the last of two
    for layer in range(3):
        read = structural_probes(path, SENTENCES, layer)
        assert all(np.array_equal(one, layers(store, i)[layer]) for i, one in enumerate(read))
    assert np.array_equal(contextual_repr_analysis(path, SENTENCES[4]), layers(store, 4))


def test_allennlp_top_and_average(store: Store, tmp_path: Path) -> None:
    top, average = tmp_path / "top.hdf5", tmp_path / "average.hdf5"
    export(store, top, "allennlp", layers="top")
    export(store, average, "allennlp", layers="average")
    assert datasets_of(top) == {*map(str, range(7)), "sentence_to_index"}
    with h5py.File(top, "r") as file:
        assert all(np.array_equal(file[str(i)][...], layers(store, i)[-1]) for i in range(7))
    with h5py.File(average, "r") as file:
        assert all(
            np.array_equal(file[str(i)][...], layers(store, i).mean(axis=0)) for i in range(7)
        )


def test_bilm_has_numbers_only(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "out.hdf5"
    export(store, path, "bilm")
    with h5py.File(path, "r") as file:
        assert {int(key) for key in file} == set(range(7))
        for number, tokens in enumerate(SENTENCES):
            turned = np.asarray(file[str(number)]).transpose(
                (1, 0, 2)
            )  # span-based-srl, by the sentence's number
            assert len(turned) == len(tokens)
            assert np.array_equal(turned.transpose((1, 0, 2)), layers(store, number))


def number_of_every_key(path: Path) -> list[int]:
    """structural-probes' reader of BERT's vectors, and others: every key is a sentence's number."""
    with h5py.File(path, "r") as file:
        return sorted(int(key) for key in file)


def low_dimensional_probing(path: Path) -> list[Array]:
    """low-dimensional-probing, RepresentationDataset, as X-BERT: one key is sentence_to_index, the others are counted."""
    with h5py.File(path, "r") as file:
        return [np.asarray(file[str(number)]) for number in range(len(file.keys()) - 1)]


def neurox(path: Path) -> list[Array]:
    """NeuroX, load_activations: the sentences of sentence_to_index in its order, [n, 3 * 2p] each."""
    with h5py.File(path, "r") as file:
        found = [np.asarray(file[key]) for key in json.loads(file["sentence_to_index"][0]).values()]
    return [one.swapaxes(0, 1).reshape(one.shape[1], -1) for one in found]


def test_readers_that_count_keys_need_the_file_that_docs_name(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path / "allennlp", "allennlp")
    export(store, tmp_path / "bilm", "bilm")
    assert number_of_every_key(tmp_path / "bilm") == list(range(7))
    assert len(low_dimensional_probing(tmp_path / "bilm")) == 6  # the last sentence is lost
    with pytest.raises(ValueError, match="sentence_to_index"):
        number_of_every_key(tmp_path / "allennlp")
    read = low_dimensional_probing(tmp_path / "allennlp")
    assert len(read) == 7
    assert all(np.array_equal(one, layers(store, number)) for number, one in enumerate(read))
    distinct = neurox(
        tmp_path / "allennlp"
    )  # without the blank sentence, and one of the two that are the same
    assert len(distinct) == 5
    for number, one in zip((3, 1, 4, 5, 6), distinct, strict=True):
        assert np.array_equal(
            one, layers(store, number).swapaxes(0, 1).reshape(len(SENTENCES[number]), -1)
        )


def test_e2e_coref_by_document(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "out.hdf5"
    export(store, path, "e2e-coref")
    with h5py.File(path, "r") as file:
        assert set(file) == {name.replace("/", ":") for name in DOCUMENTS}
    for document, numbers in DOCUMENTS.items():
        read = e2e_coref(path, document, 16, 3)
        assert read.shape == (len(numbers), max(len(SENTENCES[n]) for n in numbers), 16, 3)
        for place, number in enumerate(numbers):
            expected = layers(store, number).transpose(1, 2, 0)
            assert np.array_equal(read[place, : len(expected)], expected)


@pytest.mark.parametrize(("name", "read", "place_of"), [
    ("lsgn", lsgn, lambda document, i: f"{document.replace('/', ':')}/{i}"),
    ("dygie", dygie, lambda document, i: f"{document}_{i}"),
])  # fmt: skip
def test_a_dataset_a_sentence_by_document(
    store: Store, tmp_path: Path, name: str, read: Any, place_of: Any
) -> None:
    path = tmp_path / "out.hdf5"
    export(store, path, name)
    for document, numbers in DOCUMENTS.items():
        for place, number in enumerate(numbers):
            assert np.array_equal(
                read(path, document, place), layers(store, number).transpose(1, 2, 0)
            )
    assert datasets_of(path) == {
        place_of(d, i) for d, numbers in DOCUMENTS.items() for i in range(len(numbers))
    }


def test_elmoformanylangs_by_words(store: Store, tmp_path: Path) -> None:
    report = export(store, tmp_path / "out", "elmoformanylangs")
    assert report.files == ("out.ly0.hdf5", "out.ly1.hdf5", "out.ly2.hdf5")
    assert report.left_out == {"no words": 1, "the same words as a sentence before": 1}
    for layer in range(3):
        path = tmp_path / f"out.ly{layer}.hdf5"
        assert len(datasets_of(path)) == 5
        for number, tokens in enumerate(SENTENCES):
            if tokens and number != 3:
                assert np.array_equal(elmoformanylangs(path, tokens), layers(store, number)[layer])
    assert export(store, tmp_path / "one", "elmoformanylangs", layers="average").files == (
        "one.ly-1.hdf5",
    )
    average = elmoformanylangs(tmp_path / "one.ly-1.hdf5", SENTENCES[1])
    assert np.array_equal(average, np.average(layers(store, 1), axis=0))
    assert export(store, tmp_path / "top", "elmoformanylangs", layers="top").files == (
        "top.ly2.hdf5",
    )


@pytest.mark.parametrize("theirs", ["out.ly0.hdf5", "out.ly2.hdf5"])
def test_layers_of_another_export_are_not_mixed_with_these(
    store: Store, tmp_path: Path, theirs: str
) -> None:
    """ELMoForManyLangs' readers open all layers of a prefix as those of one run."""
    (tmp_path / "out.lyrics.ly0.hdf5").write_bytes(b"of the prefix out.lyrics")
    (tmp_path / theirs).write_bytes(b"of another model")
    for overwrite in (False, True):
        with pytest.raises(ExportRefusedError, match=rf"{theirs} exists.*give another output"):
            export(store, tmp_path / "out", "elmoformanylangs", overwrite=overwrite)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["out.lyrics.ly0.hdf5", theirs]
    )
    (tmp_path / theirs).unlink()
    assert len(export(store, tmp_path / "out", "elmoformanylangs").files) == 3
    export(store, tmp_path / "out", "elmoformanylangs", layers="average", overwrite=True)
    assert sorted(path.name for path in tmp_path.glob("out*")) == [
        "out.export.json",
        "out.ly-1.hdf5",
        "out.lyrics.ly0.hdf5",
    ]


def test_tfhub_names(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "out.hdf5"
    export(store, path, "tfhub")
    with h5py.File(path, "r") as file:
        assert {int(key) for key in file} == set(range(7))
        for number in range(7):
            signature = {name: value[...] for name, value in file[str(number)].items()}
            expected = layers(store, number)
            assert set(signature) == {
                "word_emb",
                "lstm_outputs1",
                "lstm_outputs2",
                "elmo",
                "default",
            }
            assert np.array_equal(signature["word_emb"], expected[0, :, :8])
            assert np.array_equal(signature["lstm_outputs1"], expected[1])
            assert np.array_equal(signature["lstm_outputs2"], expected[2])
            assert np.array_equal(signature["elmo"], expected.mean(axis=0))
            assert signature["default"].shape == (16,)
            if number == 2:
                assert not signature["default"].any()
            else:
                assert np.array_equal(signature["default"], signature["elmo"].mean(axis=0))


def test_with_a_mix(store: Store, ner: Store, tmp_path: Path) -> None:
    mix = ScalarMix(w=[0.5, -1.0, 2.0], gamma=1.5)
    expected = mix(states=store.sentence(4).read(boundaries=False))
    for name, axes in {
        "allennlp": "nd",
        "bilm": "knd",
        "e2e-coref": "ndk",
        "lsgn": "knd",
        "dygie": "ndk",
    }.items():
        export(ner, tmp_path / name, name)
        where = {"allennlp": "4", "bilm": "4", "dygie": "wsj/00/b_0"}.get(name, "wsj:00:b/0")
        with h5py.File(tmp_path / name, "r") as file:
            found = file[where][...]
        assert found.ndim == len(axes)
        assert np.array_equal(found.squeeze(axes.index("k")) if "k" in axes else found, expected), (
            name
        )
    export(ner, tmp_path / "many", "elmoformanylangs")
    assert np.array_equal(elmoformanylangs(tmp_path / "many.ly-1.hdf5", SENTENCES[4]), expected)


def test_rows_of_bos_and_eos_stay_out(tmp_path: Path) -> None:
    store = make(tmp_path / "store", boundaries=True, dtype="float32")
    assert store.n_rows > store.n_tokens
    export(store, tmp_path / "out.hdf5", "allennlp")
    for layer, one in enumerate(structural_probes(tmp_path / "out.hdf5", SENTENCES, 1)):
        assert np.array_equal(one, layers(store, layer)[1])


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_store_gives_the_same_bytes(store: Store, tmp_path: Path, name: str) -> None:
    for folder in ("a", "b"):
        export(store, tmp_path / folder / "out", name)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*"))
    assert files == sorted(path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*"))
    for file in files:
        assert (tmp_path / "a" / file).is_dir() or (tmp_path / "a" / file).read_bytes() == (
            tmp_path / "b" / file
        ).read_bytes()


@pytest.mark.slow
def test_without_h5py_nothing_is_begun_and_the_extra_is_named(tmp_path: Path) -> None:
    store = make_store(str(tmp_path / "store")).root.url()
    program = (
        "import sys; sys.modules['h5py'] = None\n"
        "import elmo_store; from elmo_store.exports import export\n"
        "export(elmo_store.open(sys.argv[1]), sys.argv[2], 'allennlp')"
    )
    (tmp_path / "out").mkdir()
    given = [sys.executable, "-c", program, store, str(tmp_path / "out" / "vectors.hdf5")]
    done = subprocess.run(given, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == (
        "elmo_store.errors.MissingPackageError: this format needs h5py, which is not installed: "
        "pip install '.[export]' in elmo-store's checkout"
    )
    assert list((tmp_path / "out").iterdir()) == []
