"""Prism by name, with the local runner's defaults: the same bytes, one process of this machine."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from pipeline.cli.exit_codes import Exit
from pipeline.runners.beam_options import is_local, pipeline_options
from tests.deploy.conftest import Arguments, ran
from tests.pipeline.support import digests


def test_prism_counts_as_this_machine() -> None:
    assert is_local(pipeline_options(["--runner=PrismRunner"]))
    assert not is_local(pipeline_options(["--runner=PrismRunner", "--environment_type=DOCKER"]))


@pytest.mark.slow
def test_prism_by_name_writes_the_local_runs_bytes(
    embed_arguments: Arguments, local_bytes: dict[str, str], tmp_path: Path
) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if (prism := shutil.which("prism", path=path)) is None:
        pytest.skip(
            "prism is not in PATH: go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0"
        )
    done = ran(
        embed_arguments(tmp_path / "store", "--runner=PrismRunner", f"--prism_location={prism}")
    )
    assert done.returncode == Exit.COMPLETE, done.stderr
    assert digests(tmp_path / "store") == local_bytes
