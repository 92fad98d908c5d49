"""Values of types that several threads meet for the first time at once: msgspec alone crashes the process, see its module."""

import subprocess
import sys

SCRIPT = """
import sys, threading
from dataclasses import make_dataclass
from elmo_store.storage.json_values import convert

sys.setswitchinterval(1e-6)
for _ in range(60):
    inner = make_dataclass("Inner", [(f"a{i}", int) for i in range(30)])
    kind = make_dataclass("Kind", [(f"f{i}", inner) for i in range(8)])
    value = {f"f{i}": {f"a{j}": j for j in range(30)} for i in range(8)}
    begin = threading.Barrier(4)

    def meet():
        begin.wait()
        assert convert(value, kind).f7.a29 == 29

    threads = [threading.Thread(target=meet) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print("whole")
"""


def test_threads_may_meet_a_type_at_once() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "whole\n"), ran.stderr
