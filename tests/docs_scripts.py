"""Runs the scripts that it is named, each in a fork of this process, which has imported torch; a fork ends as a script does.

A script's standard error goes to SCRIPT.err, its exit status to SCRIPT.status.
"""

import os
import sys

import torch  # noqa: F401 - which keeps objects until modules are gone

for script in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        errors = os.open(f"{script}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(errors, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        with open(script, encoding="utf-8") as file:
            program = compile(file.read(), script, "exec")
        break
    _, status = os.waitpid(pid, 0)
    with open(f"{script}.status", "w", encoding="utf-8") as file:
        file.write(str(os.waitstatus_to_exitcode(status)))
else:
    program = compile("", "<no more scripts>", "exec")

exec(program)
