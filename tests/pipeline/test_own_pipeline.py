"""The parts for people with a Beam pipeline of their own: EmbedSentences in it, and EmbedCorpus as a step of it."""

from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue

import elmo_store
from model.engine.embedder import Embedder
from model.files.weights import BiLMWeights
from model.start_state import StartState
from model.warm import compute_warm
from pipeline.jobs.embed_job import EmbedCorpus, begin_job
from pipeline.jobs.spec import EmbedOptions
from transforms.stages.embed_sentences import EmbedSentences

OPTIONS = ["--runner=FnApiRunner"]
SENTENCES = [("a", ["One", "two", "."]), (7, []), (("c", 1), ["é", "One"]), ("d", ["."] * 40)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("start", ["warm", "zero"])
def test_every_sentence_gets_the_states_of_the_engine_under_its_id(tiny_model: Path, dtype: str, start: str) -> None:
    weights = BiLMWeights.load_safetensors(tiny_model)
    state = compute_warm(weights) if start == "warm" else StartState.zero(weights.options)
    engine = Embedder(weights, state)
    expected = {key: engine.embed([tokens], dtype="float32" if dtype == "float32" else "float16") for key, tokens in SENTENCES}

    def check(found: list[tuple[object, np.ndarray]]) -> None:
        assert sorted(map(repr, dict(found))) == sorted(map(repr, expected))
        for key, states in found:
            assert states.dtype == dtype
            np.testing.assert_array_equal(states, expected[key])

    with beam.Pipeline(options=PipelineOptions(OPTIONS)) as pipeline:
        found = pipeline | beam.Create(SENTENCES) | EmbedSentences(str(tiny_model.parent), start_state=start, dtype=dtype)
        assert_that(found, check)


def test_windows_stay_as_they_are(tiny_model: Path) -> None:
    def check(found: list[tuple[str, int]]) -> None:
        assert sorted(found) == [("a", 0), ("b", 10), ("c", 0)]

    stamps = {"a": 1, "b": 11, "c": 2}
    with beam.Pipeline(options=PipelineOptions(OPTIONS)) as pipeline:
        stamped = pipeline | beam.Create(list(stamps)) | beam.Map(lambda key: TimestampedValue((key, ["x"]), stamps[key]))
        found = stamped | beam.WindowInto(FixedWindows(10)) | EmbedSentences(str(tiny_model.parent))
        seen = found | beam.Map(lambda pair, window=beam.DoFn.WindowParam: (pair[0], int(window.start)))
        assert_that(seen | "Globally" >> beam.WindowInto(GlobalWindows()), check)


def test_settings_that_make_no_sense_are_refused_where_the_pipeline_is_built() -> None:
    with pytest.raises(ValueError, match="start_state='cold' is neither"):
        EmbedSentences(start_state="cold")
    with pytest.raises(ValueError, match="dtype='int8' is neither"):
        EmbedSentences(dtype="int8")


def test_a_corpus_is_a_step_of_a_pipeline(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("It is one. It is two.\n")
    options = PipelineOptions(OPTIONS)
    asked = EmbedOptions((str(tmp_path / "a.txt"),), str(tmp_path / "store"), model=str(tiny_model.parent))
    opened = begin_job(asked, options)
    assert opened.job is not None

    def count(done: bool) -> int:
        assert done
        return elmo_store.open(str(tmp_path / "store")).n_sentences

    with beam.Pipeline(options=options) as pipeline:
        seen = pipeline | EmbedCorpus(opened.job) | beam.Map(count)
        assert_that(seen, lambda found: np.testing.assert_array_equal(found, [2]))
