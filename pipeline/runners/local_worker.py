"""Beam's worker process on this machine, whose start says nothing on the user's screen.

Beam's imports log through a root logger that has no handler yet, which makes Python give it one that writes to the screen; with
one that says nothing, what workers log goes to the job's own process alone, as Beam means it.
"""

import logging
import sys

from pipeline.cli.importing import nothing_to_collect


def main() -> None:
    """Run the worker, whose addresses stand in the environment."""
    logging.getLogger().addHandler(logging.NullHandler())

    with nothing_to_collect():
        from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)
