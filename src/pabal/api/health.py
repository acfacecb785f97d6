"""Liveness, readiness, health and metrics."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

import msgspec
from starlette.responses import Response

from pabal import __version__
from pabal.core.errors import Unavailable
from pabal.hub import Hub
from pabal.stats import HubStats
from pabal.web.route import ResponseBody, Route

PROBE_TIMEOUT = 3.0
"""Seconds that a probe waits for the database."""
HealthStatus = Literal["ok", "unavailable"]


class HealthView(ResponseBody, frozen=True, rename="camel"):
    """The state of the hub. `queueDepth` and `oldestUndelivered` (in seconds) are those of the relay."""

    status: HealthStatus
    timestamp: str
    database: HealthStatus
    queue_depth: int | None
    oldest_undelivered: float | None
    active_accounts: int | None
    version: str


class ProbeView(ResponseBody, frozen=True):
    """The result of a probe."""

    status: Literal["ok", "ready"]


async def get_health(hub: Hub) -> Response:
    """Get the state of the hub: 200 if it works, 503 if its database is unavailable."""
    try:
        stats = await read_stats_in_time(hub)
    except Unavailable:
        return json_response(health_view("unavailable", "unavailable"), 503)
    relay = stats.lane("relay")
    return json_response(
        health_view("ok", "ok", relay.waiting, relay.oldest_due.total_seconds(), stats.active_accounts),
    )


def health_view(
    status: HealthStatus,
    database: HealthStatus,
    queue_depth: int | None = None,
    oldest_undelivered: float | None = None,
    active_accounts: int | None = None,
) -> HealthView:
    return HealthView(
        status, datetime.now(UTC).isoformat(), database, queue_depth, oldest_undelivered, active_accounts, __version__
    )


async def get_liveness() -> ProbeView:
    """Check that the process responds. Checks nothing else."""
    return ProbeView("ok")


async def get_readiness(hub: Hub) -> ProbeView:
    """Check that the database responds, its schema fits and the process is not stopping; 503 otherwise."""
    if hub.stopping.is_set():
        raise Unavailable("The hub is stopping.")
    await read_stats_in_time(hub)
    return ProbeView("ready")


async def read_stats_in_time(hub: Hub) -> HubStats:
    """Read the stats with a timeout of our own: a probe must not wait for the statement timeout."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            await hub.db.require_fitting_schema()
            return await hub.stats.read()
    except TimeoutError:
        raise Unavailable("The database does not respond.") from None


async def get_metrics(hub: Hub) -> Response:
    """Get all metrics in the Prometheus text format. Queue gauges keep their last value while the database is down."""
    with suppress(Unavailable):
        await read_stats_in_time(hub)
    return Response(await hub.metrics.render_in_thread(), media_type="text/plain; version=0.0.4; charset=utf-8")


def json_response(body: ResponseBody, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


ROUTES = (
    Route("GET", "/health", get_health, response=HealthView, other_statuses={503: "The database is unavailable."}),
    Route("GET", "/healthz", get_liveness),
    Route("GET", "/readyz", get_readiness, may_raise=(Unavailable,)),
    Route("GET", "/metrics", get_metrics, media_type="text/plain"),
)
