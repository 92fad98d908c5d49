"""``elmo-store verify URL``: is a store what it says? Reads every object and reports every fault."""

import argparse
import json
import sys
import threading
from typing import TYPE_CHECKING, Any

from elmo_store.storage.location import Location
from pipeline.cli import locations
from pipeline.cli.arguments import add_storage_options
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.locations import Touched
from pipeline.cli.terminal import drawable, in_line

if TYPE_CHECKING:
    from elmo_store.checking.verify import VerifyReport

EPILOG = """\
Without an option every object is read and compared with the size and SHA-256 that stand in its marker or in the manifest.
--deep also decodes all of it and compares what the objects say with one another: sentences, tokens, rows, ids, both forms.
--recompute embeds a random sample of the sentences again with the store's model and compares the vectors."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``verify``."""
    parser.epilog = f"{EPILOG}\n\n{parser.epilog or ''}"
    parser.add_argument("url", metavar="URL", help="a complete store; any fsspec URL")
    parser.add_argument("--deep", action="store_true", help="also compare the objects with one another (default: off)")
    parser.add_argument(
        "--recompute", type=int, default=0, metavar="N", help="embed N random sentences again and compare (default: 0)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random choice of sentences (default: 0)")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="where the model of --recompute is (default: the packaged one, or one in this folder, of its name)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON (default: text)")
    add_storage_options(parser, "the URL")
    parser.add_argument("--quiet", action="store_true", help="no progress (default: off)")


def check(args: argparse.Namespace) -> None:
    """CommandError for a folder that is not there, or a sample of fewer than no sentences."""
    locations.check_store(args.url)
    if args.recompute < 0:
        raise CommandError(Exit.BAD_USAGE, f"--recompute {args.recompute}: give the number of sentences, 1 or more")


def touches(args: argparse.Namespace) -> Touched:
    """Store and model."""
    return Touched([Location("store", args.url, args.storage_options), *locations.model(args.model)])


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Verify, print the report; 0 for a sound store, 6 for a damaged one. CommandError for what is no complete store."""
    from elmo_store.checking.verify import Fault, verify
    from elmo_store.errors import ManifestError, StoreError, StoreIncompleteError, StoreNotFoundError, StoreReplacedError
    from elmo_store.store import open as open_store

    try:
        store = open_store(args.url, storage_options=args.storage_options)
    except StoreNotFoundError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    except StoreIncompleteError as error:
        raise CommandError(Exit.INCOMPLETE, str(error)) from error
    except ManifestError as error:  # damage where everything begins
        print(f"damaged: {error}")
        return Exit.DAMAGED
    except (StoreError, OSError, ImportError) as error:
        raise CommandError(Exit.BAD_LOCATION, f"{args.url} can't be read: {error}") from error
    try:
        report = verify(store, deep=args.deep, progress=None if args.quiet else _Progress())
    except StoreReplacedError as error:
        raise CommandError(Exit.BAD_LOCATION, str(error)) from error
    faults = list(report.faults)
    recomputed: dict[str, Any] = {}
    if args.recompute:
        from pipeline.jobs.recompute import RecomputeError, recompute

        try:
            result = recompute(store, args.recompute, model=args.model, seed=args.seed)
        except RecomputeError as error:
            raise CommandError(Exit.BAD_USAGE, str(error)) from error
        recomputed = {"sentences": result.n_sentences, "same_bytes": result.n_equal, "largest_difference": result.largest}
        faults += [Fault(text) for text in result.faults]
    print(
        json.dumps(_as_json(args.url, report, faults, recomputed), indent=2)
        if args.json
        else _as_text(report, faults, recomputed)
    )
    return Exit.DAMAGED if faults else Exit.COMPLETE


def _as_json(url: str, report: "VerifyReport", faults: list[Any], recomputed: dict[str, Any]) -> dict[str, Any]:
    return {
        "url": url,
        "sound": not faults,
        "deep": report.deep,
        "shards": report.shards,
        "sentences": report.sentences,
        "objects": report.objects,
        "bytes": report.bytes,
        "recomputed": recomputed or None,
        "faults": [fault.text for fault in faults],
    }


def _as_text(report: "VerifyReport", faults: list[Any], recomputed: dict[str, Any]) -> str:
    from pipeline.cli.terminal import human_bytes

    how = "read, compared with their hashes and with one another" if report.deep else "read and compared with their hashes"
    lines = [in_line(fault.text) for fault in faults]
    lines.append(
        f"{'damaged' if faults else 'sound'}: {report.objects:,} objects of {human_bytes(report.bytes)} {how}; "
        f"{report.sentences:,} sentences in {report.shards:,} shards; {len(faults):,} faults"
    )
    if recomputed:
        lines.append(
            f"recomputed: {recomputed['sentences']} sentences, {recomputed['same_bytes']} with the same bytes, "
            f"largest difference {recomputed['largest_difference']:g}"
        )
    return "\n".join(lines)


class _Progress:
    """Bytes read so far, on a line of the terminal; nothing where there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = self._shown = 0

    def __call__(self, n_bytes: int) -> None:
        from pipeline.cli.terminal import human_bytes

        with self._lock:
            self._bytes += n_bytes
            if sys.stderr.isatty() and self._bytes - self._shown > 1 << 26:
                self._shown = self._bytes
                print(f"\r{human_bytes(self._bytes)} read", end="\r", file=drawable(sys.stderr), flush=True)
