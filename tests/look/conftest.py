"""A store whose text is hostile, and one that is mixed from it."""

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import elmo_store
from model.files.registry import random_weights
from pipeline.main import main
from tests.pipeline.conftest import TINY
from tests.pipeline.conftest import corpus as corpus
from tests.pipeline.conftest import embed as embed
from tests.pipeline.conftest import tiny_model as tiny_model

if TYPE_CHECKING:
    from pipeline.explore.service import ExplorerService

HOSTILE = (
    "<script>document.title='owned'</script> <img src=x onerror=document.title='owned'> ]]> --> </style>",
    "\u202egnp.exe\u2066 \u200fabc '\"&amp; {{7*7}} ${1} \x1b[31m \u0007",
    "שלום עולם mixed العربية 中文 text",
)


@pytest.fixture(scope="session")
def hostile_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 2,500 tokens of a tiny model: plain sentences, hostile ones, refused records, duplicates."""
    folder = tmp_path_factory.mktemp("look")
    random_weights(TINY).save_safetensors(folder / "tiny.safetensors")
    words = [
        "the",
        "bank",
        "of",
        "river",
        "money",
        "water",
        "house",
        "people",
        "state",
        "small",
        "with",
        "about",
        "other",
    ]
    chosen = random.Random(7)
    lines = [
        json.dumps({"id": f"doc-{i}", "text": " ".join([*chosen.choices(words, k=8), "river"])})
        for i in range(270)
    ]
    lines += [json.dumps({"id": f"bad-{i}", "text": text}) for i, text in enumerate(HOSTILE)]
    lines += [
        "{not json <b>bold</b>",
        json.dumps({"id": "x", "other": "<script>document.title='owned'</script>"}),
    ]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = [
        "--model",
        str(folder / "tiny.safetensors"),
        "--id-field",
        "id",
        "--tokenizer",
        "whitespace",
        "--shard-rows",
        "512",
    ]
    assert (
        main(
            [
                "embed",
                str(folder / "in.jsonl"),
                "--output",
                str(folder / "store"),
                *arguments,
                "--quiet",
            ]
        )
        == 0
    )
    return folder / "store"


@pytest.fixture(scope="session")
def named_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short text by the packaged model, which is to be had by its name wherever the store is looked at."""
    folder = tmp_path_factory.mktemp("named")
    (folder / "in.lines").write_text(
        "the bank of the river\nthe bank lends money\nthe river is wide\n" * 4, encoding="utf-8"
    )
    assert (
        main(["embed", str(folder / "in.lines"), "--output", str(folder / "store"), "--quiet"]) == 0
    )
    return folder / "store"


@pytest.fixture(scope="session")
def mixed_store(hostile_store: Path) -> Path:
    """Two weight sets over `hostile_store`."""
    weights = hostile_store.parent / "weights.json"
    weights.write_text(
        json.dumps(
            {"ner": {"s": [0.2, 0.5, 0.3], "gamma": 1.25}, "pos": {"w": [0, 1, 0], "gamma": 0.5}}
        )
    )
    output = hostile_store.parent / "mixed"
    assert (
        main(
            [
                "mix",
                str(hostile_store),
                "--weights",
                str(weights),
                "--output",
                str(output),
                "--quiet",
            ]
        )
        == 0
    )
    return output


@pytest.fixture(scope="session")
def service(hostile_store: Path) -> "ExplorerService":
    """The explorer's service over `hostile_store`, its sample read."""
    from pipeline.explore.service import ExplorerService

    made = ExplorerService(elmo_store.open(hostile_store))
    made.wait()
    return made


@pytest.fixture(scope="session")
def senses_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 occurrences of "bank" by a tiny model, with twelve senses that their sentences show; every tenth has none."""
    folder = tmp_path_factory.mktemp("senses")
    random_weights(TINY).save_safetensors(folder / "tiny.safetensors")
    chosen, records = random.Random(5), []
    for i in range(240):
        sense = chosen.choices(range(12), range(12, 0, -1))[0]
        text = [
            *chosen.choices(["the", "of", "a", "in"], k=3),
            f"cue{sense}" if i % 3 else "no",
            "bank",
            f"end{sense}",
            ".",
        ]
        records.append(
            {
                "id": f"s{i}",
                "text": text,
                "sense": f"sense {sense}" if i % 10 else None,
                "topic": "money",
            }
        )
    (folder / "in.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records), encoding="utf-8"
    )
    options = [
        "--model",
        str(folder / "tiny.safetensors"),
        "--id-field",
        "id",
        "--keep-fields",
        "sense,topic",
        "--dtype",
        "float32",
    ]
    assert (
        main(
            [
                "embed",
                str(folder / "in.jsonl"),
                "--output",
                str(folder / "store"),
                *options,
                "--quiet",
            ]
        )
        == 0
    )
    return folder / "store"


def one_nearest(vectors: Any, label: Any) -> float:
    """Leave-one-out nearest-neighbour accuracy by cosine, row by row in float64."""
    vectors = np.asarray(vectors, np.float64)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    right = 0
    for i in range(len(units)):
        cosines = units @ units[i]
        cosines[i] = -2
        right += bool(label[cosines.argmax()] == label[i])
    return right / len(units)
