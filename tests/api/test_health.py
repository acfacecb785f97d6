from collections.abc import AsyncGenerator
from datetime import datetime

import httpx2
import pytest

from pabal import __version__
from pabal.db.queries import parse_queries
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from support.server import serving

pytestmark = pytest.mark.anyio

FIELDS = {"status", "timestamp", "database", "queueDepth", "oldestUndelivered", "activeAccounts", "version"}
[ACCOUNT] = parse_queries("""
-- name: account
insert into public.accounts (openclaw_user_id) values (:name)
""")


async def test_health_has_the_relays_fields(hub: Hub, web: httpx2.AsyncClient) -> None:
    async with hub.autocommit() as tx:
        await tx.run(ACCOUNT, name="somebody")

    answer = await web.get("/health")

    told = answer.json()
    assert answer.status_code == 200
    assert told.keys() == FIELDS
    assert (told["status"], told["database"], told["version"]) == ("ok", "ok", __version__)
    assert (told["queueDepth"], told["oldestUndelivered"], told["activeAccounts"]) == (0, 0, 1)
    assert datetime.fromisoformat(told["timestamp"]).tzinfo is not None


async def test_head_works_and_brings_no_body(web: httpx2.AsyncClient) -> None:
    answer = await web.head("/health")

    assert (answer.status_code, answer.content) == (200, b"")


@pytest.fixture
async def stranded(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client of a hub whose database is gone."""
    async with (
        open_hub(settings, database_urls) as hub,
        serving(hub) as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        await hub.db.close()
        yield client


async def test_without_its_database_the_hub_lives_and_says_so(stranded: httpx2.AsyncClient) -> None:
    health, alive, ready = [await stranded.get(path) for path in ("/health", "/healthz", "/readyz")]

    assert health.status_code == 503
    assert health.json().keys() == FIELDS
    assert (health.json()["status"], health.json()["queueDepth"]) == ("unavailable", None)
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.headers["content-type"]) == (503, "application/problem+json")
    assert ready.headers["retry-after"] == "2"


async def test_a_person_gets_a_page_not_a_problem(stranded: httpx2.AsyncClient) -> None:
    answer = await stranded.get("/console", headers={"cookie": "pabal_session=x", "accept-language": "en"})

    assert answer.status_code == 503
    assert answer.headers["content-type"].startswith("text/html")
    assert "The database is away" in answer.text


async def test_a_hub_with_its_database_is_ready(web: httpx2.AsyncClient) -> None:
    answer = await web.get("/readyz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
