"""Imports without the garbage collector."""

import gc
import importlib
from pathlib import Path

import pytest

from pipeline.cli.importing import nothing_to_collect


def test_nothing_is_collected_meanwhile_and_all_is_as_before_afterwards() -> None:
    assert gc.isenabled()
    with nothing_to_collect():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError, match="not there"), nothing_to_collect():
        raise ImportError("not there")
    assert gc.isenabled()
    gc.disable()
    try:
        with nothing_to_collect():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_imported_is_left_out_of_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "with_an_object.py").write_text("held = [[]]\n")
    monkeypatch.syspath_prepend(tmp_path)
    with nothing_to_collect():
        held = importlib.import_module("with_an_object").held
    assert not any(value is held for value in gc.get_objects())  # of all but what is frozen
    later: list[list[str]] = [[]]
    with nothing_to_collect():
        pass
    assert any(value is later for value in gc.get_objects())
