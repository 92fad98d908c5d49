"""The way of GPU workers, on a CPU: one model for all processes of a machine, several shards a call, several writers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.exit_codes import Exit
from pipeline.jobs import embed_job
from tests.pipeline.support import digests

Command = Callable[..., int]


def test_a_model_shared_across_processes_writes_the_same_bytes(
    embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert embed(tmp_path / "one", "--store", "both") == Exit.COMPLETE
    sound = embed_job.job_settings

    def like_a_gpu(*args: Any, **kwargs: Any) -> Any:
        settings = sound(*args, **kwargs)
        assert settings.embed.engine["device"] == "cpu"
        return replace(settings, device="cuda", embed=replace(settings.embed, shards_at_once=4, writers=3))

    monkeypatch.setattr(embed_job, "job_settings", like_a_gpu)
    assert embed(tmp_path / "two", "--store", "both", "--device", "cpu") == Exit.COMPLETE
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_settings_for_a_gpu_bundle_shards_and_hint_at_one(tmp_path: Path, tiny_model: Path, corpus: Path, device: str) -> None:
    from pipeline.jobs.spec import EmbedOptions
    from pipeline.runners.beam_options import pipeline_options

    options = EmbedOptions((str(corpus),), str(tmp_path / "s"), str(tiny_model), device=device, accelerator="type:a100")
    remote = pipeline_options(["--runner=PortableRunner", "--job_endpoint=localhost:1", "--environment_type=EXTERNAL"])
    job = embed_job.open_job(options, remote)
    assert job.settings is not None
    assert job.settings.embed.engine["device"] == device
    assert job.settings.embed.cuda_shards_at_once > job.settings.embed.shards_at_once > 1
    assert job.settings.embed.cuda_writers > job.settings.embed.writers
    assert job.settings.hints == {}  # engines with a job service don't read them
    assert embed_job.resource_hints(pipeline_options(["--runner=DataflowRunner"]), 374 << 20, "type:a100") == {
        "accelerator": "type:a100", "min_ram": "12GB",
    }  # fmt: skip


@pytest.mark.parametrize(("dtype", "calls"), [("float16", (4, 8)), ("float32", (2, 4)), ("int8", (6, 12))])
def test_a_call_is_sized_by_what_the_engine_returns(
    tmp_path: Path, tiny_model: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, calls: tuple[int, int]
) -> None:
    """It returns rows as they are stored."""
    from pipeline.jobs.spec import EmbedOptions
    from pipeline.runners.beam_options import pipeline_options

    monkeypatch.setattr(embed_job, "CPU_BYTES_AT_ONCE", 4 * 128 * 5 * 16 * 2)  # 4 shards of 128 rows of 5 states in float16
    monkeypatch.setattr(embed_job, "CUDA_BYTES_AT_ONCE", 8 * 128 * 5 * 16 * 2)
    options = EmbedOptions((str(corpus),), str(tmp_path / "s"), str(tiny_model), dtype=dtype, shard_rows=128)
    remote = pipeline_options(["--runner=PortableRunner", "--job_endpoint=localhost:1", "--environment_type=EXTERNAL"])
    job = embed_job.open_job(options, remote)
    assert job.settings is not None
    assert (job.settings.embed.shards_at_once, job.settings.embed.cuda_shards_at_once) == calls


def test_a_gpu_that_is_not_there_is_said_before_the_work(
    embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert embed(tmp_path / "s", "--device", "cuda") == Exit.BAD_USAGE
    assert "finds no GPU" in capsys.readouterr().err
