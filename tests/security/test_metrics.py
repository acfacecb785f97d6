"""Metrics need no credential, so a client must not make them large or slow for others."""

import asyncio
from http import HTTPStatus
from itertools import count

import httpx2
import pytest
from opentelemetry.metrics import Observation

from pabal.api import routes
from pabal.core.metrics import KNOWN_METHODS, Metrics
from pabal.hub import Hub
from support.loop_thread import MAX_BLOCK, LoopThread, RawRequest

STATUSES = (200, 400, 401, 403, 404, 405, 413, 415, 429)


@pytest.mark.slow
def test_many_series_do_not_block_the_loop(served: LoopThread) -> None:
    """As many series as a scan of every route with every method and several credentials leaves behind."""
    for route in routes.ROUTES:
        for method in KNOWN_METHODS:
            for status in STATUSES:
                served.hub.metrics.observe_request(method, route.path, status, 0.01)

    seconds, status = served.longest_block(RawRequest("GET", "/metrics"))

    assert status == 200
    assert seconds < MAX_BLOCK


@pytest.mark.anyio
async def test_a_method_that_a_route_does_not_have_makes_no_series(hub: Hub, web: httpx2.AsyncClient) -> None:
    for method in ("PUT", "PATCH", "DELETE"):
        assert (await web.request(method, "/healthz")).status_code == HTTPStatus.METHOD_NOT_ALLOWED

    series = [line for line in hub.metrics.render().decode().splitlines() if 'status_code="405"' in line]

    assert series
    assert all('http_route="other"' in line for line in series)


@pytest.mark.anyio
async def test_calls_at_the_same_time_share_a_rendering_that_starts_after_them() -> None:
    metrics, renderings = Metrics("0"), count(1)
    metrics.meter.create_observable_gauge("renderings", [lambda _options: [Observation(next(renderings))]])

    first = await asyncio.gather(*(metrics.render_in_thread() for _ in range(50)))
    later = await metrics.render_in_thread()

    assert len(set(first)) == 1
    assert later != first[0]
    assert next(renderings) == 3
    metrics.close()
