"""`python -m benchmarks.pictures curve` on a small run."""

from pathlib import Path

import pytest

from benchmarks.pictures import draw


def test_a_curve_is_drawn_with_its_heldout_points(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    (tmp_path / "curve.tsv").write_text("tokens\tseconds\ta\tb\tr\n1000\t1\t7.0\t7.1\t1.0\n2000\t2\t6.0\t6.1\t1.0\n")
    draw(tmp_path, tmp_path / "plain.svg")
    (tmp_path / "heldout.tsv").write_text("tokens\ttext\tf\tb\n2000\tsome text\t500.0\t510.0\n")
    draw(tmp_path, tmp_path / "points.svg")
    plain, points = ((tmp_path / name).read_text(encoding="utf-8") for name in ("plain.svg", "points.svg"))
    assert "held-out perplexity" in points  # Matplotlib leaves each text as a comment beside its outlines
    assert "held-out perplexity" not in plain
    assert "loss of the sampled softmax" in plain
    assert "500, 510" in points
