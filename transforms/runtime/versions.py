"""Python and Beam of the command that submits a job and of its workers: they exchange pickled functions, so both must agree."""

import json
import os
import socket
import sys
from importlib.metadata import version


class VersionsError(RuntimeError):
    """A worker whose Python or Beam is not that of the command that submitted its job."""


def own_versions() -> str:
    """Those of this process."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor} with Apache Beam {version('apache-beam')}"


def check_versions() -> None:
    """VersionsError if the options of the job that this worker is for say that another version submitted it."""
    options = json.loads(
        os.environ.get("PIPELINE_OPTIONS") or "{}"
    )  # of a worker that an engine started
    theirs = options.get("beam:option:launcher_versions:v1") or options.get("options", {}).get(
        "launcher_versions"
    )
    if theirs and theirs != own_versions():
        raise VersionsError(
            f"the worker on {socket.gethostname()} has {own_versions()}, the command that submitted the job {theirs}: "
            "install the same on both"
        )
