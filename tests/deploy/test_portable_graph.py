"""What travels between workers, and what a worker loads: asserted on the portable graph, at every edge of it and in a process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.portability import common_urns
from apache_beam.runners.portability.fn_api_runner import execution

from pipeline.jobs.embed_job import BegunJob, EmbedCorpus, begin_job
from pipeline.jobs.spec import EmbedOptions
from pipeline.runners.beam_options import pipeline_options
from tests.clusters.processes import worker_environment
from tests.pipeline.support import graph_of

WORD = "Zyzzyvagerund"  # stands in every sentence of the corpus
N_SHARDS, SHARD_BYTES = (
    13,
    64 * 5 * 16 * 2,
)  # of the states of one shard: rows, states, channels, float16


@pytest.fixture
def opened(tmp_path: Path, job_folder: Path) -> BegunJob:
    """A job at its door: 40 sentences of 20 words, 13 shards."""
    text = tmp_path / "text.txt"
    text.write_text(
        "".join(f"{WORD} {' '.join(f'w{i}_{j}' for j in range(19))}\n" for i in range(40)),
        encoding="utf-8",
    )
    model = str(job_folder / "model.safetensors")
    options = EmbedOptions(
        (str(text),), str(tmp_path / "store"), model, input_format="lines", shard_rows=64
    )
    return begin_job(options, pipeline_options([]))


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Everything that leaves a fused stage of a job in this process, encoded, as it comes."""
    seen: list[bytes] = []
    for buffer in (execution.ListBuffer, execution.GroupingBuffer):
        sound = buffer.append

        def append(self: Any, elements: bytes, sound: Any = sound) -> None:
            seen.append(bytes(elements))
            sound(self, elements)

        monkeypatch.setattr(buffer, "append", append)
    return seen


def test_text_between_stages_would_be_seen(crossed: list[bytes]) -> None:
    with beam.Pipeline(options=pipeline_options([])) as pipeline:
        _ = (
            pipeline
            | beam.Create([0])
            | beam.Map(lambda _: [WORD, "and"])
            | beam.Reshuffle()
            | beam.Map(len)
        )
    assert any(WORD.encode() in elements for elements in crossed)


def test_no_edge_of_the_graph_carries_text_or_vectors(
    opened: BegunJob, crossed: list[bytes]
) -> None:
    assert opened.job is not None
    pipeline = beam.Pipeline(options=pipeline_options([]))
    _ = pipeline | EmbedCorpus(opened.job)
    pipeline.run().wait_until_finish()
    assert not any(WORD.encode() in elements for elements in crossed)
    assert 0 < sum(map(len, crossed)) < N_SHARDS * SHARD_BYTES / 5  # of all stages and elements


def test_one_transform_of_the_graph_embeds_and_all_share_one_environment(opened: BegunJob) -> None:
    graph = graph_of(opened).components
    pardos = [
        t for t in graph.transforms.values() if t.spec.urn == common_urns.primitives.PAR_DO.urn
    ]
    assert ["Shards/Embed" in t.unique_name for t in pardos].count(True) >= 1
    assert all(
        "Shards/Embed" in t.unique_name
        for t in pardos
        if b"transforms.stages.embed" in t.spec.payload and b"BiLM" in t.spec.payload
    )
    # A second environment would be a second worker process on every machine of Flink and Spark.
    assert len({t.environment_id for t in pardos}) == 1


ALL_BUT_EMBED = """
import sys
import apache_beam as beam
from elmo_store.storage.root import Root
from pipeline.runners.beam_options import pipeline_options
from transforms.runtime.wiring import gathered, spread
from transforms.stages.number import merge_ids, number_parts, runs_to_do
from transforms.stages.plan import BEGUN, NUMBER, SHARDS, plan_job
from transforms.inputs.records import ReadSettings
from transforms.stages.split import listed_tasks
from transforms.stages.tokenise import tokenise_tasks

root, read = Root(sys.argv[1]), ReadSettings()
pipeline = beam.Pipeline(options=pipeline_options([]))
tasks = pipeline | beam.Create([root]) | beam.FlatMap(listed_tasks)
read_all = tasks | tokenise_tasks(root, read, None, processes=1)
planned = read_all | "Plan" >> gathered(plan_job, root, read, 8, 1, False, outputs=(NUMBER, SHARDS, BEGUN))
numbered = planned[NUMBER] | "Number" >> spread(number_parts, root)
_ = numbered | "All numbered" >> gathered(runs_to_do, root) | "Ids" >> spread(merge_ids, root)
pipeline.run().wait_until_finish()
assert root.size("_work/plan.json"), "the plan did not run"
print("torch" in sys.modules)
"""


@pytest.mark.slow
def test_a_worker_of_every_stage_but_the_one_that_embeds_never_loads_torch(
    opened: BegunJob,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALL_BUT_EMBED, str(opened.root)],
        env=worker_environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
