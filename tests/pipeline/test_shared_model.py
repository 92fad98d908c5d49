"""The way of GPU workers, on a CPU: one model for all processes of a machine, several shards a call, several writers."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.exit_codes import Exit
from pipeline.jobs import embed_job
from tests.pipeline.conftest import Command, Made
from tests.pipeline.support import digests


@pytest.mark.slow
def test_a_model_shared_across_processes_writes_the_same_bytes(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_of = embed_job.job_of

    def like_a_gpu(*args: Any, **kwargs: Any) -> Any:
        job = job_of(*args, **kwargs)
        assert job.engine["device"] == "cpu"
        return replace(job, device="cuda", shards_per_call=4, writers=3)

    monkeypatch.setattr(embed_job, "job_of", like_a_gpu)
    folder = Path(tempfile.gettempdir())

    def addresses() -> set[Path]:
        return {
            path for suffix in ("address", "lock") for path in folder.glob(f"elmo-store-*.{suffix}")
        }

    before = addresses()
    assert made.embed(tmp_path / "two", "--store", "both", "--device", "cpu") == Exit.COMPLETE
    assert digests(made.both) == digests(tmp_path / "two")
    assert addresses() == before  # of the model, by which processes find it


def settings_on_an_engine(corpus: Path, model: Path, output: Path, **asked: Any) -> embed_job.Job:
    """What workers are told of a job on a job service."""
    from pipeline.jobs.spec import EmbedOptions
    from pipeline.runners.beam_options import pipeline_options

    options = EmbedOptions((str(corpus),), str(output), str(model), shared_disk=True, **asked)
    remote = pipeline_options(
        ["--runner=PortableRunner", "--job_endpoint=engine:1", "--environment_type=EXTERNAL"]
    )
    job = embed_job.begin_job(options, remote)
    assert job.job is not None
    return job.job


def test_settings_for_a_gpu_are_of_larger_calls_and_hint_at_one(
    tmp_path: Path, tiny_model: Path, corpus: Path
) -> None:
    from pipeline.runners.beam_options import pipeline_options

    cpu, cuda = (
        settings_on_an_engine(corpus, tiny_model, tmp_path / name, device=name)
        for name in ("cpu", "cuda")
    )
    assert (cpu.engine["device"], cuda.engine["device"]) == ("cpu", "cuda")
    assert cuda.shards_per_call > cpu.shards_per_call > 1
    assert cuda.writers > cpu.writers
    assert cuda.hints == {}  # engines with a job service don't read them
    dataflow = pipeline_options(["--runner=DataflowRunner"])
    card = "type:nvidia-l4;count:1;machine_type:g2-standard-4"
    hints = embed_job.resource_hints(dataflow, 374 << 20, embed_job.CUDA_BYTES_AT_ONCE, card)
    assert hints == {"accelerator": card, "min_ram": "12GB"}


@pytest.mark.parametrize(
    ("dtype", "sizes"), [("float16", (4, 8)), ("float32", (2, 4)), ("int8", (6, 12))]
)
def test_a_task_is_a_call_sized_by_what_the_engine_returns(
    tmp_path: Path,
    tiny_model: Path,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    sizes: tuple[int, int],
) -> None:
    """It returns rows as they are stored."""
    monkeypatch.setattr(
        embed_job, "CPU_BYTES_AT_ONCE", 4 * 128 * 5 * 16 * 2
    )  # 4 shards of 128 rows of 5 states in float16
    monkeypatch.setattr(embed_job, "CUDA_BYTES_AT_ONCE", 8 * 128 * 5 * 16 * 2)
    for device, size in zip(("cpu", "cuda"), sizes, strict=True):
        settings = settings_on_an_engine(
            corpus, tiny_model, tmp_path / device, device=device, dtype=dtype, shard_rows=128
        )
        assert settings.shards_per_call == size


def test_an_engine_is_asked_for_one_kind_of_device(
    tmp_path: Path,
    tiny_model: Path,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing steers bundles to machines of a kind: where each worker found out for itself, a mixed cluster failed half-way."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    settings = settings_on_an_engine(corpus, tiny_model, tmp_path / "s")
    assert settings.engine["device"] == settings.device == "cpu"
    (said,) = [record.message for record in caplog.records if "--device" in record.message]
    assert "takes CPUs on PortableRunner" in said
    assert "--device cuda" in said


def test_a_gpu_that_is_not_there_is_said_before_the_work(
    embed: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert embed(tmp_path / "s", "--device", "cuda") == Exit.BAD_USAGE
    assert "finds no GPU" in capsys.readouterr().err


def test_readers_are_one_a_core_but_no_more_than_fit_into_a_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embed_job, "cores", lambda: 96)
    assert embed_job.read_processes(1 << 30) == 16
    assert embed_job.read_processes(1) == 1
