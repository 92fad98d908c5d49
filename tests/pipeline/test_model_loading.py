"""A model that is loaded beside the start of a job."""

import threading
import time

import pytest

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.model_loading import LoadingModel


def test_who_asks_before_it_is_known_that_a_model_can_t_be_loaded_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def load(self: LoadingModel) -> None:
        asked.wait(60)
        raise CommandError(Exit.BAD_USAGE, "no such model")

    monkeypatch.setattr(LoadingModel, "_load", load)
    loading = LoadingModel("no-such", "zero")
    told: list[BaseException] = []

    def ask() -> None:
        try:
            loading.result()
        except CommandError as error:
            told.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    first = loading._loaded
    asking.start()
    while loading._loaded is first:  # until the question has been put
        time.sleep(0.001)
    asked.set()
    asking.join(60)
    assert [str(error) for error in told] == ["no such model"]
