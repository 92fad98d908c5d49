"""A job's progress for Prometheus: what the last look at its output saw (`pipeline.progress.snapshot`), served at a port."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.progress.snapshot import STAGES, Snapshot


@dataclass(frozen=True)
class Metric:
    """A counter if its name ends with ``_total``, otherwise a gauge; ``value`` of a snapshot is None where it has none."""

    name: str
    help: str
    value: Callable[[Snapshot], float | None]


METRICS = (
    Metric("elmo_store_pieces_total", "pieces of the input that are read", lambda s: s.pieces_done if s.n_pieces else None),
    Metric("elmo_store_tokens_total", "tokens whose shards are written", lambda s: s.tokens_done if s.n_tokens else None),
    Metric("elmo_store_shards_total", "shards that are written", lambda s: s.shards_done if s.n_shards else None),
    Metric("elmo_store_expected_pieces", "pieces of the input", lambda s: s.n_pieces),
    Metric("elmo_store_expected_tokens", "tokens of the corpus", lambda s: s.n_tokens),
    Metric("elmo_store_expected_shards", "shards of the store", lambda s: s.n_shards),
    Metric("elmo_store_remaining_seconds", "time left of the stage at the present rate", lambda s: s.seconds_left),
)
STAGE = "elmo_store_stage"


class Meter:
    """The last snapshot of a job, for whoever asks."""

    def __init__(self) -> None:
        self.seen = Snapshot("starting")

    def see(self, snapshot: Snapshot) -> None:
        """``snapshot`` is the job's present state."""
        self.seen = snapshot


@contextmanager
def exported(port: int | None) -> Iterator[Meter | None]:
    """A meter that Prometheus can ask at every address of this machine while the block runs; None without a port.

    CommandError (bad location) for a port that can't be listened on.
    """
    if port is None:
        yield None
        return
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector

    meter = Meter()

    class Scraped(Collector):
        def collect(self) -> Iterable[Family]:
            seen = meter.seen
            for metric in METRICS:
                family = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
                if (value := metric.value(seen)) is not None:
                    yield family(metric.name, metric.help, value=value)
            stages = GaugeMetricFamily(STAGE, "1 for the stage that the job is in", labels=["stage"])
            for name in STAGES:
                stages.add_metric([name], float(name == seen.stage))
            yield stages

    registry = CollectorRegistry()
    registry.register(Scraped())
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise CommandError(Exit.BAD_LOCATION, f"--metrics-port {port} can't be listened on: {error}") from error
    try:
        yield meter
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
