"""An export that was suspended and replaced changes nothing when it wakes, wherever it was suspended."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elmo_store.errors import ExportRefusedError
from elmo_store.exports.job import export
from elmo_store.store import Store
from tests.store.suspended import every_suspension


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [("elmoformanylangs", {"layers": "all"}), ("npz", {"layers": "top"}), ("safetensors", {})],
)
def test_a_suspended_export_changes_nothing_of_the_winner(
    store: Store,
    tmp_path: Path,
    name: str,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def take_over(place: Path) -> bool:
        try:
            export(store, place, name, **settings)
        except ExportRefusedError:  # suspended after its last change
            return False
        return True

    n_suspensions = 0
    for _ in every_suspension(
        lambda place: None,
        partial(export, store, format=name, **settings),
        take_over,
        monkeypatch,
        tmp_path,
    ):
        n_suspensions += 1
    assert n_suspensions > 5
