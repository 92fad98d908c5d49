"""Stores with what makes exports hard: blank lines, duplicates, slashes, dots, documents; and what must come out of them."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import elmo_store
from elmo_store.format import layout
from elmo_store.reading.sentences import SentenceRecord
from elmo_store.store import Store
from tests.pipeline.conftest import tiny_model as tiny_model

SENTENCES = [
    ["The", "cat", "sat", "on", "the", "mat", "."],
    ["A/b", "costs", "3.50", "$", "."],
    [],
    ["The", "cat", "sat", "on", "the", "mat", "."],
    ["naïve", "日本", "a\u00a0b"],
    ["End"],
    ["w" * 60, "I.B.M.", "/"],
]
IDS = [
    "wsj/00/a:0",
    "wsj/00/a:1",
    "wsj/00/a:2",
    "wsj/00/a:3",
    "wsj/00/b:0",
    "wsj/00/b:1",
    "nw/c_1:0",
]
DOCUMENTS = {"wsj/00/a": [0, 1, 2, 3], "wsj/00/b": [4, 5], "nw/c_1": [6]}


def say(store: Store, text: list[SentenceRecord]) -> None:
    """Have a whole ``store`` say of each sentence what stands in ``text``."""
    columns = {
        name: [getattr(record, name) for record in text]
        for name in ("id", "source", "position", "first_row", "tokens")
    }
    columns |= {
        "sentence": [record.index for record in text],
        "n_tokens": [len(record.tokens) for record in text],
    }
    table = pa.table(columns, schema=layout.SENTENCES_SCHEMA)
    said: Any = store._view  # of which two methods are replaced
    said.records = lambda numbers: [text[n] for n in numbers]
    said.table = lambda numbers, columns: table.take(list(numbers)).select(list(columns))


def make(
    url: Path, *, boundaries: bool = False, dtype: str = "float16", states: tuple[str, ...] = ()
) -> Store:
    """A store of `SENTENCES` with the ids `IDS`, written by the package's own writer."""
    from tests.store.support import make_store

    lengths = [len(tokens) for tokens in SENTENCES]
    written = make_store(
        str(url) + ".plain",
        lengths=lengths,
        parts=(3, 0, 4),
        boundaries=boundaries,
        dtype=dtype,
        states=states,
    )
    store = elmo_store.open(written.root.url())
    text = [
        SentenceRecord(
            i,
            IDS[i],
            "in/doc.txt",
            i,
            written.starts[i],
            written.starts[i + 1] - written.starts[i],
            tuple(SENTENCES[i]),
        )
        for i in range(len(SENTENCES))
    ]
    view = store.select(range(len(SENTENCES)))
    say(view, text)
    return view.write(str(url))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Seven sentences, one of them blank, two the same."""
    return make(tmp_path_factory.mktemp("exports") / "store")


@pytest.fixture(scope="session")
def mixed(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of kind "mix" with two weight sets, as `elmo-store mix` writes it."""
    import json

    from pipeline.main import main

    folder = tmp_path_factory.mktemp("mixed")
    sets = {
        "ner": {"w": [0.5, -1.0, 2.0], "gamma": 1.5},
        "srl": {"s": [0.2, 0.3, 0.5], "gamma": 0.5},
    }
    (folder / "weights.json").write_text(json.dumps(sets))
    arguments = [
        "mix",
        store.url,
        "--weights",
        str(folder / "weights.json"),
        "--output",
        str(folder / "store"),
        "--quiet",
    ]
    assert main([*arguments, "--dtype", "float32"]) == 0
    return elmo_store.open(folder / "store")


@pytest.fixture(scope="session")
def ner(mixed: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The weight set "ner" of it alone."""
    from pipeline.main import main

    output = tmp_path_factory.mktemp("ner") / "store"
    assert main(["convert", mixed.url, "--states", "ner", "--output", str(output), "--quiet"]) == 0
    return elmo_store.open(output)


def layers(store: Store, number: int) -> npt.NDArray[np.float32]:
    """What every reader must find: layers of a sentence [L+1, n, 2p] in float32."""
    found = store.sentence(number).layers(boundaries=False).astype(np.float32)
    return np.ascontiguousarray(found.transpose(1, 0, 2))
