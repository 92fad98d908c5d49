"""The scripts ``deploy.ENGINE.run``: an engine's own options, then an ``elmo-store`` command, run as a process of its own."""

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from deploy.cluster.processes import ClusterError, worker_environment

Configure = Callable[[argparse.ArgumentParser], None]
OptionsFor = Callable[[argparse.Namespace, Path, ExitStack], Sequence[str]]
NO_ENGINE = 3  # as elmo-store's own code for a location that can't be used


def run_on_engine(prog: str, description: str | None, configure: Configure, options_for: OptionsFor) -> int:
    """Parse, bring the engine up, run the command, stop the engine; returns the command's exit code, 3 without an engine.

    Args:
        prog: the script as its user calls it, ``deploy.flink.run``.
        description: the script's docstring.
        configure: adds the engine's own options.
        options_for: (options, folder for files and logs, stack that ends what was started) → Beam's options.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {prog}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    configure(parser)
    parser.add_argument(
        "--logs", metavar="FOLDER", help="keep the engine's files and logs there (default: a folder that is removed)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="embed …, mix …: a command of elmo-store with its options")
    args = parser.parse_args()
    if not args.command:
        parser.error("name the command to run, such as: embed INPUT --output URL")
    signal.signal(signal.SIGTERM, _leave)
    with ExitStack() as stack:
        if args.logs:
            folder = Path(args.logs).absolute()
            folder.mkdir(parents=True, exist_ok=True)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elmo-store-engine-")))
        try:
            options = options_for(args, folder, stack)
        except ClusterError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return NO_ENGINE
        return run_command([*args.command, *options])


def run_command(arguments: Sequence[str]) -> int:
    """``elmo-store`` to its end in a process of its own; returns its exit code.

    Ctrl-C in a terminal reaches it as well as us: it cancels its job and says so, and is waited for.
    """
    process = subprocess.Popen([sys.executable, "-m", "elmo_store", *arguments], env=worker_environment())
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
    finally:
        if process.poll() is None:  # we were told to end: so is it, with the chance to cancel its job
            process.send_signal(signal.SIGINT)
            process.wait()


def _leave(number: int, _: FrameType | None) -> None:
    """SIGTERM ends the script as an exception does, so that what it started is stopped."""
    raise SystemExit(128 + number)
