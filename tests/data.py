"""Where goldens, corpus and evaluation sets lie, and how the goldens are had: ``python -m tests.data goldens``.

One setting names the folder: ELMO_STORE_DATA, by default `data` in the cache (elmo-store in $XDG_CACHE_HOME or ~/.cache).
docs/development/data.md says what belongs there.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from model.files.locate import cache_folder

PACKAGE = "allennlp==0.9.0"  # the last release with its test fixtures in the wheel; Apache-2.0
FIXTURES = "allennlp/tests/fixtures/elmo/"
SHA256 = {
    "lm_embeddings_0.hdf5": "ebeee87fe246cacc2dd4b6b109537cd03bf45c8f5402d3570be7c57ddcb6ea21",
    "lm_embeddings_1.hdf5": "3c1547698ac31d92e2965a555656f0f4680b83ab4ab0a54958646bcbb0f00da0",
    "lm_embeddings_2.hdf5": "b10dabcc36b9461cb49a4ea20b01f395c779df340963fa66cf053b8c99f8f676",
    "lm_weights.hdf5": "dfdfd3001b5965b4b6ef857ac772b6624984f8248eaae08fb9be6d1b51ad8755",
    "options.json": "117cb6d2fb87b8485aa750ef299fa88cc4881f4bead731ea56aec8e944da580d",
    "sentences.json": "f3103518aaf930b32a08209dded69c76ad41bb8e4d99446701ac87e47d76aa1d",
}


def data_folder() -> Path:
    """$ELMO_STORE_DATA, or `data` in the cache."""
    named = os.environ.get("ELMO_STORE_DATA")
    return Path(named).expanduser() if named else cache_folder() / "data"


def unpack(wheel: Path, folder: Path) -> None:
    """The goldens out of the wheel into the folder, each checked before any is written.

    Raises:
        ValueError: a file is missing or is not the one that the tests were made with.
    """
    contents = {}
    with zipfile.ZipFile(wheel) as archive:
        for name, digest in SHA256.items():
            try:
                contents[name] = archive.read(FIXTURES + name)
            except KeyError as error:
                raise ValueError(
                    f"{wheel.name} has no {FIXTURES}{name}: it is not the wheel of {PACKAGE}"
                ) from error
            found = hashlib.sha256(contents[name]).hexdigest()
            if found != digest:
                raise ValueError(
                    f"{FIXTURES}{name} in {wheel.name} has the SHA-256 {found}, not {digest}: not used"
                )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def fetch_goldens(folder: Path) -> None:
    """Download the wheel with pip, without its dependencies, and unpack the goldens. ValueError if that fails."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            scratch,
            PACKAGE,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise ValueError(f"pip could not download {PACKAGE}: {done.stderr.strip()[-500:]}")
        unpack(wheels[0], folder)


def main() -> int:
    """Fetch; 0 where the goldens lie in their place, 3 where they could not be had."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.data", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "what", choices=("goldens", "where"), help="goldens = fetch them; where = print the folder"
    )
    args = parser.parse_args()
    folder = data_folder()
    if args.what == "where":
        print(folder)
        return 0
    try:
        fetch_goldens(folder / "golden")
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        print(error, file=sys.stderr)
        return 3
    print(json.dumps({"folder": str(folder / "golden"), "files": sorted(SHA256)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
