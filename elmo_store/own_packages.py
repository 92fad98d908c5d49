"""Where our packages stand on `sys.path`: after the standard library, before all else. The one place that moves them there.

``model``, ``transforms`` and ``pipeline`` are common names: PYTHONPATH or the working folder may well hold a ``model.py`` of the
user's own. ``elmo_store`` is a name of ours, so the rest is started from here, by name. Installed, our packages lie in
site-packages, where any package may have a module of the standard library's name: that library stays first.
"""

import importlib
import os
import site
import sys
import sysconfig
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

OUR_FOLDER = str(Path(__file__).resolve().parent.parent)
ROOMS = ("model", "transforms", "pipeline")


def put_ours_first(path: list[str], environment: MutableMapping[str, str]) -> None:
    """Order ``path`` for good: of a process that is ours alone.

    A checkout also goes first in ``environment``, for the processes that inherit it; what is installed they find, and begin here
    themselves. PYTHONSAFEPATH keeps the working folder off their path.
    """
    path[:] = _ordered(path)
    inherited = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if OUR_FOLDER not in {
        *site.getsitepackages(),
        site.getusersitepackages(),
    }:  # every interpreter looks into those by itself
        inherited = [OUR_FOLDER, *(entry for entry in inherited if entry != OUR_FOLDER)]
    if inherited:
        environment["PYTHONPATH"] = os.pathsep.join(inherited)
    environment["PYTHONSAFEPATH"] = "1"


def import_ours(module: str) -> Any:
    """Import a module of ours in a process of the user's own, whose path is afterwards what it was.

    ImportError: the extra is not installed, or a module of the user's own was imported under the name of one of our packages.
    """
    for package in ROOMS:
        imported = sys.modules.get(package)
        if imported is not None and not str(
            getattr(imported, "__file__", None) or OUR_FOLDER
        ).startswith(OUR_FOLDER):
            raise ImportError(
                f"{imported.__file__} was imported as {package}, the name of a package of elmo-store: rename it"
            )
    theirs = list(sys.path)
    sys.path[:] = _ordered(theirs)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        remedy = "pip install '.[embed]' in elmo-store's checkout"
        raise ImportError(f"embed needs {error.name}, which is not installed: {remedy}") from error
    finally:
        sys.path[:] = theirs


def _ordered(path: Sequence[str]) -> list[str]:
    """The standard library (folders, or a zip), our folder, the rest."""
    library = sysconfig.get_path("stdlib")
    libraries = (
        library,
        sysconfig.get_path("platstdlib"),
        f"{library}/lib-dynload",
        f"{library.replace('.', '')}.zip",
    )
    standard = [entry for entry in path if entry in libraries]
    return [
        *standard,
        OUR_FOLDER,
        *(entry for entry in path if entry != OUR_FOLDER and entry not in standard),
    ]
