"""Rules of the source that hold for the whole repository."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGES = ("benchmarks", "deploy", "elmo_store", "examples", "model", "pipeline", "transforms")
TWICE = {
    "ScalarMix"
}  # users import it from elmo_store, for NumPy, and from elmo_store.torch, which learns it


def test_no_class_name_stands_twice(repo_dir: Path) -> None:
    files: defaultdict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((repo_dir / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.ClassDef):
                    files[node.name].append(str(path.relative_to(repo_dir)))
    assert len(files) > 200
    assert {
        name: found for name, found in files.items() if len(found) > 1 and name not in TWICE
    } == {}
