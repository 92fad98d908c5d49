"""The scalar mix of ELMo, and files with its learned weights."""

from typing import Literal, get_args

Pool = Literal["mean", "max", "first", "last"]  # how several rows become one vector; here, as options' names load no NumPy
POOLS: tuple[Pool, ...] = get_args(Pool)
