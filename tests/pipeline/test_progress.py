"""Progress from markers alone: what a look says at each stage, on a terminal and in a log."""

import io
import threading
import time
from pathlib import Path

import pytest

from elmo_store.format.layout import shard_marker
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.cli.terminal import duration, progress_bar
from pipeline.main import main
from pipeline.progress import repeated
from pipeline.progress.bars import Screen, follow, shown
from pipeline.progress.snapshot import ProgressReader, Snapshot
from transforms.runtime.work import PLAN, PROBLEM, READ, START


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "store")


def begin(root: Root, pieces: int = 4) -> None:
    root.put_json("elmo_store.json", {"complete": False, "counts": None, "shard_rows": 100})
    root.put_json(START, {"started": 100.0, "n_pieces": pieces})


def plan(root: Root, tokens: int = 1000, shards: int = 10) -> None:
    root.put_json(PLAN, {"id": "p", "n_tokens": tokens, "n_rows": tokens, "n_shards": shards})


def read(root: Root, *names: str) -> None:
    for name in names:
        root.put_json(f"{READ}/{name}.json", {})


def written(root: Root, *shards: int) -> None:
    for shard in shards:
        root.put_json(shard_marker(shard), {})


def test_a_look_follows_the_stages(root: Root) -> None:
    now = [1000.0]
    reader = ProgressReader(root, clock=lambda: now[0])
    assert reader.look().stage == "starting"
    begin(root)
    read(root, "00000")  # of an earlier run: done, but no part of the rate
    assert reader.look().line() == "reading and tokenising: 1 of 4 pieces of the input"
    now[0] = 1010.0
    read(root, "00001")
    assert (
        reader.look().line() == "reading and tokenising: 2 of 4 pieces of the input, 0:00:20 left"
    )
    plan(root)
    written(root, 0)
    assert (
        reader.look().line()
        == "computing: 100 of 1,000 tokens (10.0%), 1 of 10 shards, no rate yet"
    )
    now[0] = 1020.0
    written(root, 1, 2)
    computing = reader.look()
    assert (computing.tokens_done, computing.rate, computing.seconds_left) == (300, 20.0, 35.0)
    assert (
        computing.line()
        == "computing: 300 of 1,000 tokens (30.0%), 3 of 10 shards, 20 tokens/s, 0:00:35 left"
    )
    now[0] = 1030.0  # a large call is under way: nothing is known of it
    assert reader.look().line() == computing.line()
    written(root, *range(10))
    assert reader.look().line() == "finishing: 10 shards written"
    root.put_json("elmo_store.json", {"complete": True, "counts": {"tokens": 1000, "shards": 10}})
    assert reader.look().line() == "complete: 1,000 tokens in 10 shards"


def test_a_second_run_of_the_job_has_a_rate_of_its_own(root: Root) -> None:
    now = [1000.0]
    reader = ProgressReader(root, clock=lambda: now[0])
    begin(root)
    plan(root)
    reader.look()
    now[0] = 1010.0
    written(root, 0, 1)
    assert reader.look().rate == 20.0
    root.put_json(START, {"started": 1010.0, "n_pieces": 4})
    assert reader.look().rate is None
    now[0] = 1012.0
    written(root, 2)
    assert reader.look().rate == 50.0


def test_a_failed_job_ends_the_look_with_its_problem(
    root: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(root)
    plan(root)
    root.put_json(PROBLEM, {"message": "a.txt: the file is gone"})
    assert main(["watch", str(root)]) == Exit.INCOMPLETE
    assert "failed: a.txt: the file is gone" in capsys.readouterr().out


def test_a_slow_look_neither_holds_the_command_up_nor_shows_when_it_ends(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(root)
    asked, answered = threading.Event(), threading.Event()

    def slow(self: ProgressReader) -> Snapshot:
        asked.set()
        answered.wait(60)
        return Snapshot("starting")

    monkeypatch.setattr(ProgressReader, "look", slow)
    monkeypatch.setattr(repeated, "JOIN_SECONDS", 0.01)
    stream = io.StringIO()
    try:
        with shown(root, Screen(stream), seconds=0.001):
            assert asked.wait(30)
            (thread,) = [thread for thread in threading.enumerate() if thread.name == "progress"]
    finally:
        answered.set()
    thread.join(30)
    assert stream.getvalue() == ""  # what comes late does not follow the summary


def test_a_job_without_pieces_says_no_zero_of_zero(root: Root) -> None:
    begin(root, pieces=0)
    assert ProgressReader(root).look().line() == "starting"


def test_a_terminal_sees_a_bar_with_tokens_rate_and_time_left(root: Root) -> None:
    terminal = Terminal()
    screen = Screen(terminal)
    screen.show(Snapshot("starting"))
    screen.show(Snapshot("reading", pieces_done=1, n_pieces=2, rate=0.125))
    screen.show(Snapshot("computing", tokens_done=250, n_tokens=1000, shards_done=1, n_shards=4))
    screen.show(
        Snapshot("computing", tokens_done=500, n_tokens=1000, shards_done=2, n_shards=4, rate=10.0)
    )
    screen.show(Snapshot("finishing", shards_done=4, n_shards=4))
    screen.show(Snapshot("complete", n_tokens=1000, n_shards=4))
    screen.end()
    text = terminal.getvalue()
    for part in ("starting", "reading  50%", "1/2 pieces, 0:00:08 left", "computing  50%", "2/4 shards",
                 "10 tokens/s, 0:00:50 left", "500/1.00k tokens", "finishing: 4 shards"):  # fmt: skip
        assert part in text
    assert text.endswith("\r\x1b[K")  # nothing is left in the way of the summary


def test_a_log_gets_a_line_now_and_then_and_none_twice() -> None:
    stream = io.StringIO()
    screen = Screen(stream, line_seconds=0.0)
    for done in (100, 100, 200):
        screen.show(
            Snapshot("computing", tokens_done=done, n_tokens=1000, shards_done=1, n_shards=4)
        )
    screen.show(
        Snapshot("complete", n_tokens=1000, n_shards=4)
    )  # the command's own summary says so
    assert len(stream.getvalue().splitlines()) == 2
    stream = io.StringIO()
    Screen(stream).show(Snapshot("reading", n_pieces=4))  # none at zero
    assert stream.getvalue() == ""


def test_commands_without_a_job_fill_no_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_bar("B", quiet=False) as bar:
        bar.update(5)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("pipeline.cli.terminal.LINE_SECONDS", 0.01)
    with progress_bar(" rows", quiet=False, total=2000) as bar:
        time.sleep(0.02)
        bar.update(500)
    assert "500/2.00k" in capsys.readouterr().err


def test_following_ends_when_the_store_is_complete(root: Root) -> None:
    begin(root)
    plan(root)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        written(root, len(waits))
        if len(waits) == 3:
            root.put_json(
                "elmo_store.json", {"complete": True, "counts": {"tokens": 1000, "shards": 10}}
            )

    last = follow(root, Screen(io.StringIO(), 0.0), seconds=0.25, sleep=sleep)
    assert last.stage == "complete"
    assert waits == [0.25] * 3


def test_a_look_that_fails_does_not_end_the_job(root: Root) -> None:
    root.put("elmo_store.json", b"not json")
    with shown(root, Screen(io.StringIO(), 0.0), seconds=0.01):
        ended = sum(range(100_000))
    assert ended > 0


def test_watch_says_when_there_is_nothing_to_watch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        assert main(["watch", str(place), "--once"]) == Exit.BAD_LOCATION
        assert "no store" in capsys.readouterr().err


def test_watch_waits_for_a_job_that_has_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path / "store")
    complete = {"complete": True, "counts": {"tokens": 7, "shards": 1}}
    threading.Timer(0.3, lambda: root.put_json("elmo_store.json", complete)).start()
    monkeypatch.setattr("pipeline.commands.info.LOOK_SECONDS", 0.05)
    assert main(["watch", str(tmp_path / "store")]) == Exit.COMPLETE
    said = capsys.readouterr()
    assert "no job has started" in said.err
    assert "complete: 7 tokens" in said.out


@pytest.mark.parametrize(
    ("seconds", "shown_as"), [(0, "0:00:00"), (59.6, "0:01:00"), (3661, "1:01:01")]
)
def test_durations(seconds: float, shown_as: str) -> None:
    assert duration(seconds) == shown_as
