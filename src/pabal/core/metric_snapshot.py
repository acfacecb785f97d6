"""The metrics of one process as values, and their sum over the processes of a hub.

Counters and histograms add up, also those of processes that ended. A gauge about the process adds up over the running
ones; every other gauge is about the database, equal in all processes, and is taken from one of them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

ADDED_KINDS = frozenset({"counter", "histogram", "summary"})
PROCESS_GAUGES = frozenset({"pabal_http_connections"})
"""Gauges that count what one process has open."""
CREATED_SUFFIX = "_created"
"""When a series began, in seconds since 1970: the sum takes the earliest."""

LabelPairs = tuple[tuple[str, str], ...]


class MetricFamily(msgspec.Struct, array_like=True, frozen=True):
    """One metric with its samples by name and labels."""

    name: str
    description: str
    kind: str
    samples: dict[tuple[str, LabelPairs], float]

    @property
    def adds_up(self) -> bool:
        return self.kind in ADDED_KINDS or self.name in PROCESS_GAUGES

    def to_metric(self) -> Metric:
        metric = Metric(self.name, self.description, self.kind)
        for (name, labels), value in self.samples.items():
            metric.add_sample(name, dict(labels), value)
        return metric


MetricSnapshot = dict[str, MetricFamily]
"""Metrics by name."""


def read_snapshot(registry: CollectorRegistry) -> MetricSnapshot:
    return {
        metric.name: MetricFamily(
            metric.name,
            metric.documentation,
            metric.type,
            {(sample.name, tuple(sample.labels.items())): float(sample.value) for sample in metric.samples},
        )
        for metric in registry.collect()
    }


def counters_of(snapshot: MetricSnapshot) -> MetricSnapshot:
    """What remains of a process that ended: everything but its gauges."""
    return {name: family for name, family in snapshot.items() if family.kind in ADDED_KINDS}


def sum_snapshots(first: MetricSnapshot, others: Iterable[MetricSnapshot]) -> MetricSnapshot:
    """Add up the metrics of all processes. Gauges of the database are those of `first`, where it has them."""
    total = dict(first)
    for snapshot in others:
        for name, family in snapshot.items():
            known = total.get(name)
            if known is None:
                total[name] = family
            elif known.adds_up:
                total[name] = msgspec.structs.replace(known, samples=add_samples(known.samples, family.samples))
    return total


def add_samples(
    left: dict[tuple[str, LabelPairs], float], right: dict[tuple[str, LabelPairs], float]
) -> dict[tuple[str, LabelPairs], float]:
    total = dict(left)
    for key, value in right.items():
        known = total.get(key)
        if known is None:
            total[key] = value
        else:
            total[key] = min(known, value) if key[0].endswith(CREATED_SUFFIX) else known + value
    return total


class SnapshotCollector:
    """Shows a snapshot to Prometheus's text format."""

    def __init__(self, snapshot: MetricSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for family in self._snapshot.values():
            yield family.to_metric()


def render_snapshot(snapshot: MetricSnapshot) -> bytes:
    collector: Any = SnapshotCollector(snapshot)
    return generate_latest(collector)
