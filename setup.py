"""For Beam's --setup_file: everything that matters stands in pyproject.toml. It must not import torch or Beam."""

from setuptools import setup

setup()
