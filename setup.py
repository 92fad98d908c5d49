"""For Beam's --setup_file and for the C file; all else stands in pyproject.toml. It must not import torch or Beam."""

from setuptools import Extension, setup

CELL = Extension(
    "model.engine._lstm",
    ["model/engine/_lstm.c"],
    depends=["model/engine/_lstm_kernels.h"],
    # Contraction off: the same operations, and so the same bytes, for every instruction set.
    extra_compile_args=["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
    optional=True,  # PyTorch does the same, slower, where there is no compiler
)

setup(
    ext_modules=[CELL],
    options={
        "bdist_wheel": {"py_limited_api": "cp311"}
    },  # one wheel a platform for every Python from 3.11 on
)
