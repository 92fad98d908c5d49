"""The commands ``elmo-store`` (``python -m elmo_store``) and ``elmo-store-worker``: put our packages first, then start the rest.

``model``, ``transforms`` and ``pipeline`` are common names, and PYTHONPATH or the working folder may well hold a ``model.py``
of the user's own; ``elmo_store`` is a name of ours, so the entry point lies here and starts the rest by name once nothing can
stand before it.
"""

import atexit
import importlib
import os
import site
import sys
import sysconfig
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import NoReturn

# What a command may lack, by the first name of the import that failed → the extra that brings it.
EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(("apache_beam", "torch", "nltk", "h5py", "ijson"), "embed"),
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
        cli = importlib.import_module("pipeline.main")
        return int(cli.main())
    except KeyboardInterrupt:  # before the command can say it
        print("\nstopped by Ctrl-C", file=sys.stderr)
        return 4
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        remedy = f"pip install '.[{EXTRAS[missing]}]' in elmo-store's checkout"
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
    """
    put_ours_first(sys.path, os.environ)
    importlib.import_module("pipeline.runners.local_worker").main()
    _end_process(0)


def put_ours_first(path: list[str], environment: MutableMapping[str, str]) -> None:
    """Put the folder that holds our packages before everything but the standard library on ``path``.

    Installed, that folder is site-packages, where any package may have a module of the standard library's name. A checkout also
    goes first in ``environment``, for the processes that inherit it; what is installed they find, and begin here themselves.
    PYTHONSAFEPATH keeps the working folder off their path.
    """
    standard = [entry for entry in path if _is_standard(entry)]
    path[:] = [*standard, OUR_FOLDER, *(entry for entry in path if entry != OUR_FOLDER and entry not in standard)]
    inherited = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if OUR_FOLDER not in {*site.getsitepackages(), site.getusersitepackages()}:  # every interpreter looks into those by itself
        inherited = [OUR_FOLDER, *(entry for entry in inherited if entry != OUR_FOLDER)]
    if inherited:
        environment["PYTHONPATH"] = os.pathsep.join(inherited)
    environment["PYTHONSAFEPATH"] = "1"


def _is_standard(entry: str) -> bool:
    """Whether a folder (or zip) on the path is the interpreter's own."""
    libraries = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    zipped = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    folder, name = os.path.split(entry)
    return (
        entry in libraries
        or (name == "lib-dynload" and folder in libraries)
        or (name == zipped and folder in {os.path.dirname(library) for library in libraries})
    )


if __name__ == "__main__":
    command()
