"""``--log-level``: what is logged on the terminal."""

import logging

import pytest

from pipeline.cli import logs


@pytest.fixture
def own_logging() -> object:
    """Logging as it was before the test, afterwards."""
    root, beam = logging.getLogger(), logging.getLogger(logs.BEAM)
    before = list(root.handlers), root.level, list(root.filters), beam.level
    yield None
    logs.configure()
    root.handlers, root.level, root.filters = before[0], before[1], before[2]
    beam.setLevel(before[3])


@pytest.mark.usefixtures("own_logging")
def test_beams_log_is_not_shown_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("apache_beam.runners").error("a failure")
    logging.getLogger("transforms.inputs.files").warning("ours")
    said = logging.LogRecord(
        "root",
        logging.WARNING,
        "/lib/apache_beam/io.py",
        1,
        "apitools not found, and so on",
        None,
        None,
    )
    logging.getLogger().handle(said)
    assert capsys.readouterr().err == "WARNING transforms.inputs.files: ours\n"


@pytest.mark.usefixtures("own_logging")
def test_a_level_that_was_asked_for_shows_beams_log_too(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    logs.configure("info")  # a second command in the same process says nothing twice
    logging.getLogger("apache_beam").info("a detail")
    assert capsys.readouterr().err == "INFO apache_beam: a detail\n"
    logs.configure()
    logging.getLogger("apache_beam").error("a failure")
    assert capsys.readouterr().err == ""
