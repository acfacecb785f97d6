"""Meters: OpenTelemetry inside, Prometheus text outside. One set per hub, nothing global."""

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, Histogram, generate_latest

DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Boundaries in seconds; OpenTelemetry's own are in milliseconds."""


KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Those that are counted by name; anybody can make up others."""


class Metrics:
    """Where instruments are made, and where their numbers are read."""

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
            "How long a door took to answer.",
            ("http_request_method", "http_route", "http_response_status_code"),
            registry=self._registry,
            buckets=DURATION_BUCKETS,
        )
        self._labelled: dict[tuple[str, str, int], Histogram] = {}

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request, under OpenTelemetry's name for it and past it: there it costs ten times this."""
        what = (method if method in KNOWN_METHODS else "_OTHER", route, status)
        counted = self._labelled.get(what)
        if counted is None:
            counted = self._labelled[what] = self._request_duration.labels(*what)
        counted.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def close(self) -> None:
        self._provider.shutdown()
