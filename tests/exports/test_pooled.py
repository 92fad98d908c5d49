"""``elmo-store mix --pool``: a vector a sentence or document, read as feature stores read it; and the same in memory."""

import json
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elmo_store
from elmo_store.errors import LeaseLostError, StoreError
from elmo_store.exports import export
from elmo_store.exports.formats import POOLED, POOLS
from elmo_store.exports.job import FileTask, make_file
from elmo_store.exports.pooled import Units
from elmo_store.mixing.scalar_mix import ScalarMix
from elmo_store.mixing.weights import read_weight_sets
from elmo_store.storage.root import Root
from elmo_store.store import Store
from elmo_store.torch import ScalarMix as TorchMix
from elmo_store.torch import SentenceDataset
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs import pool_job
from pipeline.main import main
from pipeline.runners.beam_options import pipeline_options
from tests.exports.conftest import IDS, make
from transforms.runtime.ended import WorkerEnd, put_end
from transforms.runtime.work import WATCHER

REFERENCE: dict[str, Any] = {
    "mean": np.mean,
    "max": np.max,
    "first": lambda rows, axis: rows[0],
    "last": lambda rows, axis: rows[-1],
}
WEIGHTS = {
    "ner": {"w": [0.5, -1.0, 2.0], "gamma": 1.5},
    "srl": {"s": [0.2, 0.3, 0.5], "gamma": 0.5},
}
RECORDS = [
    {"text": "He sat on the bank. It was wet.", "label": 3, "day": "2024-01-01T00:00:00Z"},
    {"text": "", "label": 4, "day": "2024-01-02T00:00:00Z"},
    {
        "text": "Her bank lent money. The money went. Nobody came. All slept.",
        "label": 5,
        "day": "2024-01-03T00:00:00Z",
    },
]


def unit_of(rows: npt.NDArray[np.float32], pool: str) -> npt.NDArray[np.float64]:
    return np.asarray(REFERENCE[pool](rows.astype(np.float64), axis=0))


@given(st.data(), st.lists(st.integers(0, 4), min_size=1, max_size=6), st.sampled_from(POOLS))
def test_units_in_pieces_are_as_in_one(data: st.DataObject, lengths: list[int], pool: str) -> None:
    """Each unit's rows cut in two at any place, also before the first or behind the last."""
    rows = np.random.default_rng(sum(lengths)).normal(size=(sum(lengths), 2, 3)).astype(np.float32)
    bounds = np.cumsum([0, *lengths])
    cuts = [data.draw(st.integers(0, length)) for length in lengths]
    parts = [
        np.split(rows[a:b], [cut]) for a, b, cut in zip(bounds[:-1], bounds[1:], cuts, strict=True)
    ]
    ones = np.ones(len(lengths), np.int64)
    halves = [
        Units.of(
            pool,
            ones,
            ones,
            np.concatenate([part[k] for part in parts]),
            np.cumsum([0, *(len(part[k]) for part in parts)]),
        )
        for k in (0, 1)
    ]
    got = halves[0].followed_by(halves[1]).vectors()
    for i, length in enumerate(lengths):
        expected = unit_of(rows[bounds[i] : bounds[i + 1]], pool) if length else np.zeros((2, 3))
        np.testing.assert_allclose(got[i], expected, rtol=1e-12)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "weights.json"
    path.write_text(json.dumps(WEIGHTS))
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Store:
    """Three documents of 2, 0 and 4 sentences, with fields."""
    folder = tmp_path_factory.mktemp("pooled")
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    arguments = [
        "embed",
        str(folder / "a.jsonl"),
        "--output",
        str(folder / "store"),
        "--model",
        str(tiny_model),
        "--quiet",
    ]
    assert main([*arguments, "--keep-fields", "all", "--dtype", "float32"]) == Exit.COMPLETE
    return elmo_store.open(folder / "store")


def mixed_rows(store: Store, number: int, name: str) -> npt.NDArray[np.float32]:
    weights: Any = WEIGHTS[name]
    return ScalarMix(**weights)(states=store.sentence(number).read())


@pytest.mark.parametrize("pool", POOLS)
def test_a_sentence_s_vector_is_its_mix_pooled(
    corpus: Store, weights: Path, pool: str, tmp_path: Path
) -> None:
    command = [
        "mix",
        corpus.url,
        "--weights",
        str(weights),
        "--pool",
        pool,
        "--output",
        str(tmp_path / "out"),
        "--quiet",
    ]
    assert main(command) == Exit.COMPLETE
    table = pq.read_table(tmp_path / "out/vectors")
    assert table.column_names == [
        "sentence",
        "id",
        "document",
        "source",
        "n_tokens",
        "label",
        "day",
        "ner",
        "srl",
    ]
    assert table["id"].to_pylist() == [sentence.id for sentence in corpus.sentences()]
    assert table["label"].to_pylist() == [3, 3, 4, 5, 5, 5, 5]
    assert table.schema.field("day").type == pa.timestamp("us", "UTC")
    for name in WEIGHTS:
        for number, vector in enumerate(table[name].to_pylist()):
            if number == 2:
                assert vector is None  # no tokens: not zero
            else:
                np.testing.assert_allclose(
                    vector, unit_of(mixed_rows(corpus, number, name), pool), atol=1e-6
                )


@pytest.mark.parametrize("pool", POOLS)
def test_a_document_s_vector_is_of_all_its_tokens_however_they_are_read(
    corpus: Store, weights: Path, pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out(name: str, **options: Any) -> tuple[pa.Table, list[bytes]]:
        export(
            corpus,
            tmp_path / name,
            POOLED,
            weights=str(weights),
            pool=pool,
            per="document",
            dtype="float32",
            **options,
        )
        files = sorted((tmp_path / name / "vectors").iterdir())
        return pa.concat_tables(map(pq.read_table, files)), [file.read_bytes() for file in files]

    table, (at_once,) = out("whole")
    assert table["n_sentences"].to_pylist() == [2, 1, 4]
    assert table["first_sentence"].to_pylist() == [0, 2, 3]
    assert table["label"].to_pylist() == [3, 4, 5]
    for name in WEIGHTS:
        whole = [
            np.concatenate([mixed_rows(corpus, i, name) for i in numbers])
            for numbers in ((0, 1), (3, 4, 5, 6))
        ]
        vectors = table[name].to_pylist()
        assert vectors[1] is None
        np.testing.assert_allclose(
            [vectors[0], vectors[2]], [unit_of(rows, pool) for rows in whole], atol=1e-6
        )
    pieces, files = out("pieces", file_bytes=1)
    assert len(files) == 3  # a document is whole in its file
    assert pieces.equals(table)
    monkeypatch.setattr("elmo_store.exports.work.MOST_SENTENCES", 1)
    assert out("sentence by sentence")[0].equals(table)
    assert at_once == (tmp_path / "whole/vectors/part-00000-of-00001.parquet").read_bytes()


def test_everything_that_mixes_gives_the_same_numbers(
    corpus: Store, weights: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """The mix of one sentence in NumPy and in PyTorch, a store of mixes, `elmo_store.embed`."""
    export(corpus, tmp_path / "a", POOLED, weights=str(weights), pool="mean", dtype="float32")
    vectors = pq.read_table(tmp_path / "a/vectors")["ner"].to_pylist()
    (ner, _) = read_weight_sets(str(weights))
    assert ner.w is not None
    torch_mix = TorchMix(w=ner.w, gamma=ner.gamma)
    for number in (0, 1, 3):
        states = SentenceDataset(corpus)[number]["states"].float()
        np.testing.assert_allclose(
            torch_mix(states=states).detach().mean(dim=0), vectors[number], atol=1e-6
        )
    assert (
        main(
            [
                "mix",
                corpus.url,
                "--weights",
                str(weights),
                "--output",
                str(tmp_path / "mixed"),
                "--quiet",
            ]
        )
        == Exit.COMPLETE
    )
    assert (
        main(
            [
                "mix",
                str(tmp_path / "mixed"),
                "--pool",
                "mean",
                "--output",
                str(tmp_path / "b"),
                "--quiet",
            ]
        )
        == Exit.COMPLETE
    )
    again = pq.read_table(tmp_path / "b/vectors")["ner"].to_pylist()
    for number in (0, 1, 3):
        np.testing.assert_allclose(again[number], vectors[number], atol=1e-6)
    tokens = [sentence.tokens for sentence in corpus.sentences()]
    in_memory = elmo_store.embed(tokens, str(tiny_model), dtype="float32")
    for number in (0, 1, 3):
        pooled = ScalarMix.of(ner)(states=in_memory[number].read()).mean(axis=0)
        np.testing.assert_allclose(pooled, vectors[number], atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_of_halves_and_int8(dtype: str, weights: Path, tmp_path: Path) -> None:
    store = make(tmp_path / "store", dtype=dtype)
    export(store, tmp_path / "out", POOLED, weights=str(weights), pool="mean", dtype="float32")
    table = pq.read_table(tmp_path / "out/vectors")
    assert table["id"].to_pylist() == IDS
    np.testing.assert_allclose(
        table["ner"].to_pylist()[0], unit_of(mixed_rows(store, 0, "ner"), "mean"), atol=1e-5
    )


@pytest.mark.slow
def test_readers_of_columns_get_nulls(corpus: Store, weights: Path, tmp_path: Path) -> None:
    duckdb, polars, pandas = (pytest.importorskip(name) for name in ("duckdb", "polars", "pandas"))
    export(corpus, tmp_path / "out", POOLED, weights=str(weights), pool="mean", dtype="float32")
    path = str(tmp_path / "out/vectors/part-00000-of-00001.parquet")
    assert duckdb.sql(f"select count(*) from '{path}' where ner is null").fetchall() == [(1,)]
    assert duckdb.sql(
        f"select array_cosine_similarity(ner::FLOAT[32], ner::FLOAT[32]) from '{path}' where label = 3"
    ).fetchall()
    assert polars.read_parquet(path)["ner"].null_count() == 1
    assert pandas.read_parquet(path)["ner"].isna().sum() == 1


def test_an_interrupted_command_starts_again_to_the_same_bytes(
    corpus: Store, weights: Path, tmp_path: Path
) -> None:
    def told(tokens: int) -> None:
        raise KeyboardInterrupt

    options: dict[str, Any] = {
        "weights": str(weights),
        "pool": "mean",
        "per": "document",
        "file_bytes": 1,
    }
    export(corpus, tmp_path / "whole", POOLED, **options)
    with pytest.raises(KeyboardInterrupt):
        export(corpus, tmp_path / "out", POOLED, on_progress=told, **options)
    assert not (tmp_path / "out").exists()
    assert len(export(corpus, tmp_path / "out", POOLED, **options).files) == 3
    for file in (tmp_path / "whole/vectors").iterdir():
        assert file.read_bytes() == (tmp_path / "out/vectors" / file.name).read_bytes()


BEAM = ["--runner=DirectRunner"]
KILLED = WorkerEnd("node-7", 123, -signal.SIGKILL, 61.0, 4_100_000_000, 1e9)
PROCESSES = [*BEAM, "--direct_running_mode=multi_processing", "--direct_num_workers=2"]


@pytest.mark.parametrize("beam", [BEAM, pytest.param(PROCESSES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("remote", [False, True])
def test_workers_of_a_runner_make_the_same_bytes(
    beam: list[str], remote: bool, corpus: Store, weights: Path, tmp_path: Path
) -> None:
    if remote and beam is PROCESSES:
        pytest.skip("memory:// is of one process")
    out = f"memory://{tmp_path.name}" if remote else str(tmp_path / "out")
    options: dict[str, Any] = {
        "weights": str(weights),
        "pool": "mean",
        "per": "document",
        "file_bytes": 1,
    }
    export(corpus, tmp_path / "whole", POOLED, **options)
    workers = partial(pool_job.on_runner, pipeline_options(beam), corpus)
    report = export(corpus, out, POOLED, workers=workers, **options)
    assert len(report.files) == 3
    assert {rel: Root(out).get(rel) for rel in Root(out).list()} == {
        rel: Root(str(tmp_path / "whole")).get(rel) for rel in Root(str(tmp_path / "whole")).list()
    }


def test_a_look_that_fails_in_passing_fails_no_job(
    corpus: Store, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_job, "LOOK_SECONDS", 0.01)
    names, looks = Root.list, Event()

    def gone_once(self: Root, prefix: str = "") -> list[str]:
        if prefix.endswith(".made") and not looks.is_set():
            looks.set()
            raise ConnectionError("can't be reached")
        return names(self, prefix)

    monkeypatch.setattr(Root, "list", gone_once)
    workers = partial(pool_job.on_runner, pipeline_options(BEAM), corpus)
    counted: list[int] = []
    out = f"memory://{tmp_path.name}"
    export(
        corpus,
        out,
        POOLED,
        workers=workers,
        weights=str(weights),
        pool="mean",
        on_progress=counted.append,
    )
    assert looks.is_set()
    assert sum(counted) == corpus.n_tokens
    assert not [rel for rel in Root(out).list() if rel.startswith("_")]


def test_what_workers_of_a_dead_run_left_is_removed(
    corpus: Store, weights: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "weights": str(weights),
        "pool": "mean",
        "per": "document",
        "file_bytes": 1,
    }
    made: list[FileTask] = []

    def dies(tasks: Sequence[FileTask], count: Callable[[], None]) -> None:
        make_file(tasks[0], corpus._view)
        made.append(tasks[1])
        put_end(pickle.dumps(tasks[0].scratch), KILLED)
        raise KeyboardInterrupt

    def ends(tasks: Sequence[FileTask], count: Callable[[], None]) -> None:
        for task in tasks:
            make_file(task, corpus._view)

    with pytest.raises(KeyboardInterrupt):
        export(corpus, tmp_path / "out", POOLED, workers=dies, **options)
    export(corpus, tmp_path / "out", POOLED, workers=ends, **options)
    with pytest.raises(LeaseLostError):  # whoever wakes when all is over leaves nothing
        make_file(made[0], corpus._view)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["export.json", "vectors"]


def test_a_worker_of_an_engine_that_dies_is_told_of_while_the_job_runs_and_where_it_fails(
    corpus: Store,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv(WATCHER, str(writing))

    def workers(tasks: Sequence[FileTask], count: Callable[[], None]) -> None:
        class Job:
            id = "job"

            def members(self) -> dict[str, str]:
                return {}

            def wait(self) -> None:
                pool_job.make_on_worker(tasks[0], corpus)  # by the worker
                with os.fdopen(reading, "rb") as stream:  # by what watches it
                    put_end(stream.read(), KILLED)
                raise RuntimeError("CANCELLED: call already cancelled")

        monkeypatch.setattr(pool_job, "submit", lambda *_: Job())
        pool_job.on_runner(pipeline_options(BEAM), corpus, tasks, count)

    with pytest.raises(
        CommandError, match=r"node-7 \(process 123\) was killed by SIGKILL"
    ) as error:
        export(corpus, tmp_path / "out", POOLED, workers=workers, weights=str(weights), pool="mean")
    assert "CANCELLED" not in str(error.value)
    assert "out of memory?; the engine tries its work again" in capsys.readouterr().err


@pytest.mark.slow
def test_what_a_worker_can_t_make_is_told_and_nothing_is_called_complete(
    corpus: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w.json").write_text(json.dumps({"big": {"w": [0, 0, 0], "gamma": 1e9}}))
    command = [
        "mix",
        corpus.url,
        "--weights",
        str(tmp_path / "w.json"),
        "--pool",
        "mean",
        "--dtype",
        "float16",
        *BEAM,
    ]
    assert main([*command, "--output", str(tmp_path / "out")]) == Exit.INCOMPLETE
    assert "can't hold: take --dtype float32" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("vectors/*"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give --weights"),
        (["--weights", "W", "--per", "document"], "--per is for --pool"),
        (["--weights", "W", "--pool", "mean", "--dtype", "int8"], "float16 or float32"),
        (["--weights", "W", "--pool", "mean", "--store", "zarr"], "no use for --store"),
        (["--weights", "W", "--pool", "mean", "--no-wait"], "no use for --no-wait"),
        (["--weights", "W", "--pool", "mean", "--runner=NoSuchRunner"], "can't be used"),
        (["--pool", "mean"], "pass the --weights"),
    ],
)
def test_options_that_make_no_sense(
    options: list[str],
    says: str,
    corpus: Store,
    weights: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [str(weights) if option == "W" else option for option in options]
    assert main(["mix", corpus.url, "--output", str(tmp_path / "out"), *given]) == Exit.BAD_USAGE
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_value_beyond_half_precision_and_a_name_that_is_taken_are_refused(
    corpus: Store, tmp_path: Path
) -> None:
    for name, gamma, says in (
        ("big", 1e9, "can't hold: take `dtype='float32'`"),
        ("label", 1.0, "'label' would have the name"),
    ):
        (tmp_path / "w.json").write_text(json.dumps({name: {"w": [0, 0, 0], "gamma": gamma}}))
        with pytest.raises(StoreError, match=says):
            export(
                corpus,
                tmp_path / name,
                POOLED,
                weights=str(tmp_path / "w.json"),
                pool="mean",
                dtype="float16",
            )
        assert not list((tmp_path / name).glob("vectors/*.parquet"))


@pytest.mark.parametrize("pool", [None, "sum"])
def test_how_rows_become_one_vector_must_be_said(
    pool: str | None, corpus: Store, weights: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match=f"`pool={pool!r}`: known are mean, max, first, last"):
        export(corpus, tmp_path / "out", POOLED, weights=str(weights), pool=pool)
    assert not (tmp_path / "out").exists()
