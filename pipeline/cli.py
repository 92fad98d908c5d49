"""The command ``elmo-store``: a table of subcommands, each in a module of its own that is imported when it is asked for.

A command module has ``add_arguments(parser)`` and ``run(args, beam_args) -> int``; if it sets ``TAKES_BEAM_OPTIONS =
True``, options that Apache Beam knows are set apart for it, otherwise ``beam_args`` is empty. May import pipeline
modules, lazily.
"""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from pipeline.exit_codes import CommandError, Exit

COMMANDS = {  # name: (module, one line of help)
    "embed": ("pipeline.embed_command", "compute every state of every token of a corpus into a store"),
    "mix": ("pipeline.mix_command", "mix a store's layers with learned weights into another store"),
    "info": ("pipeline.info_command", "what a store holds, and how to open it"),
    "watch": ("pipeline.watch_command", "progress of a running job, from its store alone"),
    "models": ("pipeline.models_command", "the models that can be asked for by name"),
    "train": ("pipeline.train_command", "train a biLM on raw text"),
    "probe": ("pipeline.probe_command", "measure what a model's layers know with a linear probe"),
}

EXIT_CODES = """\
exit codes: 0 complete · 2 bad usage · 3 an input, output or store location that can't be used ·
            4 incomplete, the same command again continues · 5 refused, another job stands on that output"""


def package_version() -> str:
    """The installed version of elmo-store, "unknown" when it runs from a checkout that was never installed."""
    try:
        return version("elmo-store")
    except PackageNotFoundError:
        return "unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (argparse ends the process itself, with 2, on bad usage)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="elmo-store",
        description="Every layer of a frozen ELMo biLM, computed once over a whole corpus and kept in Zarr and Parquet.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"elmo-store {package_version()}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    command = None
    for name, (module, line) in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=line, description=line[0].upper() + line[1:] + ".", epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip
        if name == asked:  # only this one is imported: `elmo-store --help` need not wait for torch and Beam
            command = importlib.import_module(module)
            command.add_arguments(subparser)
    beam_args: list[str] = []
    if command is not None and getattr(command, "TAKES_BEAM_OPTIONS", False):
        logging.getLogger().addFilter(_is_news)  # before the import: Beam talks while it is imported
        from pipeline.beam_options import split_arguments

        arguments, beam_args = split_arguments(arguments)
    args = parser.parse_args(arguments)
    if command is None:
        parser.error(f"no command {asked!r}")
    try:
        return int(command.run(args, beam_args))
    except CommandError as error:
        print(f"elmo-store {args.command}: {error}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command again continues", file=sys.stderr)
        return int(Exit.INCOMPLETE)
    except BrokenPipeError:  # `elmo-store info … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.COMPLETE)


def _is_news(record: logging.LogRecord) -> bool:
    """False for what Beam says on the root logger about optional packages that nothing here needs."""
    return not record.getMessage().startswith(("apitools not found", "Resource module is not available"))


if __name__ == "__main__":
    sys.exit(main())
