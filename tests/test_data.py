"""The goldens' way from a wheel to their folder, without a network: what is taken, and what is refused."""

import zipfile
from pathlib import Path

import pytest

from tests import data


def wheel(folder: Path, contents: dict[str, bytes]) -> Path:
    path = folder / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(data.FIXTURES + name, content)
        archive.writestr("allennlp/__init__.py", "raise SystemExit('run')")
    return path


def test_the_folder_is_one_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ELMO_STORE_DATA", str(tmp_path / "named"))
    assert data.data_folder() == tmp_path / "named"
    monkeypatch.delenv("ELMO_STORE_DATA")
    monkeypatch.setenv("ELMO_STORE_CACHE", str(tmp_path / "cache"))
    assert data.data_folder() == tmp_path / "cache" / "data"


def test_goldens_are_taken_out_of_the_wheel_and_nothing_else_is(
    shared_dir: Path, tmp_path: Path
) -> None:
    goldens = {name: (shared_dir / "golden" / name).read_bytes() for name in data.SHA256}
    data.unpack(
        wheel(tmp_path, {**goldens, "vocab_test.txt": b"not asked for"}), tmp_path / "golden"
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / "golden").iterdir()} == goldens


def test_other_content_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    named = dict.fromkeys(data.SHA256, b"something else")
    with pytest.raises(ValueError, match="not used"):
        data.unpack(wheel(tmp_path, named), tmp_path / "golden")
    del named["lm_embeddings_0.hdf5"]  # the first that is looked for
    with pytest.raises(ValueError, match=r"some\.whl has no allennlp"):
        data.unpack(wheel(tmp_path, named), tmp_path / "golden")
    assert not (tmp_path / "golden").exists()


def test_a_download_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(data, "PACKAGE", "allennlp==0.9.0.no.such")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ValueError, match="pip could not download"):
        data.fetch_goldens(tmp_path / "golden")
