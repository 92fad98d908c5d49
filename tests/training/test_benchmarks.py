"""`python -m benchmarks.shapes` and `benchmarks.curve`, run as a user runs them, on a small language."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import curve


def test_shapes_prints_a_table_and_computes_nothing_twice(sentences: list[list[str]], tmp_path: Path, repo_dir: Path) -> None:
    text = tmp_path / "text.lines"
    text.write_text("".join(" ".join(sentence) + "\n" for sentence in sentences[:600]))
    command = [sys.executable, "-m", "benchmarks.shapes", str(text), "--heldout", str(text), "--heldout-sentences", "50"]
    command += ["--shapes", "16/8", "24/8", "--tokens", "400", "4000", "--lanes", "4", "--sampled", "4", "--warmup-tokens", "100"]
    command += ["--rate", "0.01", "--work", str(tmp_path / "work")]
    done = subprocess.run(command, cwd=repo_dir, capture_output=True, text=True, check=True, timeout=280)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["16/8", "24/8", "16/8", "24/8"]
    assert [int(row[2].replace(",", "")) // 100 for row in rows] == [4, 4, 40, 40]
    assert all(
        1.7 < float(late) < float(early) for n in (0, 1) for late, early in zip(rows[n + 2][4:6], rows[n][4:6], strict=True)
    )
    recipe = json.loads((tmp_path / "work" / "16-8" / "4000" / "trial.json").read_text())["recipe"]
    assert (recipe["max_tokens"], recipe["decay_tokens"]) == (4000, 1000)
    weights = tmp_path / "work" / "24-8" / "4000" / "weights.safetensors"
    before = weights.stat().st_mtime_ns
    again = subprocess.run(command, cwd=repo_dir, capture_output=True, text=True, check=True, timeout=280)
    assert again.stdout == done.stdout
    assert weights.stat().st_mtime_ns == before


def test_a_curve_is_drawn_with_its_heldout_points(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    (tmp_path / "curve.tsv").write_text("tokens\tseconds\ta\tb\tr\n1000\t1\t7.0\t7.1\t1.0\n2000\t2\t6.0\t6.1\t1.0\n")
    curve.draw(tmp_path, tmp_path / "plain.svg")
    (tmp_path / "heldout.tsv").write_text("tokens\ttext\tf\tb\n2000\tsome text\t500.0\t510.0\n")
    curve.draw(tmp_path, tmp_path / "points.svg")
    plain, points = ((tmp_path / name).read_text(encoding="utf-8") for name in ("plain.svg", "points.svg"))
    assert "held-out perplexity" in points  # Matplotlib leaves each text as a comment beside its outlines
    assert "held-out perplexity" not in plain
    assert "loss of the sampled softmax" in plain
    assert "500, 510" in points
