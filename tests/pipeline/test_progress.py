"""Progress from markers alone: what a look says at each stage, on a terminal and in a log."""

import io
from pathlib import Path

import pytest

from elmo_store.markers import ShardMarker, write_marker
from elmo_store.storage import Root
from pipeline.cli import main
from pipeline.exit_codes import Exit
from pipeline.progress import ProgressReader, Screen, Snapshot, duration, follow, shown
from transforms.work import PLAN, START


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "store")


def begin(root: Root, pieces: int = 4) -> None:
    root.put_json("elmo_store.json", {"complete": False, "counts": None})
    root.put_json(START, {"started": 100.0, "n_pieces": pieces})


def plan(root: Root, tokens: int = 1000, shards: int = 10) -> None:
    root.put_json(PLAN, {"id": "p", "n_tokens": tokens, "n_rows": tokens, "n_shards": shards, "planned": 100.0})


def finish_shard(root: Root, shard: int, tokens: int, finished: float) -> None:
    write_marker(root, ShardMarker(shard, 0, tokens, (), {"tokens": tokens, "finished": finished, "plan": "p"}))


def test_a_look_follows_the_stages(root: Root) -> None:
    reader = ProgressReader(root)
    assert reader.look().stage == "starting"
    begin(root)
    root.put_json("_work/pieces/00000.json", {})
    reading = reader.look()
    assert (reading.stage, reading.pieces_done, reading.n_pieces) == ("reading", 1, 4)
    plan(root)
    finish_shard(root, 0, 100, finished=90.0)  # of an earlier run: done, but no part of the rate
    finish_shard(root, 1, 100, finished=104.0)
    finish_shard(root, 2, 100, finished=110.0)
    computing = reader.look()
    assert (computing.tokens_done, computing.n_tokens, computing.shards_done) == (300, 1000, 3)
    assert computing.tokens_per_second == pytest.approx(20.0)
    assert computing.seconds_left == pytest.approx(35.0)
    assert computing.line() == "300 of 1,000 tokens (30.0%), 3 of 10 shards, 20 tokens/s, 0:00:35 left"
    root.put_json("elmo_store.json", {"complete": True, "counts": {"tokens": 1000, "shards": 10}})
    assert reader.look().line() == "complete: 1,000 tokens in 10 shards"


def test_a_marker_that_is_being_written_counts_as_not_there(root: Root) -> None:
    begin(root)
    plan(root)
    root.put("_shards/00000.json", b'{"shard": 0, "sta')
    assert ProgressReader(root).look().shards_done == 0


def test_a_terminal_sees_a_bar_with_tokens_rate_and_time_left(root: Root) -> None:
    terminal = Terminal()
    screen = Screen(terminal)
    screen.show(Snapshot("reading", pieces_done=1, n_pieces=2))
    screen.show(Snapshot("computing", tokens_done=250, n_tokens=1000, shards_done=1, n_shards=4))
    screen.show(Snapshot("computing", tokens_done=500, n_tokens=1000, shards_done=2, n_shards=4))
    screen.close()
    text = terminal.getvalue()
    assert "1 of 2 pieces" in text
    assert "50%" in text
    assert "2/4 shards" in text
    assert "tokens/s" in text


def test_a_log_gets_a_line_now_and_then_and_none_twice() -> None:
    stream = io.StringIO()
    screen = Screen(stream, line_seconds=0.0)
    for done in (100, 100, 200):
        screen.show(Snapshot("computing", tokens_done=done, n_tokens=1000, shards_done=1, n_shards=4))
    assert len(stream.getvalue().splitlines()) == 2
    seldom = io.StringIO()
    rare = Screen(seldom, line_seconds=3600.0)
    for done in (100, 200, 300):
        rare.show(Snapshot("computing", tokens_done=done, n_tokens=1000, shards_done=1, n_shards=4))
    assert len(seldom.getvalue().splitlines()) == 1


def test_following_ends_when_the_store_is_complete(root: Root) -> None:
    begin(root)
    plan(root)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        finish_shard(root, len(waits), 100, 101.0 + len(waits))
        if len(waits) == 3:
            root.put_json("elmo_store.json", {"complete": True, "counts": {"tokens": 1000, "shards": 10}})

    last = follow(root, seconds=0.25, screen=Screen(io.StringIO(), 0.0), sleep=sleep)
    assert last.stage == "complete"
    assert waits == [0.25] * 3


def test_a_look_that_fails_does_not_end_the_job(root: Root) -> None:
    root.put("elmo_store.json", b"not json")
    with shown(root, seconds=0.01, screen=Screen(io.StringIO(), 0.0)):
        ended = sum(range(100_000))
    assert ended > 0


def test_watch_says_when_there_is_nothing_to_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "nowhere")]) == Exit.BAD_LOCATION
    assert "no store" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--seconds", "0"]) == Exit.BAD_USAGE


@pytest.mark.parametrize(("seconds", "shown_as"), [(0, "0:00:00"), (59.6, "0:01:00"), (3661, "1:01:01")])
def test_durations(seconds: float, shown_as: str) -> None:
    assert duration(seconds) == shown_as
