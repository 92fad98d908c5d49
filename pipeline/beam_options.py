"""Beam's options on our command line: set apart from ours, completed with our defaults, and the environment of Beam's processes.

May import apache_beam and elmo_store. Beam's options are those that the installed SDK's option classes declare, so
that a typing error is bad usage and not an option that silently does nothing.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions, WorkerOptions

LOCAL_RUNNER = "FnApiRunner"  # by name: DirectRunner first tries to download Prism
LOCAL_RUNNERS = frozenset({"FnApiRunner", "BundleBasedDirectRunner", "DirectRunner", "SwitchingDirectRunner"})


class _Parser(argparse.ArgumentParser):
    """Collects what Beam's option classes declare; value providers are plain options here."""

    def add_value_provider_argument(self, *names: str, **settings: object) -> None:
        self.add_argument(*names, **settings)  # type: ignore[arg-type]


@cache
def beam_flags() -> Mapping[str, bool]:
    """Every option string that Beam's option classes declare → whether a value follows it."""
    parser = _Parser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    for options in {str(c): c for c in PipelineOptions.__subclasses__()}.values():
        options._add_argparse_args(parser)  # type: ignore[arg-type]  # duck-typed: add_argument is all they call
    return {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our arguments and Beam's, each in order. After ``--`` everything is ours."""
    flags = beam_flags()
    ours: list[str] = []
    beams: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            ours += [argument, *rest]
            break
        name, equals, _ = argument.partition("=")
        if name not in flags:
            ours.append(argument)
            continue
        beams.append(argument)
        if flags[name] and not equals and (value := next(rest, None)) is not None:
            beams.append(value)
    return ours, beams


def pipeline_options(beam_args: Sequence[str]) -> PipelineOptions:
    """Beam's options with our defaults: the local runner by name."""
    options = PipelineOptions(list(beam_args))
    standard = options.view_as(StandardOptions)
    if standard.runner is None:
        standard.runner = LOCAL_RUNNER
    return options


@contextmanager
def quiet_workers(options: PipelineOptions) -> Iterator[None]:
    """Keep the chat of worker processes off the screen that they share with this one, unless a level was asked for.

    FnApiRunner gives its processes no options (2.77: ``Pipeline_options: {}``); this file is the way that they read.
    """
    name = "PIPELINE_OPTIONS_FILE"
    if not is_local(options) or options.view_as(WorkerOptions).default_sdk_harness_log_level or name in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "options.json"
        file.write_text('{"options": {"default_sdk_harness_log_level": "ERROR"}}')
        os.environ[name] = str(file)
        try:
            yield
        finally:
            del os.environ[name]


def is_local(options: PipelineOptions) -> bool:
    """True if the job runs on this machine, in processes that this one starts."""
    return str(options.view_as(StandardOptions).runner).rpartition(".")[2] in LOCAL_RUNNERS


def n_local_processes(options: PipelineOptions) -> int:
    """Worker processes that share this machine's cores: 1 unless Beam's multi_processing mode asks for more."""
    direct = options.view_as(DirectOptions)
    if not is_local(options) or direct.direct_running_mode != "multi_processing":
        return 1
    return int(direct.direct_num_workers) or os.cpu_count() or 1


def set_worker_environment() -> None:
    """Prepare the environment that processes started by Beam inherit.

    ``PYTHONSAFEPATH`` keeps a user's own ``model.py`` in the working folder from shadowing ours; ``PYTHONPATH`` then
    names the folder that our packages lie in, so that a checkout that was not installed works too.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    ours = str(Path(__file__).resolve().parent.parent)
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if ours not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([ours, *paths])
