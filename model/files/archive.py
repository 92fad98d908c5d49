"""Zips of models: the NLPL repository's (`model.hdf5`, `options.json`), and ELMoForManyLangs'. Imports the standard library.

Only those files are taken out, under names of our own, and no more bytes than the zip's index says they have.
"""

import posixpath
import shutil
import zipfile
from pathlib import Path

from model.errors import WeightsError
from model.files import manylangs

_WEIGHTS = ("model.hdf5", "weights.hdf5", "weights.safetensors")
_MOST_BYTES = 1 << 33  # of a member: the largest published weights take 375 MB


def unpack(path: Path, folder: Path, shown: str) -> None:
    """Take weights and options out of the zip ``path`` into ``folder``; ``shown`` is what messages call it.

    Raises:
        WeightsError: not a zip, or without them.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {posixpath.basename(name): name for name in archive.namelist() if name.count("/") <= 1}
            if manylangs.stands_in(members):
                # its configuration, where the zip has it, stands under a name that config.json says
                configurations = [name for name in members if name.endswith(".json")]
                for name in {*manylangs.FILES, *manylangs.MAY_HAVE, *configurations} & set(members):
                    _extract(archive, members[name], folder / name, shown)
                return
            weights = next((name for name in _WEIGHTS if name in members), None)
            if weights is None or (weights.endswith(".hdf5") and "options.json" not in members):
                raise WeightsError(
                    f"{shown} holds {', '.join(sorted(members)[:10]) or 'nothing'}: a model's zip has model.hdf5 and options.json"
                )
            for name in {weights, "options.json"} & set(members):
                _extract(archive, members[name], folder / name, shown)
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        OSError,
    ) as error:  # damaged, encrypted, another method
        raise WeightsError(f"{shown} can't be read as a zip ({error})") from error


def _extract(archive: zipfile.ZipFile, member: str, target: Path, shown: str) -> None:
    size = archive.getinfo(member).file_size
    if size > _MOST_BYTES:
        raise WeightsError(f"{shown}: {member} says that it has {size:,} bytes, more than any biLM")
    with archive.open(member) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
