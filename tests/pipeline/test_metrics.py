"""Metrics of a job: scraped by Prometheus's text, sent by OpenTelemetry over HTTP, from what progress sees; what is refused."""

import pickle
import re
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

import elmo_store
from deploy.cluster.processes import free_port
from elmo_store.storage.root import Root
from pipeline.cli import telemetry
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.main import main
from pipeline.progress import bars, metrics
from pipeline.progress.metrics import METRICS, STAGE, Meter
from pipeline.progress.snapshot import Snapshot
from tests.pipeline.conftest import Command, interrupt
from transforms.stages import finish


def scraped(port: int) -> dict[tuple[str, str], float]:
    """Values by name and stage; "" where there is no such label."""
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=30) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return {(s.name, s.labels.get("stage", "")): s.value for family in families for s in family.samples}


class Received(ThreadingHTTPServer):
    """A collector: what was sent to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.paths: list[str] = []
        self.requests: list[ExportMetricsServiceRequest] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        server.paths.append(self.path)
        server.requests.append(ExportMetricsServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Received]:
    server = Received()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
def test_prometheus_scrapes_a_running_job(embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its last stage, when all is computed: the values are the store's."""
    port, file, complete = free_port(), tmp_path / "scraped", finish.finish_job
    monkeypatch.setattr(metrics, "LOCAL_LOOK_SECONDS", 0.01)

    def scrape_first(root: Root, outcome: Any) -> Any:  # Beam pickles it: a file carries what it found
        found = scraped(port)
        while not found["elmo_store_stage", "finishing"]:
            found = scraped(port)
        file.write_bytes(pickle.dumps(found))
        return complete(root, outcome)

    monkeypatch.setattr(finish, "finish_job", scrape_first)
    assert embed(tmp_path / "store", "--metrics-port", str(port)) == Exit.COMPLETE
    sizes = elmo_store.open(str(tmp_path / "store")).manifest.sizes
    found = pickle.loads(file.read_bytes())
    values = {name: value for (name, stage), value in found.items() if not stage}
    counted = {"tokens": sizes.tokens, "tokens_read": sizes.tokens, "shards": sizes.shards, "records_rejected": sizes.rejected}
    counted |= {"shards_failed": 0, "storage_retries": 0}
    assert {name: values[f"elmo_store_{name}_total"] for name in counted} == counted
    assert values["elmo_store_expected_tokens"] == sizes.tokens
    assert values["elmo_store_expected_shards"] == sizes.shards
    assert values["elmo_store_workers"] == 1
    for name in ("reading", "computing", "writing"):
        assert values[f"elmo_store_{name}_seconds_total"] > 0
    assert 0 < values["elmo_store_device_busy_ratio"] <= 1
    assert sum(value for (name, _), value in found.items() if name == "elmo_store_stage") == 1
    with pytest.raises(OSError):
        scraped(port)


@pytest.mark.slow
def test_opentelemetry_gets_what_each_job_came_to(
    embed: Command, tmp_path: Path, collector: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly")
    store, smaller = str(tmp_path / "store"), str(tmp_path / "smaller")
    assert embed(store) == Exit.COMPLETE
    of_embed = collector.requests[-1]
    assert main(["convert", store, "--output", smaller, "--dtype", "int8", "--quiet"]) == Exit.COMPLETE
    for output, request in ((store, of_embed), (smaller, collector.requests[-1])):
        (sent,) = request.resource_metrics
        assert {a.value.string_value for a in sent.resource.attributes if a.key == "service.name"} == {"nightly"}
        found = {metric.name: metric for scope in sent.scope_metrics for metric in scope.metrics}
        assert found["elmo_store.tokens"].sum.is_monotonic
        (tokens,) = found["elmo_store.tokens"].sum.data_points
        assert tokens.as_int == elmo_store.open(output).manifest.sizes.tokens
        (computing,) = found["elmo_store.computing"].sum.data_points
        assert (found["elmo_store.computing"].unit, computing.as_double > 0) == ("s", True)
        assert stages(request) == {"complete"}
    assert of_embed is not collector.requests[-1]
    assert set(collector.paths) == {"/v1/metrics"}


@pytest.mark.slow
def test_opentelemetry_is_told_that_a_job_failed(
    embed: Command, tmp_path: Path, collector: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    interrupt(embed, tmp_path / "store", monkeypatch)
    assert stages(collector.requests[-1]) == {"failed"}


def stages(request: ExportMetricsServiceRequest) -> set[str]:
    (sent,) = request.resource_metrics
    (metric,) = (metric for scope in sent.scope_metrics for metric in scope.metrics if metric.name == "elmo_store.stage")
    return {point.attributes[0].value.string_value for point in metric.gauge.data_points if point.as_int}


def test_watch_serves_a_job_that_somebody_else_runs(embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, found = free_port(), []
    follow = bars.follow

    def run_and_follow(root: Root, **settings: Any) -> Snapshot:
        found.append(scraped(port))
        assert embed(tmp_path / "store") == Exit.COMPLETE
        snapshot = follow(root, **settings)
        while not scraped(port)["elmo_store_stage", "complete"]:
            threading.Event().wait(0.01)
        found.append(scraped(port))
        return snapshot

    monkeypatch.setattr(metrics, "LOCAL_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(bars, "follow", run_and_follow)
    assert main(["watch", str(tmp_path / "store"), "--metrics-port", str(port)]) == Exit.COMPLETE
    before, after = found
    assert (before["elmo_store_stage", "starting"], before["elmo_store_tokens_total", ""]) == (1, 0)
    assert after["elmo_store_tokens_total", ""] == elmo_store.open(str(tmp_path / "store")).manifest.sizes.tokens


def test_counters_never_fall_and_what_is_not_known_is_not_said() -> None:
    meter = Meter()
    assert "expected_tokens" not in meter.read()[1]
    meter.see(Snapshot("computing", tokens_done=70, n_tokens=100, shards_done=3, sums={"seconds_computing": 2.0}))
    assert meter.read()[1]["expected_tokens"] == 100
    meter.see(Snapshot("failed", problem="the disk is full"))
    stage, values = meter.read()
    assert (stage, values["tokens"], values["shards"], values["computing"]) == ("failed", 70, 3, 2.0)


@pytest.mark.parametrize(
    ("variables", "exporters"),
    [
        ({}, []),
        ({"OTEL_SERVICE_NAME": "x"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x:4318/v1/metrics"}, ["otlp_proto_http"]),
        ({"OTEL_METRICS_EXPORTER": "otlp,console"}, ["otlp_proto_http", "console"]),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, []),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, []),
    ],
)
def test_opentelemetrys_own_variables_say_who_sends(variables: dict[str, str], exporters: list[str]) -> None:
    assert telemetry.exporters(variables) == exporters


@pytest.mark.parametrize(
    ("variables", "missing", "names"),
    [
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, "", "--metrics-port"),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "", "http/protobuf or grpc"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, "otlp_proto_http", r"'\.\[metrics\]'"),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "otlp_proto_grpc", "exporter-otlp-proto-grpc"),
    ],
)
def test_exporters_that_cant_be_had_are_named_with_the_remedy(
    variables: dict[str, str], missing: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = metadata.entry_points

    def entry_points(*, group: str, name: str) -> Any:
        return () if name == missing else installed(group=group, name=name)

    monkeypatch.setattr(telemetry, "entry_points", entry_points)
    with pytest.raises(CommandError, match=names) as refused:
        telemetry.check(None, waits=True, environment=variables)
    assert refused.value.code == Exit.BAD_USAGE


def test_a_missing_extra_and_a_taken_port_are_told_before_anything_is_written(
    embed: Command, tmp_path: Path, collector: Received, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    assert embed(out, "--metrics-port", str(collector.server_address[1])) == Exit.BAD_LOCATION
    assert "can't be listened on" in capsys.readouterr().err
    assert embed(out, "--metrics-port", "9100", "--no-wait") == Exit.BAD_USAGE
    assert "elmo-store watch" in capsys.readouterr().err
    assert main(["watch", str(out), "--once", "--metrics-port", "9100"]) == Exit.BAD_USAGE
    monkeypatch.setattr(telemetry, "is_installed", lambda module: False)
    assert embed(out, "--metrics-port", "9100") == Exit.BAD_USAGE
    assert "pip install '.[metrics]'" in capsys.readouterr().err
    assert not out.exists()


def test_the_table_of_the_docs_is_the_codes(repo_dir: Path) -> None:
    page = (repo_dir / "docs" / "usage.md").read_text("utf-8")
    rows = re.findall(r"^\|`(elmo_store_\w+)`\|(\S+)\|(?:`(\w+)`)?\|.+\|$", page, re.MULTILINE)
    assert rows == [(metric.prometheus, metric.unit.strip("{}"), metric.beam) for metric in (*METRICS, STAGE)]
