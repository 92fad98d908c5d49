"""``elmo-store demo``: nearest occurrences of a word by layer, and the rest of a first ten minutes on a terminal."""

import argparse
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.cli.terminal import quantity
from pipeline.commands.demo import SENTENCES, nearest
from pipeline.main import COMMANDS, build_parser, main
from pipeline.progress.summary import next_commands


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_the_nearest_is_another_one_and_none_is_nearer(n: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    near, cosine = nearest(vectors)
    for i, v in enumerate(vectors):
        others = {j: v @ w / np.linalg.norm(v) / np.linalg.norm(w) for j, w in enumerate(vectors) if j != i}
        assert near[i] in others
        assert cosine[i] == pytest.approx(others[int(near[i])], abs=1e-5)
        assert max(others.values()) <= cosine[i] + 1e-5


def test_the_packaged_model_tells_banks_of_rivers_from_banks_of_money(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == Exit.COMPLETE
    layers = capsys.readouterr().out.split("\nlayer ")[1:]
    assert [part[0] for part in layers] == ["0", "1", "2"]
    assert "all are the same vector" in layers[0]
    rows = layers[2].strip().splitlines()[1:]
    assert len(rows) == len(SENTENCES)
    rivers = ("river", "stream")
    for row in rows:
        text, other = row[: row.index("  ", 3)], row.split("  ")[-1]
        assert any(word in text for word in rivers) == any(word in other for word in rivers), row


@pytest.mark.parametrize(("sentences", "times"), [(["A bank ."], "a token only once"), (["A bench ."] * 2, "not a token")])
def test_a_word_that_has_nothing_to_be_compared_with_is_refused(
    sentences: list[str], times: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *sentences]) == Exit.BAD_USAGE
    assert f"'bank' is {times} in these sentences" in capsys.readouterr().err


def test_a_model_that_is_not_there_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "nowhere/model"]) in (Exit.BAD_USAGE, Exit.BAD_LOCATION)
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("loading")]
    assert len(said) == 1
    assert "nowhere/model" in said[0]


def test_only_commands_that_work_here_are_offered() -> None:
    store = Root("out/my store")
    assert next_commands(store, lambda _: True) == [f"elmo-store {name} '{store}'" for name in ("report", "explore")]
    assert next_commands(store, lambda module: module == "matplotlib") == [f"elmo-store report '{store}'"]
    assert next_commands(store, lambda _: False) == [f"elmo-store info '{store}'"]


def test_one_thing_has_no_plural() -> None:
    assert [quantity(n, "shard") for n in (0, 1, 2, 12_000)] == ["0 shards", "1 shard", "2 shards", "12,000 shards"]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_as_wide_as_the_terminal(command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for lines that are examples: indented, or of a table."""
    monkeypatch.setenv("COLUMNS", str(columns))
    parser, _ = build_parser({command})
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    lines = subparsers.choices[command].format_help().splitlines()
    assert [line for line in lines if len(line) > columns and not line.startswith("  ")] == []
    assert os.environ["COLUMNS"] == str(columns)
