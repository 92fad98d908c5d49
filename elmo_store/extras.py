"""The extras of this package, and the error that names the one to install.

It needs the standard library only: the command line looks here when an import has failed.
"""

from collections.abc import Mapping

from elmo_store.errors import MissingPackageError

# The first name of the module that can't be imported → the extra that brings it.
EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(("apache_beam", "torch", "nltk"), "embed"),
    "h5py": "export",
    "matplotlib": "plot",
    "prometheus_client": "metrics",
    **dict.fromkeys(("starlette", "uvicorn", "sklearn"), "explore"),
    "s3fs": "s3",
    "gcsfs": "gcs",
    "adlfs": "azure",
    **dict.fromkeys(("aiohttp", "requests"), "http"),
    "huggingface_hub": "hf",
}


def missing_package(error: ImportError, what: str = "this") -> MissingPackageError | None:
    """Return the error that names the package which ``what`` needs, and the extra that brings it.

    fsspec raises an ImportError of its own words from the one that names the module, so the causes are searched too. Returns None
    if no extra brings the module.
    """
    cause: BaseException | None = error
    while cause is not None:
        module = cause.name if isinstance(cause, ImportError) else None
        package = (module or "").partition(".")[0]
        if package in EXTRAS:
            return MissingPackageError(
                f"{what} needs {package}, which is not installed: "
                f"pip install '.[{EXTRAS[package]}]' in elmo-store's checkout"
            )
        cause = cause.__cause__
    return None
