"""Imported by the server that commands are forked from: all that a command imports, the first time that it needs it."""

import gc
import pkgutil
from importlib import import_module

import elmo_store
import model
import pipeline
import transforms

ABOUT_GPUS = ("triton", "cuda", "gpu")  # needs what this machine may not have
for package in (elmo_store, pipeline, model, transforms):
    for module in pkgutil.walk_packages(
        package.__path__, f"{package.__name__}.", onerror=lambda name: None
    ):
        if not module.name.endswith("__main__") and not any(
            word in module.name for word in ABOUT_GPUS
        ):
            import_module(module.name)
for name in (
    "apache_beam.runners.portability.fn_api_runner",
    "faiss",
    "h5py",
    "matplotlib.pyplot",
    "pandas",
    "torch",
    "xarray",
):
    import_module(name)
gc.freeze()  # a collection in a child touches no page that it shares
