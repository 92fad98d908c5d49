"""What `pipeline.main` asks of a subcommand. A module of `pipeline.commands` has them by name, as ``COMMANDS``."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.cli.locations import Touched


@dataclass(frozen=True)
class Command:
    """A subcommand of ``elmo-store``.

    Attributes:
        add_arguments: declares its options.
        run: does it and returns the exit code; Apache Beam's options are ``args.beam_args``.
        touches: what it reads and writes, checked before anything large is imported.
        check: raises CommandError for options that make no sense together.
        epilog: of its help.
        takes_beam_options: options that Apache Beam knows are set apart for it.
    """

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    touches: Callable[[argparse.Namespace], Touched] = lambda _: Touched()
    check: Callable[[argparse.Namespace], None] = lambda _: None
    epilog: str = ""
    takes_beam_options: bool = False
