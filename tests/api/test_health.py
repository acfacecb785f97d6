from collections.abc import AsyncGenerator
from datetime import datetime

import httpx2
import pytest

from pabal import __version__
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from support.server import serve_hub

pytestmark = pytest.mark.anyio

FIELDS = {"status", "timestamp", "database", "queueDepth", "oldestUndelivered", "activeAccounts", "version"}
[ACCOUNT] = parse_queries("""
-- name: account
insert into public.accounts (openclaw_user_id) values (:name)
""")


async def test_health_has_the_documented_fields(hub: Hub, web: httpx2.AsyncClient) -> None:
    async with hub.autocommit() as tx:
        await tx.run(ACCOUNT, name="mina")

    response = await web.get("/health")

    health = response.json()
    assert response.status_code == 200
    assert health.keys() == FIELDS
    assert (health["status"], health["database"], health["version"]) == ("ok", "ok", __version__)
    assert (health["queueDepth"], health["oldestUndelivered"], health["activeAccounts"]) == (0, 0, 1)
    assert datetime.fromisoformat(health["timestamp"]).tzinfo is not None


async def test_head_returns_no_body(web: httpx2.AsyncClient) -> None:
    response = await web.head("/health")

    assert (response.status_code, response.content) == (200, b"")


@pytest.fixture
async def without_database(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client of a hub without its database."""
    async with (
        open_hub(settings, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        await hub.db.close()
        yield client


async def test_a_hub_without_its_database_is_alive_but_not_ready(without_database: httpx2.AsyncClient) -> None:
    health, alive, ready = [await without_database.get(path) for path in ("/health", "/healthz", "/readyz")]

    assert health.status_code == 503
    assert health.json().keys() == FIELDS
    assert (health.json()["status"], health.json()["queueDepth"]) == ("unavailable", None)
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.headers["content-type"]) == (503, "application/problem+json")
    assert ready.headers["retry-after"] == "2"


async def test_a_browser_gets_an_html_error_page(without_database: httpx2.AsyncClient) -> None:
    response = await without_database.get("/console", headers={"cookie": "pabal_session=x", "accept-language": "en"})

    assert response.status_code == 503
    assert response.headers["content-type"].startswith("text/html")
    assert "The database is unavailable" in response.text


async def test_a_hub_with_its_database_is_ready(web: httpx2.AsyncClient) -> None:
    response = await web.get("/readyz")

    assert (response.status_code, response.json()) == (200, {"status": "ready"})
