"""Progress from markers alone: what a look says at each stage, on a terminal and in a log."""

import io
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.cli.terminal import duration
from pipeline.main import main
from pipeline.progress import repeated
from pipeline.progress.bars import Screen, follow, shown
from pipeline.progress.snapshot import WORKERS_A_LOOK, WORKERS_OF_SAMPLE, ProgressReader, Snapshot, union
from transforms.runtime.work import PLAN, PROBLEM, PROGRESS, START
from transforms.runtime.worker import ShardProgress


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
    root.put_json(PLAN, {"id": "p", "n_tokens": tokens, "n_rows": tokens, "n_shards": shards, "planned": 100.0})


def say(root: Root, kind: str, worker: str, **said: object) -> None:
    root.put_json(f"{PROGRESS}/{kind}-{worker}.json", said)


def computed(root: Root, worker: str, ranges: list[list[int]], began: float, ended: float, call_tokens: int) -> None:
    say(root, "shards", worker, ranges=ranges, began=began, ended=ended, call_tokens=call_tokens)


def test_a_look_follows_the_stages(root: Root) -> None:
    reader = ProgressReader(root)
    assert reader.look().stage == "starting"
    begin(root)
    say(root, "read", "a", bytes=10, tokens=2, tasks=1)
    reading = reader.look()
    assert (reading.stage, reading.pieces_done, reading.n_pieces, reading.tokens_done) == ("reading", 1, 4, 2)
    plan(root)
    # Shard 0 is of an earlier run: done, but no part of the rate. One more shard of the last call is computed, not yet written.
    computed(root, "a", [[0, 3]], began=105.0, ended=125.0, call_tokens=400)
    computing = reader.look()
    assert (computing.tokens_done, computing.n_tokens, computing.shards_done) == (300, 1000, 3)
    assert computing.tokens_per_second == pytest.approx(20.0)
    assert computing.seconds_left == pytest.approx(35.0)
    assert computing.line() == "computing: 300 of 1,000 tokens (30.0%), 3 of 10 shards, 20 tokens/s, 0:00:35 left"
    computed(root, "a", [[0, 10]], began=105.0, ended=125.0, call_tokens=400)
    assert reader.look().line() == "finishing: 10 shards written"
    root.put_json("elmo_store.json", {"complete": True, "counts": {"tokens": 1000, "shards": 10}})
    assert reader.look().line() == "complete: 1,000 tokens in 10 shards"


def test_what_workers_summed_up_adds_up_over_stages(root: Root) -> None:
    reader = ProgressReader(root)
    begin(root)
    root.put_json(START, {"started": 100.0, "n_pieces": 4, "n_bytes": 40})
    said = {"sums": {"seconds_tokenising": 1.5, "records_rejected": 1, "storage_retries": 2}}
    say(root, "read", "a", bytes=10, tokens=2, tasks=1, **said)
    read = reader.look().sums
    assert read == {**said["sums"], "bytes_read": 10, "tokens_read": 2}
    root.put_json("elmo_store.json", {"complete": False, "counts": {"tokens": 1000, "rejected": 3}, "shard_rows": 100})
    root.put_json(PLAN, {"n_tokens": 1000, "n_rows": 1000, "n_shards": 10, "retries": 7})  # of all workers that read
    progress = ShardProgress(root)
    progress.done(0, {"seconds_computing": 2.0, "seconds_idle": 0.5, "tokens": 100}, 3)
    progress.failed(1)
    progress.flush()
    sums = reader.look().sums
    assert (sums["seconds_tokenising"], sums["tokens_read"], sums["records_rejected"]) == (1.5, 1000, 3)
    assert (sums["seconds_computing"], sums["seconds_idle"], sums["shards_failed"]) == (2.0, 0.5, 1)
    assert sums["storage_retries"] == 7 + 3 + 1


def test_tokens_of_a_call_count_while_it_is_computed(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any shard of it is written, and once each when they are."""
    monkeypatch.setattr("transforms.runtime.worker.PROGRESS_SECONDS", 0.0)
    begin(root)
    plan(root)
    reader, progress = ProgressReader(root), ShardProgress(root)

    def done_after(change: Callable[[], None]) -> tuple[int, int]:
        change()
        progress._teller.submit(lambda: None).result()  # what was to be told is told
        look = reader.look()
        return look.tokens_done, look.shards_done

    stats = {"call_began": 100.0, "call_tokens": 500, "tokens": 100, "finished": 110.0}
    assert done_after(lambda: progress.computing(100.0, 500, 0.1)) == (50, 0)
    assert done_after(lambda: progress.computing(100.0, 500, 1.0)) == (500, 0)
    assert reader.look().tokens_per_second is not None
    assert done_after(lambda: progress.done(0, stats)) == (500, 1)
    assert done_after(lambda: progress.computing(105.0, 500, 0.2)) == (600, 1)
    for shard in range(1, 5):
        assert done_after(partial(progress.done, shard, stats)) == (600, shard + 1)
    assert done_after(lambda: progress.done(5, stats | {"call_began": 105.0})) == (600, 6)


def test_progress_never_holds_up_what_computes(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transforms.runtime.worker.PROGRESS_SECONDS", 0.0)
    progress, put, may_put = ShardProgress(root), threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        put.set()
        assert may_put.wait(30)

    monkeypatch.setattr(Root, "put_json", slow)
    progress.computing(100.0, 500, 0.1)
    assert put.wait(30)
    progress.computing(100.0, 500, 0.2)  # returns, though the put is under way
    may_put.set()
    progress._teller.shutdown()


def test_reading_has_bytes_a_rate_and_time_left_too(root: Root) -> None:
    now = [1000.0]
    reader = ProgressReader(root, clock=lambda: now[0])
    begin(root, pieces=4)
    root.put_json(START, {"started": 999.0, "n_pieces": 4, "n_bytes": 4_000_000})
    assert reader.look().line() == "reading and tokenising: 0 bytes of 4.0 MB"
    now[0] = 1010.0
    say(root, "read", "a", bytes=1_000_000, tokens=200_000, tasks=0)
    reading = reader.look()
    assert (reading.bytes_done, reading.bytes_per_second, reading.seconds_left) == (1_000_000, 100_000.0, 30.0)
    assert reading.line() == "reading and tokenising: 1.0 MB of 4.0 MB, 100.0 kB/s, 0:00:30 left"


def test_a_shard_that_two_workers_wrote_counts_once_and_workers_add_up(root: Root) -> None:
    begin(root)
    plan(root, tokens=4000, shards=40)
    for worker in range(3):
        computed(root, str(worker), [[worker, worker + 2], [7, 8]], began=110.0, ended=120.0, call_tokens=100)
    found = ProgressReader(root).look()
    assert (found.shards_done, found.tokens_done) == (5, 500)
    assert found.tokens_per_second == pytest.approx(30.0)


def test_a_look_is_ten_requests_at_most_and_hears_every_worker_in_turn(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(root)
    plan(root, tokens=4000, shards=40)
    for worker in range(17):  # each has as many shards as its object's name begins with
        n = worker % 2 + 1
        computed(root, f"{n}-{worker:02d}", [[2 * worker, 2 * worker + n]], began=110.0, ended=120.0, call_tokens=100)
    requests = 0

    def counting(name: str) -> None:
        method = getattr(Root, name)

        def counted(*args: object, **options: object) -> object:
            nonlocal requests
            requests += 1
            return method(*args, **options)

        monkeypatch.setattr(Root, name, counted)

    for name in ("get", "read_ranges", "sizes", "size", "put"):  # what every other method is made of
        counting(name)
    reader = ProgressReader(root)
    heard, estimated = [], []
    for _ in range(4):
        requests = 0
        look = reader.look()
        heard.append(look.shards_done)
        assert requests <= 10
        estimated.append(look.estimated)
    assert heard == [17, 19, 24, 25]  # the first nine have one each, which 17 workers are taken for at first
    assert estimated == [True, True, True, False]


def test_a_thousand_workers_are_as_far_as_those_heard_of_are(root: Root) -> None:
    begin(root)
    plan(root, tokens=1_000_000, shards=10_000)

    def all_at(shards: int) -> None:
        for worker in range(200):
            first = 50 * worker
            computed(root, f"{worker:03d}", [[first, first + shards]], 100.0, 100.0 + shards, call_tokens=100 * shards)

    all_at(10)
    for worker in range(200):  # as the same processes left it
        say(root, "read", f"{worker:03d}", bytes=10)
    reader = ProgressReader(root)
    look = reader.look()
    assert (look.shards_done, look.tokens_done) == (2000, 200_000)
    assert look.tokens_per_second == pytest.approx(20_000)
    assert look.line().startswith("computing: about 200,000 of 1,000,000 tokens (20.0%), 2,000 of 10,000 shards, 20,000 tokens/s")
    for _ in range(40):
        reader.look()
    all_at(40)
    for _ in range(WORKERS_OF_SAMPLE // WORKERS_A_LOOK):  # and no longer as those heard of long ago were
        look = reader.look()
    assert (look.stage, look.shards_done) == ("computing", 8000)
    all_at(50)
    for _ in range(41):
        look = reader.look()
    assert look.line() == "finishing: 10,000 shards written"


def test_a_failed_job_ends_the_look_with_its_problem(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    begin(root)
    plan(root)
    root.put_json(PROBLEM, {"message": "a.txt: the file is gone"})
    assert main(["watch", str(root)]) == Exit.INCOMPLETE
    assert "failed: a.txt: the file is gone" in capsys.readouterr().out


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=12))
def test_ranges_are_united(found: list[tuple[int, int]]) -> None:
    ranges = [(first, first + n) for first, n in found]
    united = union(ranges)
    assert {i for first, stop in united for i in range(first, stop)} == {i for first, stop in ranges for i in range(first, stop)}
    assert all(before[1] < after[0] for before, after in pairwise(united))


def test_a_slow_look_neither_holds_the_command_up_nor_shows_when_it_ends(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
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
        with shown(root, seconds=0.001, screen=Screen(stream)):
            assert asked.wait(30)
            (thread,) = [thread for thread in threading.enumerate() if thread.name == "progress"]
    finally:
        answered.set()
    thread.join(30)
    assert stream.getvalue() == ""  # what comes late does not follow the summary


def test_a_job_without_pieces_says_no_zero_of_zero(root: Root) -> None:
    begin(root, pieces=0)
    assert ProgressReader(root).look().line() == "starting"


def test_what_is_being_written_counts_as_not_there(root: Root) -> None:
    begin(root)
    plan(root)
    root.put(f"{PROGRESS}/shards-a.json", b'{"ranges": [[0, 1')
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
    for part in ("starting", "reading  25%", "2.50M/10.0MB, 0 tokens, 1.0 MB/s, 0:00:08 left", "computing  50%", "2/4 shards",
                 "10 tokens/s, 0:00:50 left", "500/1.00k tokens", "finishing: 4 shards"):  # fmt: skip
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
    screen.show(Snapshot("complete", n_tokens=1000, n_shards=4))  # the command's own summary says so
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
        computed(root, "a", [[0, len(waits)]], 101.0, 102.0, 100)
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
