"""Is it alive, is it ready, how is it: for probes, for people, for Prometheus."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from starlette.responses import Response

from pabal import __version__
from pabal.core.errors import Unavailable
from pabal.hub import Hub
from pabal.stats import HubStats
from pabal.web.route import ResponseBody, Route

PROBE_TIMEOUT = 3.0
"""Seconds a probe waits for the database."""


class HealthView(ResponseBody, frozen=True, rename="camel"):
    """How the hub is. `queueDepth` and `oldestUndelivered` (seconds) speak of the relay."""

    status: str
    timestamp: str
    database: str
    queue_depth: int | None
    oldest_undelivered: float | None
    active_accounts: int | None
    version: str


class ProbeView(ResponseBody, frozen=True):
    """A process that answers."""

    status: str


async def get_health(hub: Hub) -> Response:
    """How the hub is: 200 when it can work, 503 when its database is away."""
    try:
        count = await read_stats_in_time(hub)
    except Unavailable:
        return json_response(health_view("unavailable", "unavailable"), 503)
    relay = count.lane("relay")
    return json_response(
        health_view("ok", "ok", relay.waiting, relay.oldest_due.total_seconds(), count.active_accounts),
    )


def health_view(
    status: str,
    database: str,
    queue_depth: int | None = None,
    oldest_undelivered: float | None = None,
    active_accounts: int | None = None,
) -> HealthView:
    return HealthView(
        status, datetime.now(UTC).isoformat(), database, queue_depth, oldest_undelivered, active_accounts, __version__
    )


async def get_liveness() -> ProbeView:
    """The process answers. Nothing else is looked at."""
    return ProbeView("ok")


async def get_readiness(hub: Hub) -> ProbeView:
    """The database answers, so requests can be taken; 503 otherwise."""
    await read_stats_in_time(hub)
    return ProbeView("ready")


async def read_stats_in_time(hub: Hub) -> HubStats:
    """Count, or say so in time: a probe does not wait for a statement's timeout when the network swallows it."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            return await hub.stats.read()
    except TimeoutError:
        raise Unavailable("the database does not answer") from None


async def get_metrics(hub: Hub) -> Response:
    """Every number, in Prometheus' text format. Those of the lanes stand still while the database is away."""
    with suppress(Unavailable):
        await read_stats_in_time(hub)
    return Response(hub.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def json_response(body: ResponseBody, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


ROUTES = (
    Route("GET", "/health", get_health, response=HealthView, other_statuses={503: "the database is away"}),
    Route("GET", "/healthz", get_liveness),
    Route("GET", "/readyz", get_readiness, may_raise=(Unavailable,)),
    Route("GET", "/metrics", get_metrics, media_type="text/plain"),
)
