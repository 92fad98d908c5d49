"""A job at work: run its pipeline with progress on the screen, then the summary or why work is left. Exit codes as `Exit`.

May import elmo_store, transforms' names and pipeline modules; Beam is imported when a job runs.
"""

import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from elmo_store.manifest import Manifest, read_manifest
from elmo_store.storage import Root
from pipeline.exit_codes import Exit
from pipeline.progress import shown
from pipeline.summary import all_markers, next_steps, summary
from transforms.work import PROBLEM

if TYPE_CHECKING:
    import apache_beam as beam


def run_to_end(command: str, root: Root, transform: "beam.PTransform[Any, Any]", options: Any, *, quiet: bool) -> Exit:
    """Run ``transform``, which completes the store at ``root``, and say what came of it.

    ``options``: Beam's PipelineOptions. Whatever a runner raises, the store itself tells what is done.
    """
    since, began = time.time(), time.perf_counter()
    failure: Exception | None = None
    with nullcontext() if quiet else shown(root, seconds=0.5 if root.is_local else 5.0):
        try:
            _run_pipeline(transform, options)
        except Exception as error:
            failure = error
    manifest = read_manifest(root)
    if not manifest.complete:
        print(f"elmo-store {command}: incomplete: {explain(root, failure)}", file=sys.stderr)
        print("What is written stays; the same command again continues with the rest.", file=sys.stderr)
        return Exit.INCOMPLETE
    report(root, manifest, since=since, seconds=time.perf_counter() - began)
    return Exit.COMPLETE


def complete_already(root: Root) -> Exit:
    """Say that there is nothing to do, and what there is."""
    print(f"{root} is complete already: the same job wrote it; nothing was done.")
    report(root, read_manifest(root), since=time.time(), seconds=0.0)
    return Exit.COMPLETE


def report(root: Root, manifest: Manifest, *, since: float, seconds: float) -> None:
    """Print the summary and what to do next."""
    markers = all_markers(root, manifest.sizes.shards)
    for line in summary(root, manifest, markers, since=since, seconds=seconds):
        print(line)
    print("next, in Python:")
    for line in next_steps(root, manifest):
        print(f"    {line}")


def explain(root: Root, failure: Exception | None) -> str:
    """Why work is left: what the last stage said, otherwise the end of the runner's own message."""
    try:
        return str(root.get_json(PROBLEM)["message"])
    except (FileNotFoundError, ValueError, KeyError):
        pass  # the last stage was not reached
    if failure is None:
        return "the runner ended without an error, and without the last stage"
    lines = [line for line in str(failure).splitlines() if line.strip()]
    return lines[-1] if lines else repr(failure)


def _run_pipeline(transform: "beam.PTransform[Any, Any]", options: Any) -> None:
    import apache_beam as beam

    from pipeline.beam_options import quiet_workers

    pipeline = beam.Pipeline(options=options)
    _ = pipeline | transform
    with quiet_workers(options):
        pipeline.run().wait_until_finish()
