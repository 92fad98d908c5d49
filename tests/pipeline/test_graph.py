"""The graph of a job is small and holds no text."""

from pathlib import Path

import pytest

from pipeline.jobs import embed_job
from pipeline.jobs.spec import EmbedOptions
from pipeline.runners.beam_options import pipeline_options
from tests.pipeline.support import graph_of


@pytest.fixture
def options(corpus: Path, tiny_model: Path, tmp_path: Path) -> EmbedOptions:
    return EmbedOptions(
        (str(corpus),),
        str(tmp_path / "store"),
        str(tiny_model),
        input_format="lines",
        shard_rows=64,
        device="cpu",
    )


def test_the_graph_holds_pointers_only_however_large_the_input(
    options: EmbedOptions, corpus: Path
) -> None:
    def graph_bytes() -> int:
        return len(graph_of(embed_job.begin_job(options, pipeline_options([]))).SerializeToString())

    small = graph_bytes()
    for number in range(200):
        (corpus / f"c{number:04d}.txt").write_text("the cat sat\n")
    options = EmbedOptions(**{**vars(options), "output": options.output + "2"})
    large = graph_bytes()
    assert large < small + 1000
    assert large < 200_000
