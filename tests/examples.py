"""How many examples a property test draws: all it asks for in `thorough`, a fifth in `quick`, ten times as many in `search`."""

from typing import Any

from hypothesis import settings


def examples(n: int, **more: Any) -> settings:
    """`hypothesis.settings` of so many examples, scaled to the profile that is loaded (tests/conftest.py)."""
    return settings(max_examples=n * settings().max_examples // 100, **more)
