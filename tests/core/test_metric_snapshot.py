"""The sum of the metrics of several processes."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pabal.core.metric_snapshot import (
    MetricSnapshot,
    counters_of,
    read_snapshot,
    render_snapshot,
    sum_snapshots,
)


def snapshot(requests: int, waiting: int, connections: int) -> MetricSnapshot:
    registry = CollectorRegistry()
    Counter("requests", "Requests.", ("route",), registry=registry).labels("/x").inc(requests)
    Gauge("pabal_lane_waiting", "Rows.", ("lane",), registry=registry).labels("relay").set(waiting)
    Gauge("pabal_http_connections", "Open.", registry=registry).set(connections)
    Histogram("duration_seconds", "Duration.", registry=registry, buckets=(1.0,)).observe(0.5)
    return read_snapshot(registry)


def values(total: MetricSnapshot) -> dict[str, float]:
    lines = render_snapshot(total).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs if "_created" not in name}


def test_counters_add_up_and_gauges_of_the_database_do_not() -> None:
    ended = counters_of(snapshot(requests=100, waiting=3, connections=50))

    total = sum_snapshots(snapshot(1, waiting=7, connections=2), [snapshot(10, waiting=6, connections=5), ended])

    assert values(total) == {
        'requests_total{route="/x"}': 111,
        'pabal_lane_waiting{lane="relay"}': 7,
        "pabal_http_connections": 7,
        'duration_seconds_bucket{le="1.0"}': 3,
        'duration_seconds_bucket{le="+Inf"}': 3,
        "duration_seconds_count": 3,
        "duration_seconds_sum": 1.5,
    }


def test_the_earliest_start_of_a_series_counts() -> None:
    first, second = snapshot(1, 0, 0), snapshot(1, 0, 0)
    begin = first["requests"].samples["requests_created", (("route", "/x"),)]

    total = sum_snapshots(second, [first])

    assert total["requests"].samples["requests_created", (("route", "/x"),)] == begin


def test_a_snapshot_is_rendered_as_its_registry_would_be() -> None:
    one = snapshot(1, 2, 3)

    assert sum_snapshots(one, []) == one
    assert values(one)['requests_total{route="/x"}'] == 1
