"""Meters: OpenTelemetry inside, Prometheus text outside. One set per hub, nothing global."""

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Boundaries in seconds; OpenTelemetry's own are in milliseconds."""


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
        self.requests = self.meter.create_histogram(
            "http.server.request.duration",
            unit="s",
            description="How long a door took to answer.",
            explicit_bucket_boundaries_advisory=list(SECONDS),
        )

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def close(self) -> None:
        self._provider.shutdown()
