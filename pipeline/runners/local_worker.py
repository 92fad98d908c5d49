"""Beam's worker process on this machine, which says nothing on the user's screen but errors.

Beam's imports log through a root logger that has no handler yet, which makes Python give it one that writes to the screen; with
one that says nothing, what workers log goes to the job's own process alone, as Beam means it.
"""

import json
import logging
import os
import sys


def main() -> None:
    """Run the worker, whose addresses stand in the environment, at the log level that is its argument."""
    logging.getLogger().addHandler(logging.NullHandler())
    os.environ["PIPELINE_OPTIONS"] = json.dumps({"options": {"default_sdk_harness_log_level": sys.argv[1]}})

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)
