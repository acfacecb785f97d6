"""The pool on a bad day: connections that break, networks that swallow, servers that restart, poolers in between."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from pabal.core.errors import Unavailable
from pabal.db import embedded
from pabal.db.channels import Channel
from pabal.db.migrate import apply_migrations
from pabal.db.queries import parse_queries
from pabal.doctor import FindingLevel, run_checks
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from support.fault_proxy import FaultProxy, between
from support.fault_proxy import Settings as Session
from support.server import serving
from support.wait import until

pytestmark = pytest.mark.anyio

ONE, SLEEP, WHO, AS_JSON, TIMEOUT = parse_queries("""
-- name: one
select 1
-- name: sleep
select pg_sleep(:seconds)
-- name: who
select current_user
-- name: as_json
select :value::jsonb
-- name: timeout
select current_setting('statement_timeout')
""")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    hurried = {"connect_timeout": timedelta(seconds=0.5), "statement_timeout": timedelta(seconds=0.5)}
    return settings.model_copy(update=hurried)


@pytest.fixture
async def proxy(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[FaultProxy, DatabaseUrls]]:
    """A proxy on the road of the work; the direct one stays straight."""
    async with between(database_urls.main) as (faults, url):
        yield faults, DatabaseUrls(url, database_urls.direct)


@pytest.fixture
def folder() -> Generator[Path]:
    """A folder an unprivileged server may walk through."""
    made = Path(tempfile.mkdtemp(prefix="pabal-restart-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def works(hub: Hub) -> bool:
    try:
        async with hub.transaction() as tx:
            return await tx.value(ONE) == 1
    except Unavailable:
        return False


async def test_broken_connections_are_replaced(proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings) -> None:
    faults, database_urls = proxy
    async with open_hub(settings, database_urls) as hub:
        assert await works(hub)

        with pytest.raises(Unavailable):
            async with hub.transaction() as tx:
                await tx.value(ONE)
                faults.reset()
                await tx.value(ONE)

        assert await works(hub)
        assert hub.db.connections_in_use() == 0


async def test_in_a_black_hole_a_statement_ends_and_the_pool_comes_back(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    faults, database_urls = proxy
    async with open_hub(settings, database_urls) as hub:
        assert await works(hub)
        faults.swallow()

        started = time.monotonic()
        assert not await works(hub)
        assert not any(await asyncio.gather(*(works(hub) for _ in range(20))))
        assert time.monotonic() - started < 12

        faults.flow()
        await until(lambda: works(hub))
        await until(lambda: hub.db.connections_in_use() == 0)


async def test_in_a_black_hole_whoever_gives_up_waiting_is_let_go(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    faults, database_urls = proxy
    patient = settings.model_copy(update={"statement_timeout": timedelta(seconds=30)})
    async with open_hub(patient, database_urls) as hub:
        assert await works(hub)
        faults.swallow()
        started = time.monotonic()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await works(hub)

        assert time.monotonic() - started < 5


async def test_a_probe_is_answered_in_time_even_then(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    faults, database_urls = proxy
    patient = settings.model_copy(update={"statement_timeout": timedelta(seconds=30)})
    async with (
        open_hub(patient, database_urls) as hub,
        serving(hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=30) as web,
    ):
        assert await works(hub)  # so that the probe finds a connection, and waits for a statement
        faults.swallow()
        started = time.monotonic()

        answers = await asyncio.gather(*(web.get("/health") for _ in range(5)))

        assert {answer.status_code for answer in answers} == {503}
        assert time.monotonic() - started < 10
        faults.flow()
        await until(lambda: healthy(web))


async def healthy(web: httpx2.AsyncClient) -> bool:
    return (await web.get("/health")).status_code == 200


async def test_a_statement_that_takes_too_long_is_stopped_and_its_connection_serves_on(
    database_urls: DatabaseUrls, settings: Settings
) -> None:
    async with open_hub(settings, database_urls) as hub:
        with pytest.raises(Unavailable, match="statement timeout"):
            async with hub.autocommit() as tx:
                await tx.value(SLEEP, seconds=30)

        assert await works(hub)


async def test_a_full_pool_says_so_in_time(database_urls: DatabaseUrls, settings: Settings) -> None:
    async with open_hub(settings.model_copy(update={"database_pool_size": 2}), database_urls) as hub:
        async with hub.autocommit(), hub.autocommit():
            assert hub.db.connections_in_use() == 2
            assert not await works(hub)
        assert await works(hub)


async def test_a_superuser_puts_on_service_roles_coat(database_urls: DatabaseUrls, settings: Settings) -> None:
    assert database_urls.direct
    async with open_hub(settings, DatabaseUrls(database_urls.direct, None)) as hub, hub.autocommit() as tx:
        assert await tx.value(WHO) == "service_role"
        assert hub.db.server_info.superuser


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:port/x", "postgresql://127.0.0.1:1/x", "postgresql://[/x"])
async def test_an_address_that_leads_nowhere_is_unavailable(settings: Settings, url: str) -> None:
    with pytest.raises(Unavailable):
        async with open_hub(settings, DatabaseUrls(url, None)):
            pass


@pytest.mark.parametrize("manner", [Session.REFUSED, Session.SWALLOWED])
async def test_a_pooler_in_between_is_found_out(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings, manner: Session
) -> None:
    faults, database_urls = proxy
    faults.settings = manner
    async with open_hub(settings, database_urls) as hub:
        assert hub.db.server_info.pooler
        async with hub.transaction() as tx:
            assert await tx.value(AS_JSON, value={"a": [1]}) == {"a": [1]}
            assert await tx.value(TIMEOUT) == "0"
        async with hub.autocommit() as tx:
            assert await tx.value(ONE) == 1
        await until(lambda: hub.doorbell.listening)  # by the direct road

    told = {finding.what: finding for finding in await run_checks(settings, database_urls)}
    assert told["pooler"].level is FindingLevel.GOOD
    assert told["doorbell"].level is FindingLevel.GOOD


async def test_behind_a_pooler_alone_nobody_listens_and_the_doctor_says_what_to_do(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    faults, database_urls = proxy
    faults.settings = Session.REFUSED
    alone = DatabaseUrls(database_urls.main, None)
    async with open_hub(settings, alone) as hub:
        assert not hub.doorbell.listening
        with hub.doorbell.listen(Channel.EVENTS) as heard:
            async with hub.transaction() as tx:
                tx.notify(Channel.EVENTS)
            assert await heard.wait(timedelta(seconds=5))  # a ring of one's own needs no LISTEN

    told = {finding.what: finding for finding in await run_checks(settings, alone)}
    assert told["pooler"].level is FindingLevel.WARNING
    assert "PABAL_DATABASE_DIRECT_URL" in told["pooler"].advice
    assert "doorbell" not in told


async def test_a_hub_told_there_is_no_pooler_believes_it(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    faults, database_urls = proxy
    faults.settings = Session.SWALLOWED
    async with open_hub(settings.model_copy(update={"database_pooler": False}), database_urls) as hub:
        assert not hub.db.server_info.pooler


async def test_after_a_restart_of_the_server_the_hub_goes_on(settings: Settings, folder: Path) -> None:
    server = await asyncio.to_thread(embedded.start_embedded_server, folder)
    try:
        endpoint = server.address
        await apply_migrations(endpoint.owner_url, login="pabal_hub")
        async with open_hub(settings, DatabaseUrls(endpoint.hub_url, endpoint.owner_url)) as hub:
            assert await works(hub)
            await until(lambda: hub.doorbell.listening)

            await asyncio.to_thread(server.stop)
            assert not await works(hub)
            await until(lambda: not hub.doorbell.listening)

            server = await asyncio.to_thread(embedded.start_embedded_server, folder, port=endpoint.port)
            await until(lambda: works(hub))
            await until(lambda: hub.doorbell.listening)
    finally:
        await asyncio.to_thread(server.stop)
