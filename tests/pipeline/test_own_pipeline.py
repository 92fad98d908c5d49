"""`EmbedCorpus` as a step of a Beam pipeline of one's own."""

from pathlib import Path

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that

import elmo_store
from pipeline.jobs.embed_job import EmbedCorpus, begin_job
from pipeline.jobs.spec import EmbedOptions

OPTIONS = ["--runner=FnApiRunner"]


def test_a_corpus_is_a_step_of_a_pipeline(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("It is one. It is two.\n")
    options = PipelineOptions(OPTIONS)
    asked = EmbedOptions(
        (str(tmp_path / "a.txt"),), str(tmp_path / "store"), model=str(tiny_model.parent)
    )
    opened = begin_job(asked, options)
    assert opened.job is not None

    def count(done: bool) -> int:
        assert done
        return elmo_store.open(str(tmp_path / "store")).n_sentences

    with beam.Pipeline(options=options) as pipeline:
        seen = pipeline | EmbedCorpus(opened.job) | beam.Map(count)
        assert_that(seen, lambda found: np.testing.assert_array_equal(found, [2]))
