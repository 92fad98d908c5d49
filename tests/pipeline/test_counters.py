"""What engines show on their own pages: Beam's counters of a job."""

from pathlib import Path

import apache_beam as beam
import pytest

import elmo_store
from elmo_store.storage.local_disk import LocalDisk
from pipeline.jobs import embed_job
from pipeline.jobs.embed_job import EmbedCorpus
from pipeline.jobs.spec import EmbedOptions
from pipeline.runners.beam_options import pipeline_options
from transforms.runtime.results import NAMESPACE


def test_beam_counts_tokens_shards_rejects_and_retries(
    corpus: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (corpus / "bad.txt").write_bytes(b"not \xff UTF-8\n")
    output = str(tmp_path / "store")
    options = EmbedOptions(
        (str(corpus),), output, str(tiny_model), input_format="lines", shard_rows=64, device="cpu"
    )
    sound, failing = LocalDisk.put, {"states.zarr/states/c/0/0/0", "states.zarr/states/c/1/0/0"}

    def put(self: LocalDisk, rel: str, *args: object, **kwargs: object) -> str:
        if rel in failing:
            failing.remove(rel)
            raise OSError("passes")
        return sound(self, rel, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalDisk, "put", put)
    beam_options = pipeline_options([])
    opened = embed_job.begin_job(options, beam_options)
    assert opened.job is not None
    pipeline = beam.Pipeline(options=beam_options)
    _ = pipeline | EmbedCorpus(opened.job)
    result = pipeline.run()
    result.wait_until_finish()
    committed = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(NAMESPACE))[
        "counters"
    ]
    counters = {counter.key.metric.name: counter.committed for counter in committed}
    sizes = elmo_store.open(output).manifest.sizes
    assert not failing
    assert sizes.shards > 2
    assert counters == {
        "tokens_read": sizes.tokens, "records_rejected": 1, "tokens": sizes.tokens, "shards_written": sizes.shards,
        "storage_retries": 2,
    }  # fmt: skip
