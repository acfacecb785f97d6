"""Is it alive, is it ready, how is it: for probes, for people, for Prometheus."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from starlette.responses import Response

from pabal import __version__
from pabal.api.door import Answer, Door
from pabal.core.errors import Unavailable
from pabal.queue.census import Count
from pabal.wiring import Hub

PROMPT = 3.0
"""Seconds a probe waits for the database."""


class Health(Answer, frozen=True, rename="camel"):
    """How the hub is. `queueDepth` and `oldestUndelivered` (seconds) speak of the relay."""

    status: str
    timestamp: str
    database: str
    queue_depth: int | None
    oldest_undelivered: float | None
    active_accounts: int | None
    version: str


class Alive(Answer, frozen=True):
    """A process that answers."""

    status: str


async def health(hub: Hub) -> Response:
    """How the hub is: 200 when it can work, 503 when its database is away."""
    try:
        count = await promptly(hub)
    except Unavailable:
        return as_json(health_of("unavailable", "unavailable"), 503)
    relay = count.lane("relay")
    return as_json(
        health_of("ok", "ok", relay.waiting, relay.oldest_due.total_seconds(), count.active_accounts),
    )


def health_of(
    status: str, database: str, depth: int | None = None, oldest: float | None = None, accounts: int | None = None
) -> Health:
    return Health(status, datetime.now(UTC).isoformat(), database, depth, oldest, accounts, __version__)


async def alive() -> Alive:
    """The process answers. Nothing else is looked at."""
    return Alive("ok")


async def ready(hub: Hub) -> Alive:
    """The database answers, so requests can be taken; 503 otherwise."""
    await promptly(hub)
    return Alive("ready")


async def promptly(hub: Hub) -> Count:
    """Count, or say so in time: a probe does not wait for a statement's timeout when the network swallows it."""
    try:
        async with asyncio.timeout(PROMPT):
            return await hub.census.take()
    except TimeoutError:
        raise Unavailable("the database does not answer") from None


async def metrics(hub: Hub) -> Response:
    """Every number, in Prometheus' text format. Those of the lanes stand still while the database is away."""
    with suppress(Unavailable):
        await promptly(hub)
    return Response(hub.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def as_json(answer: Answer, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


DOORS = (
    Door("GET", "/health", health, gives=Health, also={503: "the database is away"}),
    Door("GET", "/healthz", alive),
    Door("GET", "/readyz", ready, may_raise=(Unavailable,)),
    Door("GET", "/metrics", metrics, media_type="text/plain"),
)
