"""No command writes over, or into, what it reads: every command, every spelling of the same place; nothing is touched."""

import argparse
import hashlib
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from elmo_store.errors import OverlapError
from elmo_store.format.manifest import read_manifest
from elmo_store.storage.location import Location
from elmo_store.storage.overlap import (
    CONTAINS,
    INSIDE,
    SAME,
    ResolvedLocation,
    check_apart,
    check_outside,
    relation,
    resolved,
)
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import COMMANDS, build_parser, main
from tests.pipeline.conftest import Command

WEIGHTS = '{"w": [0.0, 0.0, 0.0]}'


@dataclass(frozen=True)
class Store:
    """A finished store among other files."""

    base: Path
    path: Path

    def digests(self) -> Mapping[str, str]:
        files = sorted(path for path in self.base.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "text.txt").write_text("The cat sat .\nDogs ran away .\n", encoding="utf-8")
    output = ["--output", str(folder / "store"), "--model", str(tiny_model), "--quiet"]
    assert main(["embed", str(folder / "text.txt"), *output]) == Exit.COMPLETE
    return folder / "store"


@pytest.fixture
def store(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    base = tmp_path / "base"
    shutil.copytree(finished, base / "store")
    (base / "weights.json").write_text(WEIGHTS, encoding="utf-8")
    (base / "link").symlink_to("store")
    monkeypatch.chdir(base)
    return Store(base, base / "store")


SPELLINGS: Mapping[str, Callable[[Path], str]] = {
    "itself": str,
    "a link": lambda store: str(store.parent / "link"),
    "a link, with a slash": lambda store: f"{store.parent / 'link'}/",
    "file://": lambda store: f"file://{store}",
    "file:// and a link": lambda store: f"file://{store.parent / 'link'}",
    "local://": lambda store: f"local://{store}",
    "relative": lambda store: store.name,
    "relative and round about": lambda store: f"./{store.name}/../{store.name}/.",
    "a trailing slash": lambda store: f"{store}/",
    "inside": lambda store: str(store / "new"),
    "inside, by a link": lambda store: f"link/new/{store.name}",
    "around it": lambda store: str(store.parent),
    "around it, by a link": lambda store: f"{store}/..",
}


def refused(store: Store, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said; the command must end with 2 and leave every file as it was."""
    before = store.digests()
    capsys.readouterr()
    assert main(list(arguments)) == Exit.BAD_USAGE
    assert store.digests() == before
    said = capsys.readouterr().err
    assert "nothing was touched" in said
    return said


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_of_the_source_is_an_output(
    store: Store, spelling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = SPELLINGS[spelling](store.path)
    convert = ["convert", str(store.path), "--dtype", "int8", "--quiet"]
    mix = ["mix", str(store.path), "--weights", "weights.json", "--quiet"]
    export = ["export", str(store.path), "--quiet", "--format"]
    for command in (
        convert,
        mix,
        [*export, "npz"],
        [*export, "safetensors"],
        [*export, "elmoformanylangs"],
    ):
        for overwrite in ([], ["--overwrite"]):
            assert str(store.path) in refused(
                store, capsys, *command, "--output", place, *overwrite
            )


@pytest.mark.parametrize(
    "spelling", ["a link", "file://", "relative", "a trailing slash", "around it, by a link"]
)
def test_no_spelling_of_the_output_hides_a_source(
    store: Store, spelling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = SPELLINGS[spelling](store.path)
    refused(store, capsys, "convert", place, "--output", str(store.path), "--overwrite", "--quiet")


def test_a_store_whose_folders_are_links_into_another_one(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `cp -rs` makes them, or a disk that was full: to remove one would remove the other's objects."""
    farm = store.base / "farm"
    farm.mkdir()
    for entry in store.path.iterdir():
        (farm / entry.name).symlink_to(entry)
    for source, output in ((store.path, farm), (farm, store.path)):
        refused(
            store, capsys, "convert", str(source), "--output", str(output), "--overwrite", "--quiet"
        )


def test_weights_are_not_written_over(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    weights = store.base / "out" / "weights.json"
    weights.parent.mkdir()
    weights.write_text(WEIGHTS, encoding="utf-8")
    asked = [str(store.path), "--weights", str(weights), "--quiet", "--overwrite", "--output"]
    assert "--weights" in refused(store, capsys, "mix", *asked, "out")


@pytest.mark.slow
def test_a_report_does_not_replace_an_object(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    (store.base / "page.html").symlink_to("store/elmo_store.json")
    for output in (
        "store/elmo_store.json",
        "page.html",
        "link/inputs.parquet",
        "store",
        "store/page.html",
    ):
        refused(store, capsys, "report", str(store.path), "--output", output)
    assert (
        main(["report", str(store.path), "--output", "link/report.html"]) == Exit.COMPLETE
    )  # where it stands anyway


def test_embed_keeps_its_hands_off_inputs_and_model(
    store: Store, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = "sentences/part-00000.parquet"
    (store.base / "corpus").mkdir()
    (store.base / "corpus" / "text.parquet").symlink_to(f"../store/{part}")
    (store.base / "own").mkdir()
    (store.base / "own" / "tiny.safetensors").write_bytes(tiny_model.read_bytes())
    told = ["--text-field", "tokens", "--overwrite", "--quiet", "--output"]
    model = ["--model", str(tiny_model)]
    for given in (
        f"store/{part}",
        f"link/{part}",
        f"file://{store.path}/{part}",
        "link/sent*/*.parquet",
        "corpus",
        "store",
    ):
        for output in ("store", "link", f"file://{store.path}"):
            assert "input" in refused(store, capsys, "embed", given, *model, *told, output)
    for own in ("own", "own/tiny.safetensors", f"file://{store.base}/own/tiny.safetensors"):
        assert "--model" in refused(
            store, capsys, "embed", "weights.json", "--model", own, *told, "own"
        )


def test_embed_may_write_below_the_folder_that_it_reads(embed: Command, corpus: Path) -> None:
    for _ in range(2):
        assert embed(corpus / "store") == Exit.COMPLETE
    assert read_manifest(Root(corpus / "store")).input.files == 2


def test_training_writes_over_nothing_they_read(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("text.txt", "options.json", "labels.tsv"):
        (store.base / name).write_text("a b\n", encoding="utf-8")
    train = ["train", "text.txt", "--options", "options.json", "--heldout", "labels.tsv"]
    assert "TEXT" in refused(store, capsys, *train, "--output", str(store.base))
    run = store.base / "run"
    run.mkdir()
    (run / "options.json").write_text("{}\n", encoding="utf-8")
    assert "--options" in refused(
        store, capsys, "train", "text.txt", "--options", "run/options.json", "--output", "run"
    )


def test_a_model_is_not_converted_onto_itself(
    store: Store, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = store.base / "own"
    own.mkdir()
    (own / "weights.safetensors").write_bytes(tiny_model.read_bytes())
    for model in ("own", "own/", "own/weights.safetensors", f"file://{own}"):
        refused(store, capsys, "models", "convert", model, "own", "--overwrite")


@pytest.mark.parametrize(
    "command", [*((name,) for name in COMMANDS if name != "models"), ("models", "convert")]
)
def test_every_place_that_a_command_names_is_looked_at(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    """Each option whose value is shown as a file, folder, store or URL is among what the command says it touches."""
    parser, asked = build_parser({command[0]})[1][command[0]]
    given = {action.dest: action.default for action in parser._actions} | {"action": command[-1]}
    wanted = {}
    for action in parser._actions:
        shown = (
            str(action.metavar or (action.dest if not action.option_strings else ""))
            .upper()
            .split("|")
        )
        if {"FILE", "FOLDER", "URL", "STORE", "TEXT", "INPUT", "MODEL"} & {
            *shown
        } and action.nargs != 0:
            place = tmp_path / action.dest
            place.touch()
            given[action.dest] = [str(place)] if action.nargs in ("+", "*") else str(place)
            wanted[action.dest] = str(place)
    seen = set()
    for without in ((), ("evaluate", "resume")):
        args = argparse.Namespace(**given | dict.fromkeys(without))
        found = asked.touches(args)
        seen |= {location.url for location in (*found.reads, *found.writes)}
    missing = [
        name for name, place in wanted.items() if not any(url.startswith(place) for url in seen)
    ]
    assert missing == []


# --- the question itself --------------------------------------------------------------------------------------------


def test_a_path_is_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    with zipfile.ZipFile(tmp_path / "a" / "text.zip", "w") as archive:
        archive.writestr("q/t.txt", "x")
    cases = {
        ("a", "link"): SAME,
        ("a/new/deeper", "link"): INSIDE,
        ("link", "a/new/deeper"): CONTAINS,
        ("a", "ab"): None,
        ("a/b", "a/c"): None,
    }
    for (one, other), wanted in cases.items():
        assert relation(resolved(tmp_path / one), resolved(tmp_path / other)) == wanted
    inside = f"zip://q/t.txt::{tmp_path}/a/text.zip"
    assert relation(resolved(tmp_path / "link"), resolved(inside)) == CONTAINS


def test_a_mount_is_told_by_what_stands_there() -> None:
    """A bind mount has another path and the same inode."""
    one = ResolvedLocation("/x/out", "local", ("x", "out"), ((1, 7), (1, 2), (1, 1)))
    other = ResolvedLocation("/y/store", "local", ("y", "store"), ((1, 7), (1, 3), (1, 1)))
    below = ResolvedLocation("/z/a/b", "local", ("z", "a", "b"), (None, (1, 7), (1, 4), (1, 1)))
    assert relation(one, other) == SAME
    assert relation(below, one) == INSIDE
    assert relation(one, below) == CONTAINS
    unknown = ResolvedLocation("/q", "local", ("q",), (None, (1, 1)))
    assert relation(unknown, ResolvedLocation("/r", "local", ("r",), (None, (1, 1)))) is None


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ("memory://a/b", "memory:///a/b/", SAME),
        ("memory://a/b", "memory://a", INSIDE),
        ("memory://a", "/a", None),
        ("s3://bucket/key", "s3a://bucket/key/", SAME),
        ("s3://bucket/key", "simplecache::s3://bucket/key/x", CONTAINS),
        ("s3://bucket/key", "s3://bucket/keys", None),
        ("s3://bucket/key", "s3://other/key", None),
    ],
)
def test_on_object_stores_bucket_and_key_count(one: str, other: str, wanted: str | None) -> None:
    assert relation(resolved(one), resolved(other)) == wanted


def test_a_folder_may_hold_the_output_where_it_is_left_out() -> None:
    output = Location("output", "memory://corpus/out")
    check_apart(output, [Location("input", "memory://corpus", leaves_out=True)])
    for url in ("memory://corpus/out", "memory://corpus/out/a.txt"):
        with pytest.raises(OverlapError, match=r"the output memory://corpus/out .* the input"):
            check_apart(output, [Location("input", url, leaves_out=True)])
    check_outside(output, "input", ["memory://corpus/a.txt", "memory://corpus/b.txt"])
    with pytest.raises(
        OverlapError, match=r"contains the input memory://corpus/out/sentences/a\.parquet"
    ):
        check_outside(
            output, "input", ["memory://corpus/a.txt", "memory://corpus/out/sentences/a.parquet"]
        )
