"""Where a model's files are: a folder, a file, or any fsspec URL of these, copied to a cache when remote.

The cache is `$ELMO_STORE_CACHE`, or `elmo-store` in `$XDG_CACHE_HOME` or ~/.cache. An entry is named by a hash of its
URL and of what the server says about the object's version (an HTTP server: nothing, so that a cached copy stays), and
appears whole or not at all.
"""

import hashlib
import logging
import os
import posixpath
import re
import shutil
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmo_store.errors import BucketNotFoundError
from elmo_store.storage.failures import translate_error
from model.errors import ModelError, UnknownModelError, WeightsError

_LOG = logging.getLogger(__name__)

_WEIGHT_NAMES = (
    "weights.safetensors",
    "weights.hdf5",
    "model.hdf5",
)  # model.hdf5: the NLPL repository's name
_UNSAFE = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".npy", ".npz")

# Other programs' models, which `elmo-store models convert` turns into ours
MANYLANGS = "a model of ELMoForManyLangs"
CHECKPOINT = "a checkpoint of bilm-tf's training"


def foreign_kind(names: Collection[str]) -> str | None:
    """Whose model the files of a folder are; None where they are weights that need no conversion, or of no kind."""
    if any(name.endswith((".hdf5", ".safetensors")) for name in names):
        return None
    if {"token_embedder.pkl", "encoder.pkl"} <= set(names):
        return MANYLANGS
    return CHECKPOINT if any(name.endswith(".index") for name in names) else None


@contextmanager
def _reaching(url: str, filesystem: Any) -> Iterator[None]:
    """Errors of a remote filesystem become UnknownModelError, but for an OSError where it can't be reached, or denies access."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if _is_local(filesystem):
            raise
        cause = translate_error(error, url)
        if isinstance(cause, ConnectionError | PermissionError | BucketNotFoundError):
            raise cause from None
        raise UnknownModelError(
            f"{url} can't be read ({type(cause).__name__}: {cause}); check address, network and credentials"
        ) from error


def _missing(filesystem: Any, path: str, what: str) -> UnknownModelError:
    """Return the error for ``path``, where nothing was found.

    ``exists`` and its like take any failure for a no, so the filesystem is asked once more. What keeps
    it from answering is raised as it is: `_reaching` translates it, and a message that is translated
    twice repeats itself.
    """
    try:
        filesystem.info(path)
    except Exception as error:
        if not isinstance(translate_error(error, path), FileNotFoundError):
            raise
    return UnknownModelError(f"there is no {what}")


def fetch(url: str) -> Path:
    """The local path of one file, copied to the cache when remote. UnknownModelError if it is not there."""
    filesystem, path = _filesystem(url)
    with _reaching(url, filesystem):
        if not filesystem.isfile(path):
            raise _missing(filesystem, path, f"file {url}")
        return _fetch(filesystem, path)


def find(folder_or_url: str) -> tuple[Path, Path | None]:
    """Find a model's files, bring them to a local disk, and return the paths of weights and options (None: there are none).

    ``folder_or_url``: a folder or a weights file (.safetensors or .hdf5), as a local path or any fsspec URL. UnknownModelError:
    nothing is there. WeightsError: a file in a format that can run code when read, or a folder without weights.
    """
    filesystem, path = _filesystem(folder_or_url)
    with _reaching(folder_or_url, filesystem):
        weights, options = _find(folder_or_url, filesystem, path.rstrip("/"))
        return _fetch(filesystem, weights), None if options is None else _fetch(filesystem, options)


def _find(folder_or_url: str, filesystem: Any, path: str) -> tuple[str, str | None]:
    folder, name = posixpath.split(path)
    suffix = posixpath.splitext(name)[1].lower()
    if suffix in _UNSAFE:
        raise WeightsError(
            f"{folder_or_url} is a {suffix} file; such files can hold code: convert it"
        )
    if suffix == ".zip":
        raise WeightsError(f"{folder_or_url} is a zip: unpack it and name the folder")
    if suffix in (".safetensors", ".hdf5"):
        if not filesystem.exists(path):
            raise _missing(filesystem, path, f"file {folder_or_url}")
        # X_weights….hdf5 has X_options.json beside it, as published, or options.json
        beside = (re.sub(r"weights[^/]*$", "options.json", name), "options.json")
        candidates = [posixpath.join(folder, other) for other in beside if other != name]
        return path, next(
            (candidate for candidate in candidates if filesystem.exists(candidate)), None
        )
    names = _names(filesystem, path)
    if not names and not filesystem.isdir(path):
        raise _missing(filesystem, path, f"folder {folder_or_url}")
    weights = _choose(names, _WEIGHT_NAMES, r".*weights.*\.(safetensors|hdf5)") or _choose(
        names, (), r".*\.safetensors"
    )
    if weights is None:
        if kind := foreign_kind(names):
            source = "LOCAL_COPY" if "://" in folder_or_url else folder_or_url
            raise WeightsError(
                f"{folder_or_url} holds {kind}: run `elmo-store models convert {source} FOLDER` once and give FOLDER"
            )
        raise WeightsError(
            f"{folder_or_url} holds no weights that can be recognised: it needs options.json and one of "
            f"{', '.join(_WEIGHT_NAMES[:2])}, and holds {', '.join(sorted(names)[:10]) or 'nothing'}"
        )
    options = _choose(names, ("options.json",), r".*options.*\.json")
    return f"{path}/{weights}", options and f"{path}/{options}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path``, which takes its place at the end: the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def cache_folder() -> Path:
    if chosen := os.environ.get("ELMO_STORE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "elmo-store"


def _filesystem(url: str) -> tuple[Any, str]:
    from elmo_store.storage.filesystems import open_filesystem

    try:
        filesystem, path = open_filesystem(url)
    except ValueError as error:
        raise UnknownModelError(f"{url} can't be opened: {error}") from error
    return filesystem, path


def _is_local(filesystem: Any) -> bool:
    return "file" in (
        (filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol
    )


def _names(filesystem: Any, folder: str) -> list[str]:
    """Names in a folder; none if there is no such folder."""
    try:
        entries = filesystem.ls(folder, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [posixpath.basename(str(entry).replace(os.sep, "/")) for entry in entries]


def _choose(names: list[str], preferred: tuple[str, ...], pattern: str) -> str | None:
    """The first preferred name that is there, else the only one that fits the pattern."""
    for name in preferred:
        if name in names:
            return name
    fitting = [name for name in names if re.fullmatch(pattern, name)]
    return fitting[0] if len(fitting) == 1 else None


def _fetch(filesystem: Any, path: str) -> Path:
    if _is_local(filesystem):
        return Path(path)
    version = f"{filesystem.unstrip_protocol(path)} {filesystem.ukey(path)}"
    target = (
        cache_folder()
        / hashlib.sha256(version.encode()).hexdigest()[:24]
        / posixpath.basename(path)
    )
    if not target.exists():
        _LOG.info("downloading %s to %s", filesystem.unstrip_protocol(path), target)
        with (
            replacing(target) as temporary,
            temporary.open("wb") as local,
            filesystem.open(path, "rb") as remote,
        ):
            shutil.copyfileobj(remote, local, 1 << 20)
    return target
