"""Imports without the garbage collector."""

import gc

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
