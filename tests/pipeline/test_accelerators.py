"""Hints at a GPU that Dataflow can meet, or none at all."""

import pytest
from apache_beam.options.pipeline_options import DebugOptions

from pipeline.cli.exit_codes import CommandError
from pipeline.jobs.spec import DEFAULT_ACCELERATOR
from pipeline.runners.accelerators import accelerator_hint
from pipeline.runners.beam_options import pipeline_options

L4 = "type:nvidia-l4;count:1;install-nvidia-driver"
P4 = "type:nvidia-tesla-p4;count:1;machine_type:n1-highmem-8"
A100 = "type:nvidia-a100-80gb;count:1;install-nvidia-driver"


@pytest.mark.parametrize(
    ("asked", "machine_type", "hint"),
    [
        (L4, None, f"{L4};machine_type:g2-standard-8"),
        (f"{L4};", "n1-standard-4", f"{L4};machine_type:g2-standard-8"),  # the whole job's machines have no L4
        (L4, "g2-standard-16", f"{L4};machine_type:g2-standard-16"),
        (f"machine_type:g2-standard-4;{L4}", "g2-standard-16", f"machine_type:g2-standard-4;{L4}"),
        (A100, "a2-ultragpu-1g", f"{A100};machine_type:a2-ultragpu-1g"),
        (DEFAULT_ACCELERATOR, None, DEFAULT_ACCELERATOR),
        (DEFAULT_ACCELERATOR, "e2-standard-4", DEFAULT_ACCELERATOR),
        (
            "type:nvidia-tesla-t4;count:1;machine_type:n1-highmem-8",
            None,
            "type:nvidia-tesla-t4;count:1;machine_type:n1-highmem-8",
        ),
        ("type:nvidia-of-tomorrow;count:1", None, "type:nvidia-of-tomorrow;count:1"),
    ],
)
def test_a_card_is_asked_for_with_the_machine_that_has_it(asked: str, machine_type: str | None, hint: str) -> None:
    assert accelerator_hint(asked, machine_type) == hint


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        (f"{L4};machine_type:n1-standard-8", r"nvidia-l4 in g2-standard machines only: add machine_type:g2-standard-"),
        ("type:nvidia-tesla-t4;count:1;machine_type:g2-standard-8", "machine_type:n1-"),
        (A100, "machine_type:a2-ultragpu-"),
        ("nvidia-l4", "type:nvidia-l4;count:1"),
        ("type:nvidia-l4", "name a GPU and a number"),
        ("type:nvidia-l4;count:0", "name a GPU and a number"),
    ],
)
def test_a_hint_that_can_not_be_met_is_refused_with_the_remedy(asked: str, remedy: str) -> None:
    with pytest.raises(CommandError, match=remedy):
        accelerator_hint(asked, None)


@pytest.mark.parametrize(("given", "threads"), [([], 1), (["--number_of_worker_harness_threads=3"], 3)])
def test_a_machine_of_dataflow_holds_one_task_at_a_time_unless_asked_for_more(given: list[str], threads: int) -> None:
    options = pipeline_options(["--runner=DataflowRunner", *given])
    assert options.view_as(DebugOptions).number_of_worker_harness_threads == threads
    assert pipeline_options(["--runner=FlinkRunner"]).view_as(DebugOptions).number_of_worker_harness_threads is None
