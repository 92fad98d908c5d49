"""Progress from markers alone: what a look says at each stage, on a terminal and in a log."""

import io
import threading
from pathlib import Path

import pytest

from elmo_store.markers import ShardMarker, write_marker
from elmo_store.storage import Root
from pipeline.cli import main
from pipeline.exit_codes import Exit
from pipeline.progress import ProgressReader, Screen, Snapshot, follow, shown
from pipeline.quantities import duration
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


def finish_shard(root: Root, shard: int, tokens: int, finished: float, **stats: float | str) -> None:
    write_marker(root, ShardMarker(shard, 0, tokens, (), {"tokens": tokens, "finished": finished, "plan": "p", **stats}))


def test_a_look_follows_the_stages(root: Root) -> None:
    reader = ProgressReader(root)
    assert reader.look().stage == "starting"
    begin(root)
    root.put_json("_work/read/00000.json", {})
    reading = reader.look()
    assert (reading.stage, reading.pieces_done, reading.n_pieces) == ("reading", 1, 4)
    plan(root)
    finish_shard(root, 0, 100, finished=90.0)  # of an earlier run: done, but no part of the rate
    # Two calls of one worker, from 105 to 115 and from 115 to 125; the second one's other shard is computed, not yet written.
    finish_shard(root, 1, 100, finished=115.0, worker="a:1", call_began=105.0, call_tokens=100)
    finish_shard(root, 2, 100, finished=125.0, worker="a:1", call_began=115.0, call_tokens=300)
    computing = reader.look()
    assert (computing.tokens_done, computing.n_tokens, computing.shards_done) == (300, 1000, 3)
    assert computing.tokens_per_second == pytest.approx(20.0)
    assert computing.seconds_left == pytest.approx(35.0)
    assert computing.line() == "computing: 300 of 1,000 tokens (30.0%), 3 of 10 shards, 20 tokens/s, 0:00:35 left"
    for shard in range(3, 10):
        finish_shard(root, shard, 100, finished=130.0)
    assert reader.look().line() == "finishing: all 10 shards are written"
    root.put_json("elmo_store.json", {"complete": True, "counts": {"tokens": 1000, "shards": 10}})
    assert reader.look().line() == "complete: 1,000 tokens in 10 shards"


def test_reading_has_bytes_a_rate_and_time_left_too(root: Root) -> None:
    now = [1000.0]
    reader = ProgressReader(root, clock=lambda: now[0])
    begin(root, pieces=4)
    root.put_json(START, {"started": 999.0, "n_pieces": 4, "n_bytes": 4_000_000})
    assert reader.look().line() == "reading and tokenising: 0 of 4 pieces of the input (0 bytes of 4.0 MB)"
    now[0] = 1010.0
    root.put_json("_work/read/00000.json", {"bytes_read": 1_000_000})
    reading = reader.look()
    assert (reading.bytes_done, reading.bytes_per_second, reading.seconds_left) == (1_000_000, 100_000.0, 30.0)
    assert reading.line().endswith("1 of 4 pieces of the input (1.0 MB of 4.0 MB), 100.0 kB/s, 0:00:30 left")


def test_a_look_reads_a_bounded_number_of_pieces_and_takes_the_rest_for_as_large(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(root, pieces=1000)
    root.put_json(START, {"started": 0.0, "n_pieces": 1000, "n_bytes": 1_000_000})
    for piece in range(300):
        root.put_json(f"_work/read/{piece:05d}.json", {"bytes_read": 1000})
    reader, reads = ProgressReader(root), 0
    get_json = Root.get_json

    def counted(self: Root, rel: str) -> object:
        nonlocal reads
        reads += rel.startswith("_work/read/")
        return get_json(self, rel)

    monkeypatch.setattr(Root, "get_json", counted)
    assert reader.look().bytes_done == 300_000
    assert reads == 64


def test_the_first_estimate_counts_what_is_computed_and_not_yet_written(root: Root) -> None:
    """One shard of a call of four is written: the rate is the call's, not a quarter of it, and loading is no work."""
    begin(root)
    plan(root, tokens=4000)
    finish_shard(root, 0, 100, finished=150.0, worker="a:1", call_began=140.0, call_tokens=400)
    assert ProgressReader(root).look().tokens_per_second == pytest.approx(40.0)


def test_workers_add_up(root: Root) -> None:
    begin(root)
    plan(root, tokens=4000)
    for worker in range(3):
        finish_shard(root, worker, 100, finished=120.0, worker=f"a:{worker}", call_began=110.0, call_tokens=100)
    assert ProgressReader(root).look().tokens_per_second == pytest.approx(30.0)


def test_a_job_without_pieces_says_no_zero_of_zero(root: Root) -> None:
    begin(root, pieces=0)
    assert ProgressReader(root).look().line() == "starting"


def test_a_marker_that_is_being_written_counts_as_not_there(root: Root) -> None:
    begin(root)
    plan(root)
    root.put("_shards/00000.json", b'{"shard": 0, "sta')
    assert ProgressReader(root).look().shards_done == 0


def test_a_terminal_sees_a_bar_with_tokens_rate_and_time_left(root: Root) -> None:
    terminal = Terminal()
    screen = Screen(terminal)
    screen.show(Snapshot("starting"))
    screen.show(Snapshot("reading", pieces_done=1, n_pieces=2, bytes_done=2_500_000, n_bytes=10_000_000, bytes_per_second=1e6))
    screen.show(Snapshot("computing", tokens_done=250, n_tokens=1000, shards_done=1, n_shards=4))
    screen.show(Snapshot("computing", tokens_done=500, n_tokens=1000, shards_done=2, n_shards=4, tokens_per_second=10.0))
    screen.show(Snapshot("finishing", shards_done=4, n_shards=4))
    screen.show(Snapshot("complete", n_tokens=1000, n_shards=4))
    screen.close()
    text = terminal.getvalue()
    for part in ("starting", "reading  25%", "2.50M/10.0M, 1/2 pieces, 1.0 MB/s, 0:00:08 left", "computing  50%", "2/4 shards",
                 "10 tokens/s, 0:00:50 left", "finishing: all 4 shards"):  # fmt: skip
        assert part in text
    assert text.endswith("\r\x1b[K")  # nothing is left in the way of the summary


def test_no_color_leaves_the_bar_uncoloured(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> str:
        terminal = Terminal()
        Screen(terminal).show(Snapshot("computing", tokens_done=500, n_tokens=1000))
        return terminal.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in drawn()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in drawn()


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
    for place in (tmp_path, tmp_path / "nowhere"):
        assert main(["watch", str(place), "--once"]) == Exit.BAD_LOCATION
        assert "no store" in capsys.readouterr().err
    assert main(["watch", str(tmp_path), "--seconds", "0"]) == Exit.BAD_USAGE


def test_watch_waits_for_a_job_that_has_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Root(tmp_path / "store")
    complete = {"complete": True, "counts": {"tokens": 7, "shards": 1}}
    threading.Timer(0.3, lambda: root.put_json("elmo_store.json", complete)).start()
    assert main(["watch", str(tmp_path / "store"), "--seconds", "0.05"]) == Exit.COMPLETE
    said = capsys.readouterr()
    assert "no job has begun" in said.err
    assert "complete: 7 tokens" in said.out


@pytest.mark.parametrize(("seconds", "shown_as"), [(0, "0:00:00"), (59.6, "0:01:00"), (3661, "1:01:01")])
def test_durations(seconds: float, shown_as: str) -> None:
    assert duration(seconds) == shown_as
