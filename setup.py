"""For Beam's --setup_file and for the one C file; all else stands in pyproject.toml. It must not import torch or Beam."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "model.engine._cell",
            ["model/engine/_cell.c"],
            depends=["model/engine/_cell_kernels.h"],
            # Contraction off: the same operations, and so the same bytes, for every instruction set.
            extra_compile_args=["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,  # without a compiler the engine computes the cell with PyTorch, slower
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel a platform for every Python from 3.11 on
)
