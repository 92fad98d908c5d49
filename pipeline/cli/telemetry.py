"""Metrics that a command is asked for: whether they can be had, before anything large is imported or anything is written."""

import os
from collections.abc import Mapping
from importlib.metadata import entry_points

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.importing import is_installed

REMEDY = "pip install '.[metrics]' in elmo-store's checkout"
EXPORTERS = "opentelemetry_metrics_exporter"  # group of the entry points of OpenTelemetry's exporters
ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOL = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}  # of OTLP → the exporter's entry point


def check(port: int | None, *, waits: bool, environment: Mapping[str, str] = os.environ) -> None:
    """CommandError (bad usage) for metrics that were asked for and can't be had."""
    if port is not None and not waits:
        raise CommandError(
            Exit.BAD_USAGE, "--metrics-port is of a command that stays: leave out --no-wait, or give it to elmo-store watch"
        )
    if port is not None and not is_installed("prometheus_client"):
        raise CommandError(Exit.BAD_USAGE, f"--metrics-port needs prometheus_client: {REMEDY}")
    for name in exporters(environment) if waits else ():
        if not entry_points(group=EXPORTERS, name=name):
            more = "pip install opentelemetry-exporter-otlp-proto-grpc" if name == PROTOCOLS["grpc"] else REMEDY
            raise CommandError(
                Exit.BAD_USAGE,
                f"OTEL_… variables ask for metrics, and OpenTelemetry's exporter {name} is not installed: {more}; "
                "OTEL_SDK_DISABLED=true asks for none",
            )


def exporters(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Entry points of the exporters that OpenTelemetry's variables ask for. CommandError (bad usage) for unknown ones."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return []
    asked = environment.get("OTEL_METRICS_EXPORTER") or ("otlp" if any(map(environment.get, ENDPOINTS)) else "none")
    return [_entry_point(name.strip(), environment) for name in asked.split(",") if name.strip() != "none"]


def _entry_point(name: str, environment: Mapping[str, str]) -> str:
    protocol = next(filter(None, map(environment.get, PROTOCOL)), "http/protobuf")
    if name == "console":
        return name
    if name != "otlp":
        raise CommandError(
            Exit.BAD_USAGE, f"OTEL_METRICS_EXPORTER={name}: give otlp, console or none (Prometheus: --metrics-port)"
        )
    if protocol not in PROTOCOLS:
        raise CommandError(Exit.BAD_USAGE, f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: give {' or '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol]
