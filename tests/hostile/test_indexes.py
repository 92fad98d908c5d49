"""A damaged store in the explorer; and no store names what is loaded."""

from pathlib import Path
from typing import Any

import pytest

import elmo_store
from elmo_store.format import layout
from elmo_store.format.manifest import ModelInfo
from model.errors import UnknownModelError
from model.files.registry import local_spec
from pipeline.explore.service import ExplorerService, embed_own
from tests.store.support import Written, make_store


@pytest.fixture
def store(tmp_path: Path) -> Written:
    return make_store(str(tmp_path / "store"), lengths=(40,) * 6, parts=(6,))


def test_a_sample_that_can_t_be_read_is_told(store: Written) -> None:
    store.root.remove(layout.zarr_states_shard(0))
    service = ExplorerService(elmo_store.open(store.root.url()))
    service.wait()
    about = service.about()
    assert about["sample"] is None
    assert not about["reading"]
    assert "the sample can't be read" in about["problem"]
    with pytest.raises(ValueError, match="the sample can't be read"):
        service.neighbours("200", [1, 1, 1])


NAMES = [
    "http://127.0.0.1:1/model", "https://elsewhere.example/model.zip", "s3://bucket/model", "memory://model", "file:///etc",
    "/etc/passwd", "../model", "a/b", "a::b", ".", "..", "", "simplecache::http://127.0.0.1:1/x", "original", "small", "C:\\x",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_a_store_names_is_not_followed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from model.files import locate
    from pipeline.cli.exit_codes import CommandError
    from pipeline.jobs.recompute import recompute

    def asked(*arguments: Any) -> Any:
        raise AssertionError(f"{arguments} was opened")

    monkeypatch.setattr(locate, "_filesystem", asked)
    written = make_store(
        str(tmp_path / "s"), model=ModelInfo(name, "sha256:" + "1" * 64, {"lstm": {"n_layers": 2}})
    )
    store = elmo_store.open(written.root.url())
    with pytest.raises(ValueError, match="--model"):
        embed_own("the bank", store.manifest)
    with pytest.raises(CommandError, match="--model"):
        recompute(store, 1)
    with pytest.raises(UnknownModelError):
        local_spec(name)


def test_names_that_are_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert local_spec("random-small") == "random-small"
    assert local_spec("mine") == "./mine"
    with pytest.raises(UnknownModelError):
        local_spec("yours")


def test_the_model_that_the_user_names_is_taken(tmp_path: Path) -> None:
    written = make_store(
        str(tmp_path / "s"), model=ModelInfo("http://127.0.0.1:1/m", "sha256:" + "1" * 64, {})
    )
    with pytest.raises(ValueError, match="the model random-small of this machine is not the one"):
        ExplorerService(elmo_store.open(written.root.url()), model="random-small").embed("the bank")
