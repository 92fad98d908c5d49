"""What `pipeline.main` asks of a subcommand. A module of `pipeline.commands` has them by name, as ``COMMANDS``."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.cli.locations import Touched


@dataclass(frozen=True)
class Command:
    add_arguments: Callable[[argparse.ArgumentParser], None]  # declares its options
    run: Callable[
        [argparse.Namespace], int
    ]  # does it and returns the exit code; Apache Beam's options are ``args.beam_args``
    touches: Callable[
        [argparse.Namespace], Touched
    ]  # what it reads and writes, checked before anything large is imported
    check: Callable[[argparse.Namespace], object] = lambda _: (
        None
    )  # raises CommandError for options that make no sense together
    epilog: str = ""  # of its help
    takes_beam_options: bool = False  # options that Apache Beam knows are set apart for it
