"""The log of requests: complete at a low rate, and never without errors."""

import asyncio
from collections.abc import AsyncGenerator

import httpx2
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from pabal.hub import DatabaseUrls, open_hub
from pabal.settings import Settings
from pabal.web.access_log import SLOW_SECONDS, AccessLogSampler
from pabal.web.encoded_response import EncodedJsonResponse
from pabal.web.middleware import SECURITY_HEADERS
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

LIMIT = 3
OPEN_PATH = "/.well-known/oauth-authorization-server"


@pytest.fixture
async def limited(settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[httpx2.AsyncClient]:
    """A hub that logs one successful request per second."""
    sparing = settings.model_copy(update={"log_requests_per_second": 1})
    async with open_hub(sparing, database_urls) as hub, serve_hub(hub) as url, httpx2.AsyncClient(base_url=url) as web:
        yield web


def answered(logs: list[EventDict], status: int) -> int:
    return sum(entry["event"] == "request answered" and entry["status"] == status for entry in logs)


def unlogged(logs: list[EventDict]) -> int:
    return sum(entry["count"] for entry in logs if entry["event"] == "requests not logged")


async def test_every_request_is_in_the_log_or_counted_in_it(limited: httpx2.AsyncClient) -> None:
    with capture_logs() as logs:
        await asyncio.gather(*(limited.get(OPEN_PATH) for _ in range(60)))
        await wait_until(lambda: answered(logs, 200) + unlogged(logs) == 60)

    assert unlogged(logs) > 0


async def test_requests_that_are_logged_for_debugging_only_do_not_use_up_the_limit(limited: httpx2.AsyncClient) -> None:
    with capture_logs() as logs:
        for _ in range(20):
            await limited.get("/healthz")
        await limited.get(OPEN_PATH)
        await wait_until(lambda: answered(logs, 200) == 21)

    assert unlogged(logs) == 0
    requests = [entry for entry in logs if entry["event"] == "request answered"]
    assert [entry["path"] for entry in requests if entry["log_level"] == "info"] == [OPEN_PATH]


async def test_no_error_is_left_out(limited: httpx2.AsyncClient) -> None:
    with capture_logs() as logs:
        for _ in range(20):
            await limited.get(OPEN_PATH)
            await limited.get("/v1/queue/events")

    assert answered(logs, 401) == 20


async def test_errors_and_slow_requests_do_not_use_up_the_limit() -> None:
    sampler = AccessLogSampler(LIMIT)
    always = [(500, 0.0), (404, 0.0), (0, 0.0), (200, SLOW_SECONDS)] * 10
    assert all(sampler.is_logged(status, seconds) for status, seconds in always)

    assert [sampler.is_logged(202, 0.001) for _ in range(5)] == [True, True, True, False, False]
    assert all(sampler.is_logged(status, seconds) for status, seconds in always)
    with capture_logs() as logs:
        sampler.end_window()
        sampler.end_window()

    assert [(entry["event"], entry["count"]) for entry in logs] == [("requests not logged", 2)]
    assert sampler.is_logged(202, 0.001)
    sampler.end_window()


async def test_without_a_limit_every_request_is_logged() -> None:
    sampler = AccessLogSampler(0)

    assert all(sampler.is_logged(200, 0.0) for _ in range(10_000))


async def test_an_encoded_response_has_the_headers_of_any_other(web: httpx2.AsyncClient) -> None:
    response = await web.get("/healthz")

    assert {name: response.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert response.headers.get_list("content-type") == ["application/json"]
    assert response.headers.get_list("content-length") == [str(len(response.content))]
    assert response.headers.get_list("cache-control") == ["no-store"]
    assert len(response.headers["x-request-id"]) == 32


def test_an_encoded_response_can_get_further_headers() -> None:
    response = EncodedJsonResponse(b"{}", 202)
    response.headers["retry-after"] = "5"

    assert response.raw_headers == [
        (b"content-length", b"2"),
        (b"content-type", b"application/json"),
        (b"retry-after", b"5"),
    ]
