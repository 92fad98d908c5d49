"""The commands ``elmo-store`` (``python -m elmo_store``) and ``elmo-store-worker``: put our packages first, then start the rest.

May import the standard library only. ``model``, ``transforms`` and ``pipeline`` are common names, and PYTHONPATH or the working
folder may well hold a ``model.py`` of the user's own; ``elmo_store`` is a name of ours, so the entry point lies here and starts
the rest by name once nothing can stand before it.
"""

import atexit
import importlib
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import NoReturn

# What a command may lack, by the first name of the import that failed → the extra that brings it.
EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(("apache_beam", "torch", "nltk", "h5py", "ijson", "tqdm", "shtab", "tomli_w"), "embed"),
    "matplotlib": "plot",
    **dict.fromkeys(("starlette", "uvicorn", "duckdb", "faiss"), "explore"),
    "s3fs": "s3",
    "gcsfs": "gcs",
    **dict.fromkeys(("aiohttp", "requests"), "http"),
}
OUR_FOLDER = str(Path(__file__).resolve().parent.parent)


def main() -> int:
    """Run the command line; returns the exit code. A module that an extra would bring is named together with the extra."""
    put_ours_first(sys.path, os.environ)
    try:
        cli = importlib.import_module("pipeline.cli")
        return int(cli.main())
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        remedy = f"pip install 'elmo-store[{EXTRAS[missing]}]'"
        print(f"elmo-store: this needs {missing}, which is not installed: {remedy}", file=sys.stderr)
        return 2


def command() -> NoReturn:
    """Run ``elmo-store`` and end the process, without taking PyTorch and Beam apart object by object, which takes seconds."""
    try:
        code = main()
    except SystemExit as ended:  # argparse: its code, or a message
        if isinstance(ended.code, str):
            raise
        code = int(ended.code or 0)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads any more; the interpreter's own code for it
        code = code or 120
    os._exit(code)


def worker() -> None:
    """Run ``elmo-store-worker``, the program that an engine starts on its machines."""
    put_ours_first(sys.path, os.environ)
    importlib.import_module("deploy.cluster.boot").main()


def put_ours_first(path: list[str], environment: MutableMapping[str, str]) -> None:
    """Put the folder that holds our packages first: on ``path``, and in ``environment`` for every process that inherits it.

    PYTHONSAFEPATH keeps the working folder off the path of those processes.
    """
    path[:] = [OUR_FOLDER, *(entry for entry in path if entry != OUR_FOLDER)]
    inherited = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != OUR_FOLDER]
    environment["PYTHONPATH"] = os.pathsep.join([OUR_FOLDER, *inherited])
    environment["PYTHONSAFEPATH"] = "1"


if __name__ == "__main__":
    command()
