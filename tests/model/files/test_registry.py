"""Models by name, folder and URL; downloads that appear whole or not at all."""

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

from model.errors import ModelError, UnknownModelError, WeightsError
from model.files import locate, registry
from model.files.registry import available_models, load_model
from model.files.weights import BiLMWeights


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ELMO_STORE_CACHE", str(folder))
    return folder


@pytest.fixture
def no_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation that carries no model; the folder is where they would be."""
    folder = tmp_path / "data"
    monkeypatch.setattr(registry, "_PACKAGED", folder)
    return folder


@pytest.fixture
def memory(tiny: BiLMWeights, tmp_path: Path) -> Iterator[Any]:
    """fsspec's memory filesystem with the tiny model in /models/tiny."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    tiny.save_hdf5(tmp_path / "upload")
    filesystem.put(str(tmp_path / "upload") + "/", "/models/tiny/", recursive=True)
    yield filesystem
    filesystem.store.clear()


def test_random_small_is_the_same_model_everywhere() -> None:
    name, weights = load_model("random-small")
    assert name == "random-small"
    assert (weights.options.dim, weights.options.projection_dim, weights.options.n_filters) == (
        1024,
        128,
        512,
    )
    assert (
        weights.fingerprint
        == "sha256:2774bd08cc7bdedaf37471d9fdfcd2cbb04b8baaa70a7695c80628328d06b3d7"
    )


def test_without_a_default_model_the_error_tells_the_remedies(no_packages: Path) -> None:
    with pytest.raises(UnknownModelError, match=r"`model='random-small'`.*`model=FOLDER`"):
        load_model(None)


def test_packaged_models_are_found_described_and_loaded(
    tiny: BiLMWeights, no_packages: Path
) -> None:
    tiny.save_safetensors(no_packages / "default" / "weights.safetensors", dtype="float16")
    (no_packages / "default" / "README.md").write_text(
        "# The card\n\nTrained on nothing at all.\n\nMore.\n"
    )
    info = available_models()[0]
    assert (info.name, info.description) == ("default", "Trained on nothing at all.")
    assert info.bytes == (no_packages / "default" / "weights.safetensors").stat().st_size
    name, weights = load_model(None)
    assert name == "default"
    assert weights.options == tiny.options


def test_available_models_name_what_load_model_takes(no_packages: Path) -> None:
    infos = {info.name: info for info in available_models()}
    assert list(infos) == ["random-small", "small", "medium", "original", "original-5.5b"]
    assert infos["original"].where == (
        "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/"
        "elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5"
    )
    assert all(info.description and info.where for info in infos.values())


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match=r"nosuch.*random-small, small"):
        load_model(str(tmp_path / "nosuch"))


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_local_folder_is_read_in_place(
    tiny: BiLMWeights, tmp_path: Path, cache: Path, prefix: str
) -> None:
    tiny.save_hdf5(tmp_path / "my-model")
    name, weights = load_model(f"{prefix}{tmp_path}/my-model/")
    assert (name, weights.fingerprint) == ("my-model", tiny.fingerprint)
    assert not cache.exists()


def test_a_folder_of_the_published_names(tiny: BiLMWeights, tmp_path: Path) -> None:
    tiny.save_hdf5(tmp_path)
    (tmp_path / "weights.hdf5").rename(tmp_path / "elmo_2x12_8_weights_PubMed_only.hdf5")
    (tmp_path / "options.json").rename(tmp_path / "elmo_2x12_8_options.json")
    (tmp_path / "other.hdf5").write_bytes(b"")
    assert load_model(str(tmp_path))[1].fingerprint == tiny.fingerprint
    single = load_model(str(tmp_path / "elmo_2x12_8_weights_PubMed_only.hdf5"))
    assert single[0] == "elmo_2x12_8_weights_PubMed_only"
    assert single[1].fingerprint == tiny.fingerprint


def test_a_folder_without_weights_says_what_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    with pytest.raises(WeightsError, match="holds nothing"):
        load_model(str(folder))
    (folder / "options.json").write_text("{}")
    (folder / "encoder.pkl").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"holds encoder\.pkl, options\.json"):
        load_model(str(folder))


def test_hdf5_without_options_is_refused(tiny: BiLMWeights, tmp_path: Path) -> None:
    tiny.save_hdf5(tmp_path)
    (tmp_path / "options.json").unlink()
    with pytest.raises(ModelError, match=r"no options\.json"):
        load_model(str(tmp_path))


def test_a_url_is_copied_to_the_cache_once(tiny: BiLMWeights, memory: Any, cache: Path) -> None:
    name, weights = load_model("memory://models/tiny")
    assert (name, weights.fingerprint) == ("tiny", tiny.fingerprint)
    copies = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
    assert sorted(path.name for path in copies) == ["options.json", "weights.hdf5"]
    load_model("memory://models/tiny")
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()} == copies


def test_a_changed_object_is_fetched_anew(tiny: BiLMWeights, memory: Any, tmp_path: Path) -> None:
    load_model("memory://models/tiny")
    other = registry.random_weights(tiny.options, seed=99)
    other.save_hdf5(tmp_path / "upload")
    memory.put(str(tmp_path / "upload" / "weights.hdf5"), "/models/tiny/weights.hdf5")
    assert load_model("memory://models/tiny")[1].fingerprint == other.fingerprint


def test_a_download_that_breaks_leaves_nothing(
    tiny: BiLMWeights, memory: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(source: Any, target: Any, length: int) -> None:
        target.write(source.read(100))
        raise OSError("the line went down")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", broken)
        with pytest.raises(UnknownModelError, match=r"the line went down.*check address, network"):
            load_model("memory://models/tiny")
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert load_model("memory://models/tiny")[1].fingerprint == tiny.fingerprint


def test_published_models_by_name(
    tiny: BiLMWeights, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = "2x1024_128_2048cnn_1xhighway"
    for kind, file in (("weights", "weights.hdf5"), ("options", "options.json")):
        memory.copy(
            f"/models/tiny/{file}", f"/elmo/{shape}/elmo_{shape}_{kind}.{file.rsplit('.', 1)[1]}"
        )
    small = registry._PUBLISHED["small"]
    here = replace(small, where=small.where.replace(registry._PUBLISHED_BASE, "memory://elmo/"))
    monkeypatch.setitem(registry._PUBLISHED, "small", here)
    name, weights = load_model("small")
    assert (name, weights.fingerprint) == ("small", tiny.fingerprint)


def test_nothing_at_a_url_and_an_unknown_protocol(memory: Any) -> None:
    with pytest.raises(UnknownModelError, match="memory://models/none"):
        load_model("memory://models/none")
    with pytest.raises(UnknownModelError, match="no file memory://models/none"):
        load_model("memory://models/none.hdf5")
    with pytest.raises(UnknownModelError, match="nosuchprotocol"):
        load_model("nosuchprotocol://x/y")


def test_over_http(tiny: BiLMWeights, tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("aiohttp")
    served = tmp_path / "served"
    tiny.save_hdf5(served / "tiny")
    tiny.save_safetensors(served / "alone.safetensors")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            base = f"http://127.0.0.1:{server.server_address[1]}"
            assert load_model(f"{base}/tiny")[1].fingerprint == tiny.fingerprint
            assert load_model(f"{base}/tiny/weights.hdf5")[1].fingerprint == tiny.fingerprint
            assert load_model(f"{base}/alone.safetensors")[1].fingerprint == tiny.fingerprint
            with pytest.raises(UnknownModelError):
                load_model(f"{base}/none")
        finally:
            server.shutdown()
            thread.join()
    assert len([path for path in cache.rglob("*") if path.is_file()]) == 3


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ELMO_STORE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert locate.cache_folder() == tmp_path / "elmo-store"


def test_the_model_card_of_every_packaged_model_states_options() -> None:
    for info in available_models():
        if info.bytes and not info.where.startswith("https://"):
            _, weights = load_model(info.name)
            assert json.dumps(weights.options.to_dict())
            assert weights.n_parameters > 0
