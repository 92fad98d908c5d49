"""Every command that writes, on small inputs, and what an undisturbed run of it leaves."""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import elmo_store as stores
from tests.hostile.jobs import Command, SmallJob, Trap, differences

Tree = dict[
    str, str
]  # name of a file or folder, of a JSON file and each of its fields → digest or value


@dataclass(frozen=True)
class Case:
    """One command in one form."""

    name: str
    arguments: tuple[str, ...]  # of the command; ``{out}`` stands for the output
    other: tuple[
        str, ...
    ] = ()  # options that make it another job at the same output; () if there is none
    takes_over: bool = True  # whether it has ``--take-over``
    begins: str = ""  # the folder of the bench of which ``{out}`` is a copy to begin with; "": there is nothing before


@dataclass(frozen=True)
class Undisturbed:
    """What a command leaves that nobody disturbs: its tree, the changes that it made to it, its seconds."""

    tree: Tree
    changes: int
    seconds: float
    varies: frozenset[str] = field(
        repr=False
    )  # fields of JSON, numbers left out, that differ between two undisturbed runs


@dataclass(frozen=True)
class Run:
    """One output of a case, in a folder of its own, which is empty but for it."""

    case: Case
    folder: Path

    def start(self, *options: str, trap: Trap | None = None, log: str = "log") -> Command:
        """The command, with more ``options``."""
        arguments = [
            text.replace("{out}", str(self.folder / "out"))
            for text in (*self.case.arguments, *options)
        ]
        return Command(arguments, self.log(log), trap.set if trap else None)

    def log(self, name: str) -> Path:
        """A file beside the folder."""
        return self.folder.with_name(f"{self.folder.name}.{name}")

    def remove(self) -> None:
        """The folder; logs stay."""
        shutil.rmtree(self.folder)


@dataclass(frozen=True)
class Bench:
    """The inputs of all cases, in a folder."""

    folder: Path

    @cached_property
    def cases(self) -> dict[str, Case]:
        """By name. Makes the inputs."""
        job = SmallJob.make(self.folder / "input", 6, 30, shard_rows=128)
        more = SmallJob.make(self.folder / "more", 6, 250, shard_rows=2048)
        store, weights = str(self.folder / "store"), self.folder / "weights.json"
        weights.write_text(
            json.dumps(
                {"a": {"w": [0.1, 0.5, -0.2], "gamma": 1.0}, "b": {"w": [1, 0, 0], "gamma": 2.0}}
            )
        )
        Command(more.arguments(store, "both"), self.folder / "log").succeed()
        cases = [
            Case("embed", tuple(job.arguments("{out}", "both")), ("--dtype", "float32")),
            Case(
                "convert",
                ("convert", store, "--output", "{out}", "--dtype", "int8"),
                ("--states", "x,fwd1"),
            ),
            Case(
                "mix",
                ("mix", store, "--weights", str(weights), "--output", "{out}"),
                ("--layer-norm",),
            ),
            Case(
                "export, npz",
                ("export", store, "--format", "npz", "--output", "{out}"),
                ("--layers", "top"),
                False,
            ),
            Case("report", ("report", "{out}"), takes_over=False, begins="store"),
            *self._of_collections(job, store),
        ]
        return {case.name: case for case in cases}

    def _of_collections(self, job: SmallJob, store: str) -> list[Case]:
        """Those that change a collection: an empty one, one of a member, one with removed sentences."""
        into = [*job.arguments("", "zarr"), "--into"]
        into[into.index("--output") : into.index("--output") + 2] = []
        ids, log = self.folder / "ids.txt", self.folder / "log"
        Command([*into, str(self.folder / "grown")], log).succeed()
        ids.write_text(
            "".join(f"{sentence.id}\n" for sentence in stores.open(self.folder / "grown")[::3])
        )
        shutil.copytree(self.folder / "grown", self.folder / "shrunk")
        Command(["remove", str(self.folder / "shrunk"), "--ids", str(ids)], log).succeed()
        another = ["embed", str(job.folder / "corpus" / "000.lines"), *into[2:], "{out}"]
        return [
            Case("collect", ("collect", "{out}", store), takes_over=False),
            Case("embed, into", tuple(another), takes_over=True, begins="grown"),
            Case(
                "remove", ("remove", "{out}", "--ids", str(ids)), takes_over=False, begins="grown"
            ),
            Case("compact", ("compact", "{out}"), takes_over=False, begins="shrunk"),
        ]

    def begin(self, case: Case, name: str) -> Run:
        """A new place for ``case``."""
        run = Run(case, self.folder / re.sub(r"\W+", "-", f"{case.name} {name}"))
        run.folder.mkdir(parents=True)
        if case.begins:
            shutil.copytree(self.folder / case.begins, run.folder / "out")
        return run

    @cache  # noqa: B019 (one bench a process)
    def undisturbed(self, case: Case, *options: str) -> Undisturbed:
        """Two runs, and what they have in common. RuntimeError if it fails, or if more than fields of JSON differs."""
        trees = []
        for name in ("first", "second"):
            run = self.begin(case, f"{name} {' '.join(options)}")
            trap = Trap(run.folder, run.log("changes"))
            began = time.monotonic()
            run.start(*options, trap=trap).succeed()
            seconds = time.monotonic() - began
            trees.append(tree_of(run.folder))
            run.remove()
        varies = frozenset(map(_without_numbers, differences(*trees)))
        if files := [name for name in varies if "?" not in name]:
            raise RuntimeError(f"{case.name}: two undisturbed runs differ in {files[:5]}")
        return Undisturbed(_without(trees[0], varies), len(trap.changes()), seconds, varies)

    def difference(self, run: Run, undisturbed: Undisturbed) -> str:
        """What is not as an undisturbed run leaves it; "" if nothing is."""
        actual, wanted = _without(tree_of(run.folder), undisturbed.varies), undisturbed.tree
        kinds = {
            "left behind": actual.keys() - wanted.keys(),
            "missing": wanted.keys() - actual.keys(),
            "other bytes": {
                name for name in actual.keys() & wanted.keys() if actual[name] != wanted[name]
            },
        }
        return "; ".join(
            f"{kind}: {len(names)}, as {sorted(names)[:3]}"
            for kind, names in kinds.items()
            if names
        )


def tree_of(folder: Path) -> Tree:
    """Return everything in ``folder``; of a file of JSON each field apart.

    Members of a collection are called by their place in its newest version, because `compact`
    gives them new names in each attempt.
    """
    tree = {}
    places = _places_of_members(folder)
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        name = "/".join(places.get(part, part) for part in parts)
        if path.is_symlink() or not path.is_file():
            tree[name] = str(path.readlink()) if path.is_symlink() else "folder"
            continue
        data = path.read_bytes().replace(
            os.fsencode(folder), b"FOLDER"
        )  # a report says where its store lies
        try:
            value = json.loads(data) if path.suffix == ".json" else None
        except ValueError:
            value = None
        tree |= (
            {name: hashlib.sha256(data).hexdigest()}
            if value is None
            else {f"{name}?{k}": v for k, v in _fields(value)}
        )
    return tree


def _places_of_members(folder: Path) -> dict[str, str]:
    """Return the name of each member of the newest version → its place there; {} without one."""
    versions = sorted(folder.glob("out/versions/*.json"))
    if not versions:
        return {}
    members = json.loads(versions[-1].read_bytes())["members"]
    # Letters, since numbers in names are left out where two trees are compared.
    return {member["name"]: f"member-{chr(ord('a') + i)}" for i, member in enumerate(members)}


def _fields(value: object, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        return [
            field for key, below in value.items() for field in _fields(below, f"{prefix}.{key}")
        ]
    return [(prefix, json.dumps(value))]


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "0", name)


def _without(tree: Tree, varies: frozenset[str]) -> Tree:
    """Less what differs by nature: also markers' statistics, which say how the work was cut into calls."""
    return {
        name: value
        for name, value in tree.items()
        if "?.stats." not in name and _without_numbers(name) not in varies
    }
