"""For Beam's --setup_file and for the C file; all else stands in pyproject.toml. It must not import torch or Beam."""

from setuptools import Extension, setup


def extension(name: str, depends: list[str] | None = None) -> Extension:
    """A module in C, beside which Python or PyTorch does the same, slower, where there is no compiler."""
    return Extension(
        name,
        [f"{name.replace('.', '/')}.c"],
        depends=depends or [],
        # Contraction off: the same operations, and so the same bytes, for every instruction set.
        extra_compile_args=["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        optional=True,
    )


setup(
    ext_modules=[
        extension("model.engine._lstm", ["model/engine/_lstm_kernels.h"]),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel a platform for every Python from 3.11 on
)
