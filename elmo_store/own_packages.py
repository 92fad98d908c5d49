"""Where our packages stand on `sys.path`: after the standard library, before all else. The one place that moves them there.

``model``, ``transforms`` and ``pipeline`` are common names, and it is we who take them: PYTHONPATH or the working folder may
well hold a ``model.py`` of the user's own. ``elmo_store`` is a name of ours, so the rest is started from here, by name.
Installed, our packages lie in site-packages, where any package may have a module of the standard library's name: that library
stays first.
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
        place = _place_of(package)
        ours = Path(OUR_FOLDER, package).resolve()
        if place is not None and not Path(place).resolve().is_relative_to(ours):
            # We took these names, so we don't ask for another one first.
            raise ImportError(
                f"this process has imported {place} as {package}, a name that elmo-store takes for a package of its own, and "
                "Python has one module of each name. Nothing needs to be renamed if the vectors are computed in another "
                'process: run `elmo-store embed FILE --output STORE`, then read elmo_store.open("STORE") here.'
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


def _place_of(package: str) -> str | None:
    """Return the file of a module that was imported, or the folder of a package that has none; None if there is none."""
    imported = sys.modules.get(package)
    if imported is None:
        return None
    folders = list(getattr(imported, "__path__", []))  # of a folder without __init__.py
    file = getattr(imported, "__file__", None)
    return str(file or (folders[0] if folders else imported))


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
