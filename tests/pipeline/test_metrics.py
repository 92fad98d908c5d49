"""Metrics of a job, scraped as Prometheus does: what `watch` shows; what is refused."""

import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import elmo_store
from elmo_store.extras import EXTRAS
from elmo_store.storage.root import Root
from pipeline.cli.exit_codes import Exit
from pipeline.main import main
from pipeline.progress import bars
from pipeline.progress.metrics import REMAINING, STAGE, UNITS, exported
from pipeline.progress.snapshot import Snapshot
from tests.clusters.processes import free_port
from tests.pipeline.conftest import Command


def scraped(port: int) -> dict[tuple[str, str], float]:
    """Values by name and stage; "" where there is no such label."""
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=30) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return {
            (s.name, s.labels.get("stage", "")): s.value
            for family in families
            for s in family.samples
        }


def test_watch_serves_a_job_that_somebody_else_runs(
    embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, found = free_port(), []
    follow = bars.follow

    def run_and_follow(root: Root, *arguments: Any, **settings: Any) -> Snapshot:
        found.append(scraped(port))
        assert embed(tmp_path / "store") == Exit.COMPLETE
        snapshot = follow(root, *arguments, **settings)
        found.append(scraped(port))
        return snapshot

    monkeypatch.setattr(bars, "follow", run_and_follow)
    assert main(["watch", str(tmp_path / "store"), "--metrics-port", str(port)]) == Exit.COMPLETE
    before, after = found
    assert (before[STAGE, "starting"], after[STAGE, "complete"]) == (1, 1)
    assert ("elmo_store_tokens_total", "") not in before
    sizes = elmo_store.open(str(tmp_path / "store")).manifest.sizes
    assert (
        after["elmo_store_tokens_total", ""]
        == after["elmo_store_expected_tokens", ""]
        == sizes.tokens
    )
    assert (
        after["elmo_store_shards_total", ""]
        == after["elmo_store_expected_shards", ""]
        == sizes.shards
    )
    assert sum(value for (name, _), value in after.items() if name == STAGE) == 1
    with pytest.raises(OSError):
        scraped(port)


def test_a_missing_extra_and_a_taken_port_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, port = tmp_path / "store", free_port()
    with exported(port):
        assert main(["watch", str(out), "--metrics-port", str(port)]) == Exit.BAD_LOCATION
    assert "can't be listened on" in capsys.readouterr().err
    assert main(["watch", str(out), "--once", "--metrics-port", "9100"]) == Exit.BAD_USAGE
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ModuleNotFoundError) as missing:  # the entry point names the extra
        main(["watch", str(out), "--metrics-port", "9100"])
    assert EXTRAS[str(missing.value.name)] == "metrics"


def test_the_page_names_every_metric(repo_dir: Path) -> None:
    page = (repo_dir / "docs" / "usage.md").read_text("utf-8")
    assert set(re.findall(r"`(elmo_store_\w+)`", page)) == {
        STAGE, REMAINING, *(f"elmo_store_{unit}_total" for unit in UNITS), *(f"elmo_store_expected_{unit}" for unit in UNITS)
    }  # fmt: skip
