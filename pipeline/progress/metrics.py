"""A job's progress for Prometheus: what the last look at its output saw (`pipeline.progress.snapshot`), served at a port."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.progress.snapshot import STAGES, Snapshot

UNITS = {  # whose number is done, and expected
    "pieces": "of the input, read",
    "tokens": "of the corpus, whose shards are written",
    "shards": "of the store, written",
}
REMAINING, STAGE = "elmo_store_remaining_seconds", "elmo_store_stage"


class Meter:
    """The last snapshot of a job, for whoever asks; a collector of Prometheus's client."""

    def __init__(self) -> None:
        self.seen = Snapshot("starting")

    def collect(self) -> Iterator[Any]:
        """Metrics of what is known by now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        seen = self.seen
        for unit, what in UNITS.items():
            if (expected := getattr(seen, f"n_{unit}")) is not None:
                yield GaugeMetricFamily(
                    f"elmo_store_expected_{unit}", f"{unit} {what} at the end", value=expected
                )
                yield CounterMetricFamily(
                    f"elmo_store_{unit}", f"{unit} {what}", value=getattr(seen, f"{unit}_done")
                )
        if seen.seconds_left is not None:
            yield GaugeMetricFamily(
                REMAINING, "time left of the stage at the present rate", value=seen.seconds_left
            )
        stages = GaugeMetricFamily(STAGE, "1 for the stage that the job is in", labels=["stage"])
        for name in STAGES:
            stages.add_metric([name], float(name == seen.stage))
        yield stages


@contextmanager
def exported(port: int | None) -> Iterator[Meter]:
    """A meter that Prometheus can ask at every address of this machine while the block runs; nobody can without a port.

    CommandError (bad location) for a port that can't be listened on.
    """
    meter = Meter()
    if port is None:
        yield meter
        return
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(meter)  # duck-typed: collect is all it calls
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise CommandError(
            Exit.BAD_LOCATION, f"--metrics-port {port} can't be listened on: {error}"
        ) from error
    try:
        yield meter
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
