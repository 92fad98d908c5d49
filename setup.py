"""For Beam's --setup_file and for the C files; all else stands in pyproject.toml. It must not import torch or Beam."""

from setuptools import Extension, setup


def extension(name: str, depends: list[str]) -> Extension:
    """A module of the engine; without a compiler PyTorch or NumPy computes the same, slower."""
    return Extension(
        f"model.engine.{name}",
        [f"model/engine/{name}.c"],
        depends=depends,
        # Contraction off: the same operations, and so the same bytes, for every instruction set.
        extra_compile_args=["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        optional=True,
    )


setup(
    ext_modules=[extension("_cell", ["model/engine/_cell_kernels.h"]), extension("_layout", [])],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel a platform for every Python from 3.11 on
)
