"""Imports without the garbage collector."""

import subprocess
import sys

_CHECK = """
import gc
from pipeline.importing import nothing_to_collect
with nothing_to_collect():
    assert not gc.isenabled()
    import json.tool
assert gc.isenabled()
frozen = gc.get_freeze_count()
assert frozen > 1000
class Own: pass
circle = Own(); circle.own = circle
del circle
try:
    with nothing_to_collect():
        raise ImportError("not there")
except ImportError:
    pass
assert gc.isenabled() and gc.get_freeze_count() == frozen  # what became garbage since is still collected
assert gc.collect() >= 1
gc.disable()
with nothing_to_collect():
    pass
assert not gc.isenabled()  # as it was
"""


def test_nothing_is_collected_meanwhile_and_all_is_as_before_afterwards() -> None:
    subprocess.run([sys.executable, "-c", _CHECK], check=True, timeout=60)
