"""Figures of the job that wrote a store: pure functions over its markers."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elmo_store.format.markers import ShardMarker


@dataclass(frozen=True)
class JobFigures:
    """When the shards were written, and by whom.

    Attributes:
        hours: [n] from the first marker to each bin's end, in hours. tokens_per_second: [n] in each bin.
        shards_by_worker: worker (host:pid) → shards, most first; empty where markers don't say.
        span_seconds: from the first call's begin to the last marker, pauses between runs included.
    """

    hours: npt.NDArray[np.float64]
    tokens_per_second: npt.NDArray[np.float64]
    shards_by_worker: dict[str, int]
    span_seconds: float


def job_figures(markers: Iterable[ShardMarker], n_bins: int = 60) -> JobFigures:
    """The figures of markers, of those that say when they were finished; a call's tokens are spread over its time."""
    calls: dict[tuple[str, float], tuple[float, float]] = {}  # worker, begin → last marker, tokens
    workers: dict[str, int] = {}
    for marker in markers:
        stats = marker.stats
        if "finished" not in stats:
            continue
        worker, finished = str(stats.get("worker", "")), float(stats["finished"])
        spent = sum(float(stats.get(f"seconds_{phase}", 0.0)) for phase in ("reading", "computing", "writing"))
        key = (worker, float(stats.get("call_began", finished - spent)))
        last, tokens = calls.get(key, (0.0, 0.0))
        calls[key] = (max(last, finished), tokens + float(stats.get("tokens", 0)))
        if worker:
            workers[worker] = workers.get(worker, 0) + 1
    ranked = dict(sorted(workers.items(), key=lambda item: (-item[1], item[0])))
    if not calls:
        return JobFigures(np.zeros(0), np.zeros(0), ranked, 0.0)
    began, ended = min(begin for _, begin in calls), max(last for last, _ in calls.values())
    span = max(ended - began, 1e-3)
    edges = np.linspace(began, began + span, n_bins + 1)
    tokens_in = np.zeros(n_bins)
    for (_, begin), (last, tokens) in calls.items():
        overlap = np.clip(np.minimum(edges[1:], max(last, begin + 1e-3)) - np.maximum(edges[:-1], begin), 0, None)
        if overlap.sum() > 0:
            tokens_in += tokens * overlap / overlap.sum()
    return JobFigures((edges[1:] - began) / 3600, tokens_in / np.diff(edges), ranked, span)
