"""Where a job's metrics go: Prometheus asks at a port, OpenTelemetry's exporters send them. Both libraries are an extra's."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import entry_points

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.cli.telemetry import EXPORTERS, exporters
from pipeline.progress.metrics import METRICS, STAGE, STAGES, Meter

LAST_EXPORT_MILLIS = 5_000  # that a collector which does not answer may hold up the end of a command


@contextmanager
def exported(port: int | None, *, waits: bool = True, environment: Mapping[str, str] = os.environ) -> Iterator[Meter | None]:
    """A meter whose values go where they are asked for while the block runs; None if they are not asked for.

    CommandError (bad location) for a port that can't be listened on; what is not installed was told by `telemetry.check`.
    """
    names = exporters(environment) if waits else []
    if port is None and not names:
        yield None
        return
    meter = Meter()
    with ExitStack() as stack:
        if port is not None:
            stack.callback(_serve(meter, port))
        if names:
            stack.callback(_send(meter, names, environment))
        stack.callback(meter.look)  # what the command left at its end
        yield meter


def _serve(meter: Meter, port: int) -> Callable[[], None]:
    """Answer Prometheus at every address of this machine; returns what ends that."""
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector

    class Scraped(Collector):
        def collect(self) -> Iterable[Metric]:
            stage, values = meter.read()
            for metric in METRICS:
                family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                if metric.name in values:
                    yield family(metric.prometheus, metric.help, value=values[metric.name])
            stages = GaugeMetricFamily(STAGE.prometheus, STAGE.help, labels=["stage"])
            for name in STAGES:
                stages.add_metric([name], float(name == stage))
            yield stages

    registry = CollectorRegistry()
    registry.register(Scraped())
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, f"--metrics-port {port} can't be listened on: {error}") from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


def _send(meter: Meter, names: Iterable[str], environment: Mapping[str, str]) -> Callable[[], None]:
    """Have OpenTelemetry's exporters send, as its variables say; returns what sends the last values and ends that."""
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    found = [next(iter(entry_points(group=EXPORTERS, name=name))) for name in names]
    readers = [PeriodicExportingMetricReader(exporter.load()()) for exporter in found]
    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "elmo-store"})
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)

    def value(name: str, _: CallbackOptions) -> Iterable[Observation]:
        values = meter.read()[1]
        return [Observation(values[name])] if name in values else []

    def stage(_: CallbackOptions) -> Iterable[Observation]:
        present = meter.read()[0]
        return [Observation(int(name == present), {"stage": name}) for name in STAGES]

    made = provider.get_meter("elmo_store")
    for metric in METRICS:
        create = made.create_observable_counter if metric.kind == "counter" else made.create_observable_gauge
        create(metric.opentelemetry, [partial(value, metric.name)], metric.unit, metric.help)
    made.create_observable_gauge(STAGE.opentelemetry, [stage], STAGE.unit, STAGE.help)
    return partial(provider.shutdown, LAST_EXPORT_MILLIS)
