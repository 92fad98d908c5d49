"""What a job counts on its runner, and that its graph is small and holds no text."""

import re
import threading
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.transforms.environments import EmbeddedPythonGrpcEnvironment

import elmo_store
from pipeline.cli.exit_codes import Exit
from pipeline.jobs import embed_job
from pipeline.jobs.embed_job import EmbedCorpus
from pipeline.jobs.spec import EmbedOptions
from pipeline.main import main
from pipeline.runners.beam_options import pipeline_options
from tests.pipeline.conftest import Command
from tests.pipeline.support import graph_of
from transforms.runtime.results import NAMESPACE
from transforms.stages.embed import ShardWorker


@pytest.fixture
def options(corpus: Path, tiny_model: Path, tmp_path: Path) -> EmbedOptions:
    return EmbedOptions(
        (str(corpus),), str(tmp_path / "store"), str(tiny_model), input_format="lines", shard_rows=64, device="cpu"
    )


def test_beam_counts_what_the_summary_says(options: EmbedOptions) -> None:
    beam_options = pipeline_options([])
    opened = embed_job.open_job(options, beam_options)
    assert opened.job is not None
    pipeline = beam.Pipeline(options=beam_options)
    _ = pipeline | EmbedCorpus(opened.job)
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(NAMESPACE))["counters"]
    counters = {counter.key.metric.name: counter.committed for counter in found}
    counts = elmo_store.open(options.output).manifest.sizes
    assert counters["tokens"] == counters["tokens_read"] == counts.tokens
    assert counters["sentences_read"] == counts.sentences
    assert counters["shards_written"] == counts.shards
    assert counters["engine_cells"] >= counters["engine_cells_used"] > 0
    assert {f"milliseconds_{name}" for name in ("tokenising", "reading", "computing", "idle", "writing")} <= set(counters)
    assert "shards_failed" not in counters


@pytest.mark.slow
def test_a_runner_that_asks_sees_the_counters_grow_call_by_call_within_a_bundle(
    options: EmbedOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = threading.Condition()
    tokens = [0]
    in_time: list[bool] = []

    class Asked(fn_runner.ProgressRequester):
        def __init__(self, worker: Any, bundle: str, frequency: float) -> None:
            super().__init__(worker, bundle, frequency, self._hear)

        def _hear(self, progress: Any) -> None:
            with seen:
                infos = [info for info in progress.monitoring_infos if info.labels.get("NAME") == "tokens"]
                tokens.extend(coders.VarIntCoder().decode(info.payload) for info in infos)
                seen.notify_all()

    begin = ShardWorker.begin

    def once_those_in_the_store_are_seen(self: ShardWorker, tasks: Any) -> int:
        n_calls = len(in_time)
        with seen:
            in_time.append(seen.wait_for(lambda: max(tokens) >= 64 * (n_calls - 2), timeout=20))
        return begin(self, tasks)

    monkeypatch.setattr(embed_job, "CPU_ROWS_AT_ONCE", 64)
    monkeypatch.setattr(fn_runner, "ProgressRequester", Asked)
    monkeypatch.setattr(ShardWorker, "begin", once_those_in_the_store_are_seen)
    opened = embed_job.open_job(options, pipeline_options([]))
    assert opened.job is not None
    pipeline = beam.Pipeline(
        runner=fn_runner.FnApiRunner(EmbeddedPythonGrpcEnvironment.default(), progress_request_frequency=0.01)
    )
    _ = pipeline | EmbedCorpus(opened.job)
    pipeline.run().wait_until_finish()
    assert in_time == [True] * elmo_store.open(options.output).manifest.sizes.shards
    assert len(in_time) > 4


@pytest.mark.slow
def test_workers_log_a_line_a_call_and_the_screen_stays_quiet(
    embed: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = r"\S+:\d+: shards 0 to \d+, \d+ tokens, [\d,]+ tokens/s; read .* s, computed .* s, wrote .* s, device idle .* s"
    assert embed(tmp_path / "a") == Exit.COMPLETE
    said = capsys.readouterr()
    assert not re.search(line, said.out + said.err)
    assert embed(tmp_path / "b", "--log-level", "info") == Exit.COMPLETE
    said = capsys.readouterr()
    assert re.search(line, said.err)
    assert re.search(r"\S+:\d+: reading task \S+, \d+ tokens, [\d,]+ tokens/s, 0 records rejected", said.err)
    convert = ["convert", str(tmp_path / "a"), "--output", str(tmp_path / "c"), "--dtype", "int8", "--quiet"]
    assert main([*convert, "--log-level", "info"]) == 0
    assert re.search(line.replace(r", [\d,]+ tokens/s", ""), capsys.readouterr().err)  # nothing is computed


def test_the_graph_holds_pointers_only_however_large_the_input(options: EmbedOptions, corpus: Path) -> None:
    def graph_bytes() -> int:
        return len(graph_of(embed_job.open_job(options, pipeline_options([]))).SerializeToString())

    small = graph_bytes()
    for number in range(200):
        (corpus / f"c{number:04d}.txt").write_text("the cat sat\n")
    options = EmbedOptions(**{**vars(options), "output": options.output + "2"})
    large = graph_bytes()
    assert large < small + 1000
    assert large < 200_000
