"""The commands ``elmo-store`` (``python -m elmo_store``) and ``elmo-store-worker``: put our packages first, start the rest."""

import atexit
import importlib
import logging
import os
import sys
from typing import NoReturn

from elmo_store.extras import missing_package
from elmo_store.own_packages import put_ours_first


def main() -> int:
    """Run the command line; returns the exit code. A module that an extra would bring is named together with the extra."""
    put_ours_first(sys.path, os.environ)
    try:
        cli = importlib.import_module("pipeline.main")
        return int(cli.main())
    except KeyboardInterrupt:  # before the command can say it
        print("\nstopped by Ctrl-C", file=sys.stderr)
        return 4
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        if missing is None:
            raise
        print(f"elmo-store: {missing}", file=sys.stderr)
        return 2


def command() -> NoReturn:
    """Run ``elmo-store`` and end the process, without taking PyTorch and Beam apart object by object, which takes seconds."""
    try:
        code = main()
    except SystemExit as ended:  # argparse: its code, or a message
        if isinstance(ended.code, str):
            raise
        code = int(ended.code or 0)
    _end_process(code)


def _end_process(code: int) -> NoReturn:
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # nobody reads any more
        pass
    except OSError as error:  # a full disk
        if code == 0:
            print(f"elmo-store: {error}", file=sys.stderr)
        code = code or 3
    os._exit(code)


def worker() -> NoReturn:
    """Run ``elmo-store-worker``, the program that an engine starts on its machines; it ends at once, as `local_worker` does."""
    put_ours_first(sys.path, os.environ)
    _end_process(importlib.import_module("deploy.cluster.boot").main())


def local_worker() -> NoReturn:
    """Run the program that a local runner starts for each of its processes, and end it at once.

    A thread that computes while the interpreter is taken apart, as after Ctrl-C, would abort the process with a message of C++'s.
    Its log goes to the job's own process: Beam's imports would have Python write it to the screen too, where no handler is yet.
    """
    put_ours_first(sys.path, os.environ)
    logging.getLogger().addHandler(logging.NullHandler())
    importlib.import_module("apache_beam.runners.worker.sdk_worker_main").main(sys.argv)
    _end_process(0)


if __name__ == "__main__":
    command()
