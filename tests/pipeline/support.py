"""What the pipeline's tests share: hashes of a store's objects, a graph, a job on a cloud's server, the command as a process."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
import fsspec

import elmo_store
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.jobs.embed_job import BegunJob, EmbedCorpus
from pipeline.main import main
from pipeline.runners.beam_options import pipeline_options


def digests(store: Path) -> dict[str, str]:
    """SHA-256 of every object that must be the same whoever wrote it: states, tokens, parts, rejects."""
    names = [p for p in store.rglob("*") if p.is_file()]
    kept = [
        p
        for p in names
        if p.relative_to(store).parts[0]
        in ("sentences", "indexes", "states", "states.zarr", "rejects")
    ]
    return {str(p.relative_to(store)): hashlib.sha256(p.read_bytes()).hexdigest() for p in kept}


def remote_digests(root: Root) -> dict[str, str]:
    """`digests` of a store anywhere."""
    names = [
        name
        for name in root.list()
        if name.split("/")[0] in ("sentences", "indexes", "states", "states.zarr", "rejects")
    ]
    return {name: hashlib.sha256(root.get(name)).hexdigest() for name in names}


def graph_of(opened: BegunJob) -> Any:
    """The graph of an open job, which is not run."""
    assert opened.job is not None
    pipeline = beam.Pipeline(options=pipeline_options([]))
    _ = pipeline | EmbedCorpus(opened.job)
    return pipeline.to_runner_api()


def check_a_job_from_and_to(
    place: str,
    storage_options: Mapping[str, Any],
    embed: Callable[..., int],
    corpus: Path,
    local: Path,
    model: Path,
) -> None:
    """A whole job from and to the bucket ``place`` gives the states that ``embed`` gives in ``local``; it is read and watched."""
    scheme, _, bucket = place.partition("://")
    files = fsspec.filesystem(scheme, **storage_options)
    for path in corpus.iterdir():
        files.pipe_file(f"{bucket}/corpus/{path.name}", path.read_bytes())
    given = ["--storage-options", json.dumps(storage_options)]
    command = [
        "embed",
        f"{place}/corpus",
        "--output",
        f"{place}/store",
        "--model",
        str(model),
        "--quiet",
        *given,
    ]
    command += ["--input-format", "lines", "--shard-rows", "64"]
    assert main(command) == Exit.COMPLETE
    assert embed(local) == Exit.COMPLETE
    ours, theirs = remote_digests(Root(f"{place}/store", dict(storage_options))), digests(local)
    states = {name for name in ours if name.startswith("states")}
    assert states
    assert {name: ours[name] for name in states} == {name: theirs[name] for name in states}
    store = elmo_store.open(f"{place}/store", storage_options=dict(storage_options))
    assert [s.id for s in store][:2] == ["a.txt:0", "a.txt:1"]
    assert main(command) == Exit.COMPLETE  # complete: nothing is done
    assert main(["watch", f"{place}/store", "--once", *given]) == Exit.COMPLETE


def run_command(
    *arguments: str,
    cwd: Path | None = None,
    timeout: float = 240,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """``elmo-store`` in a process of its own, as installed or from this checkout."""
    repo = str(Path(__file__).resolve().parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": repo, "PYTHONSAFEPATH": "1", **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", "elmo_store", *arguments],
        cwd=cwd, env=environment, timeout=timeout, capture_output=True, text=True, check=False,
    )  # fmt: skip


def heed_signals() -> None:
    """For a new process: it heeds signals that this one may have been started to ignore, as by `nohup` or in the background."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
