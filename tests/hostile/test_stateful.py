"""A store under everything that can be done to a job: create, write, kill, resume, overwrite, a second launcher; against a model.

The model is a handful of words: which job stands on the output, and whether it is complete. Kills are real to what the store can
see: from a random put on nothing more is written or removed. Each command runs in this process on Beam's own runner.
"""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import elmo_store
from elmo_store.errors import StoreError
from elmo_store.storage.lease import Lease, acquire, release
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from tests.hostile.jobs import SmallJob, contents, faults_of
from tests.hostile.killing import kill_after

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DTYPES = ("float16", "float32")  # two jobs that differ


class Outputs(RuleBasedStateMachine):
    """One output and what two different jobs do to it."""

    job: SmallJob
    wanted: dict[str, dict[str, str]]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.output = self.folder / "store"
        self.standing: str | None = None  # the job whose manifest stands there
        self.complete = False
        self.mine = ""  # what the user keeps beside the store's objects

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, dtype: str, *more: str) -> int:
        return main(self.job.arguments(self.output, "both", "--dtype", dtype, *more))

    @initialize()
    def nothing_is_there(self) -> None:
        assert not self.output.exists()

    @rule(dtype=st.sampled_from(DTYPES))
    def the_command(self, dtype: str) -> None:
        """It completes an empty output or its own, and refuses another job's, which stays as it is."""
        before = contents(self.output)
        code = self.run(dtype)
        if self.standing in (None, dtype):
            assert code == Exit.COMPLETE
            self.standing, self.complete = dtype, True
        else:
            assert code == Exit.REFUSED
            assert contents(self.output) == before

    @rule(dtype=st.sampled_from(DTYPES))
    def overwrite(self, dtype: str) -> None:
        """Whatever of ours stands there is replaced, and nothing else is."""
        assert self.run(dtype, "--overwrite") == Exit.COMPLETE
        self.standing, self.complete = dtype, True

    @rule(
        dtype=st.sampled_from(DTYPES),
        puts=st.integers(0, 60),
        torn=st.booleans(),
        overwrite=st.booleans(),
    )
    def the_command_is_killed(self, dtype: str, puts: int, torn: bool, overwrite: bool) -> None:
        """After some puts nothing more is written; a local put that was cut leaves its temporary file."""
        left = [puts]
        with pytest.MonkeyPatch.context() as patch:
            kill_after(patch, left, torn)
            try:
                code = self.run(dtype, *["--overwrite"] * overwrite)
            except OSError:  # nobody hears what a dead process has to say
                code = -1
        if left[0] >= 0:  # it was over before
            assert code == (
                Exit.COMPLETE if overwrite or self.standing in (None, dtype) else Exit.REFUSED
            )
        if overwrite or self.standing in (None, dtype):
            self.standing, self.complete = self._job_there(), _is_complete(self.output)

    @precondition(lambda self: self.standing is not None)
    @rule(data=st.data())
    def an_object_is_lost(self, data: st.DataObject) -> None:
        """Of a store that is not complete; the command then writes it again."""
        if self.complete:
            return
        markers = sorted((self.output / "_shards").glob("*.json"))
        if markers:
            data.draw(st.sampled_from(markers)).unlink()

    @precondition(lambda self: self.standing is not None and not self.complete)
    @rule()
    def a_second_launcher(self) -> None:
        """While another run lives, the same command is refused and writes nothing."""
        before = {
            path: path.stat().st_mtime_ns for path in self.output.rglob("*") if path.is_file()
        }
        other = Lease.of_this_process("another run", local=True, patience_seconds=3600)
        root = Root(self.output)
        acquire(root, other, take_over=True, on_progress=lambda text: None)
        try:
            assert self.run(str(self.standing)) == Exit.REFUSED
        finally:
            release(root, "another run")
        after = {path: path.stat().st_mtime_ns for path in self.output.rglob("*") if path.is_file()}
        assert {p: t for p, t in after.items() if "_lease" not in p.parts} == {
            p: t for p, t in before.items() if "_lease" not in p.parts
        }

    @precondition(lambda self: self.standing is not None)
    @rule(text=st.sampled_from(["years of work", "more of it"]))
    def the_user_keeps_a_file_there(self, text: str) -> None:
        """It is nobody's to remove."""
        (self.output / "thesis.txt").write_text(text)
        self.mine = text

    @invariant()
    def what_is_complete_is_whole_and_right(self) -> None:
        if self.mine:
            assert (self.output / "thesis.txt").read_text() == self.mine
        if self.complete:
            assert contents(self.output) == self.wanted[str(self.standing)]
            assert not (self.output / "_work").exists()
            assert faults_of(str(self.output)) == []
        else:
            with pytest.raises(StoreError):
                elmo_store.open(str(self.output))

    def _job_there(self) -> str | None:
        try:
            return elmo_store.open(str(self.output), incomplete_ok=True).manifest.dtype
        except StoreError:
            return None


def _is_complete(output: Path) -> bool:
    try:
        elmo_store.open(str(output))
    except StoreError:
        return False
    return True


@pytest.fixture(scope="module", autouse=True)
def job(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The job and what both of its forms must come to."""
    folder = tmp_path_factory.mktemp("stateful")
    Outputs.job = SmallJob.make(folder / "input", n_files=2, n_lines=12)
    Outputs.wanted = {}
    for dtype in DTYPES:
        assert (
            main(Outputs.job.arguments(folder / dtype, "both", "--dtype", dtype)) == Exit.COMPLETE
        )
        Outputs.wanted[dtype] = contents(folder / dtype)


TestOutputs = Outputs.TestCase
TestOutputs.settings = settings(
    max_examples=5,
    stateful_step_count=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # shrinking runs jobs for minutes
)
