"""A whole job from and to abfs:// on Microsoft's own emulator of Azure's blob storage: the same bytes as on a local disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elmo_store.storage.root import Root
from tests.pipeline.support import check_a_job_from_and_to

Command = Callable[..., int]
pytestmark = pytest.mark.slow


def test_a_job_from_and_to_abfs_is_the_same_as_on_disk(
    embed: Command, corpus: Path, azure: dict[str, Any], tmp_path: Path, tiny_model: Path
) -> None:
    check_a_job_from_and_to(
        f"abfs://elmo/{tmp_path.name}", azure, embed, corpus, tmp_path / "local", tiny_model
    )


def test_of_two_that_claim_an_object_one_succeeds(azure: dict[str, Any], tmp_path: Path) -> None:
    root = Root(f"abfs://elmo/{tmp_path.name}", azure)
    assert root.put_new("lease.json", b"mine")
    assert not root.put_new("lease.json", b"theirs")
    assert root.get("lease.json") == b"mine"
    stamp = root.stamp("lease.json")
    assert stamp
    root.put("lease.json", b"over")
    assert root.stamp("lease.json") not in (stamp, "", None)
