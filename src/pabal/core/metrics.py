"""Metrics: OpenTelemetry instruments, exported as Prometheus text. One set per hub, nothing global."""

import asyncio
from collections.abc import Awaitable, Callable

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from pabal.core.metric_snapshot import MetricSnapshot, read_snapshot, render_snapshot

DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Boundaries in seconds; the defaults of OpenTelemetry are in milliseconds."""


KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that get their own label. Others share one, because clients can send any method."""


class Metrics:
    """Creates instruments and renders their values."""

    def __init__(self, version: str) -> None:
        self._registry = CollectorRegistry()
        self._provider = MeterProvider(
            metric_readers=[PrometheusMetricReader(registry=self._registry, scope_info_enabled=False)],
            resource=Resource.create({"service.name": "pabal", "service.version": version}),
            shutdown_on_exit=False,
        )
        self.meter: Meter = self._provider.get_meter("pabal", version)
        self._request_duration = Histogram(
            "http_server_request_duration_seconds",
            "Duration of HTTP requests, by route.",
            ("http_request_method", "http_route", "http_response_status_code"),
            registry=self._registry,
            buckets=DURATION_BUCKETS,
        )
        self._loop_lag = Histogram(
            "pabal_event_loop_lag_seconds",
            "How late the event loop runs.",
            registry=self._registry,
            buckets=DURATION_BUCKETS,
        )
        self.observe_loop_lag = self._loop_lag.observe
        self._labelled: dict[tuple[str, str, int], Histogram] = {}
        self.sum_over_processes: Callable[[MetricSnapshot], Awaitable[MetricSnapshot]] | None = None
        """Adds the metrics of the hub's other processes to those of this one, where a supervisor runs several."""
        self._is_rendering = asyncio.Lock()
        self._next_rendering: asyncio.Task[bytes] | None = None

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record a request. Uses Prometheus directly, at a tenth of the cost, under OpenTelemetry's metric name."""
        labels = (method if method in KNOWN_METHODS else "_OTHER", route, status)
        histogram = self._labelled.get(labels)
        if histogram is None:
            histogram = self._labelled[labels] = self._request_duration.labels(*labels)
        histogram.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    async def snapshot_in_thread(self) -> MetricSnapshot:
        """The metrics of this process, collected outside the event loop."""
        return await asyncio.to_thread(read_snapshot, self._registry)

    async def render_in_thread(self) -> bytes:
        """Render outside the event loop, because it takes long.

        One rendering runs at a time. Calls that arrive meanwhile share the next one.
        """
        if self._next_rendering is None:
            self._next_rendering = asyncio.create_task(self._render_next())
        return await asyncio.shield(self._next_rendering)

    async def _render_next(self) -> bytes:
        async with self._is_rendering:
            self._next_rendering = None  # later calls must see later values
            if self.sum_over_processes is None:
                return await asyncio.to_thread(self.render)
            total = await self.sum_over_processes(await self.snapshot_in_thread())
            return await asyncio.to_thread(render_snapshot, total)

    def close(self) -> None:
        self._provider.shutdown()
