"""The pool with broken connections, a network that drops everything, a restarting server, and poolers."""

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
from pabal.core.finding import FindingLevel
from pabal.db import embedded
from pabal.db.doorbell.channels import Channel
from pabal.db.migrate import apply_migrations
from pabal.db.queries import parse_queries
from pabal.doctor.doctor import run_checks
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from support.clusters import Connection
from support.fault_proxy import FaultProxy, StartupSettings, run_fault_proxy
from support.migrated_server import copy_migrated_server
from support.server import serve_hub
from support.wait import wait_until

pytestmark = pytest.mark.anyio

ONE, SLEEP, CURRENT_USER, AS_JSON, TIMEOUT = parse_queries("""
-- name: one
select 1
-- name: sleep
select pg_sleep(:seconds)
-- name: current_user
select current_user
-- name: as_json
select :value::jsonb
-- name: timeout
select current_setting('statement_timeout')
""")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    timeouts = {"connect_timeout": timedelta(seconds=0.5), "statement_timeout": timedelta(seconds=0.5)}
    return settings.model_copy(update=timeouts)


@pytest.fixture
async def proxy(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[FaultProxy, DatabaseUrls]]:
    """A proxy in front of the main URL; the direct URL bypasses it."""
    async with run_fault_proxy(database_urls.main) as (fault_proxy, url):
        yield fault_proxy, DatabaseUrls(url, database_urls.direct)


@pytest.fixture
def folder() -> Generator[Path]:
    """A server's data directory that an unprivileged server can enter."""
    directory = Path(tempfile.mkdtemp(prefix="pabal-restart-"))
    directory.chmod(0o755)
    copy_migrated_server(directory)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


async def works(hub: Hub) -> bool:
    try:
        async with hub.transaction() as tx:
            return await tx.value(ONE) == 1
    except Unavailable:
        return False


async def test_broken_connections_are_replaced(proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings) -> None:
    fault_proxy, database_urls = proxy
    async with open_hub(settings, database_urls) as hub:
        assert await works(hub)

        with pytest.raises(Unavailable):
            async with hub.transaction() as tx:
                await tx.value(ONE)
                fault_proxy.reset()
                await tx.value(ONE)

        assert await works(hub)
        assert hub.db.connections_in_use() == 0


async def test_statements_time_out_without_a_network_and_the_pool_recovers(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    fault_proxy, database_urls = proxy
    async with open_hub(settings, database_urls) as hub:
        assert await works(hub)
        fault_proxy.drop_bytes()

        started = time.monotonic()
        assert not await works(hub)
        assert not any(await asyncio.gather(*(works(hub) for _ in range(20))))
        assert time.monotonic() - started < 12

        fault_proxy.pass_bytes()
        await wait_until(lambda: works(hub))
        await wait_until(lambda: hub.db.connections_in_use() == 0)


async def test_a_cancelled_statement_returns_without_a_network(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    fault_proxy, database_urls = proxy
    slow_settings = settings.model_copy(update={"statement_timeout": timedelta(seconds=30)})
    async with open_hub(slow_settings, database_urls) as hub:
        assert await works(hub)
        fault_proxy.drop_bytes()
        started = time.monotonic()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await works(hub)

        assert time.monotonic() - started < 5


async def test_a_health_check_responds_without_a_network(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    fault_proxy, database_urls = proxy
    slow_settings = settings.model_copy(update={"statement_timeout": timedelta(seconds=30)})
    async with (
        open_hub(slow_settings, database_urls) as hub,
        serve_hub(hub) as address,
        httpx2.AsyncClient(base_url=address, timeout=30) as web,
    ):
        assert await works(hub)  # opens a connection, so that the health check waits for its statement
        fault_proxy.drop_bytes()
        started = time.monotonic()

        responses = await asyncio.gather(*(web.get("/health") for _ in range(5)))

        assert {response.status_code for response in responses} == {503}
        assert time.monotonic() - started < 10
        fault_proxy.pass_bytes()
        await wait_until(lambda: healthy(web))


async def healthy(web: httpx2.AsyncClient) -> bool:
    return (await web.get("/health")).status_code == 200


async def test_a_slow_statement_is_cancelled_and_its_connection_stays_usable(
    database_urls: DatabaseUrls, settings: Settings
) -> None:
    async with open_hub(settings, database_urls) as hub:
        with pytest.raises(Unavailable, match="statement timeout"):
            async with hub.autocommit() as tx:
                await tx.value(SLEEP, seconds=30)

        assert await works(hub)


async def test_a_full_pool_times_out(database_urls: DatabaseUrls, settings: Settings) -> None:
    async with open_hub(settings.model_copy(update={"database_pool_size": 2}), database_urls) as hub:
        async with hub.autocommit(), hub.autocommit():
            assert hub.db.connections_in_use() == 2
            with pytest.raises(Unavailable, match=r"no free connection in the pool for 0\.5 s") as refusal:
                async with hub.autocommit():
                    pass
            assert refusal.value.nothing_sent
        assert await works(hub)


async def test_a_process_opens_no_more_connections_than_the_documentation_says(
    database_urls: DatabaseUrls, settings: Settings, owner: Connection
) -> None:
    pool_size = 3
    settings = settings.model_copy(update={"database_pool_size": pool_size, "connect_timeout": timedelta(seconds=10)})
    async with open_hub(settings, database_urls) as hub:
        await wait_until(lambda: hub.doorbell.listening)
        assert all(await asyncio.gather(*(works(hub) for _ in range(50))))

        sessions = await owner.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'pabal'"
        )

    assert sessions <= pool_size + 2
    assert Settings.model_fields["database_pool_size"].default + 2 == 18  # in docs/running.md


async def test_a_superuser_takes_the_role_service_role(database_urls: DatabaseUrls, settings: Settings) -> None:
    assert database_urls.direct
    async with open_hub(settings, DatabaseUrls(database_urls.direct, None)) as hub, hub.autocommit() as tx:
        assert await tx.value(CURRENT_USER) == "service_role"
        assert hub.db.server_info.superuser


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:port/x", "postgresql://127.0.0.1:1/x", "postgresql://[/x"])
async def test_an_invalid_url_is_unavailable(settings: Settings, url: str) -> None:
    with pytest.raises(Unavailable):
        async with open_hub(settings, DatabaseUrls(url, None)):
            pass


@pytest.mark.parametrize("behaviour", [StartupSettings.REFUSED, StartupSettings.IGNORED])
async def test_a_pooler_is_detected(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings, behaviour: StartupSettings
) -> None:
    fault_proxy, database_urls = proxy
    fault_proxy.settings = behaviour
    async with open_hub(settings, database_urls) as hub:
        assert hub.db.server_info.pooler
        async with hub.transaction() as tx:
            assert await tx.value(AS_JSON, value={"a": [1]}) == {"a": [1]}
            assert await tx.value(TIMEOUT) == "0"
        async with hub.autocommit() as tx:
            assert await tx.value(ONE) == 1
        await wait_until(lambda: hub.doorbell.listening)  # through the direct URL

    findings = {finding.what: finding for finding in await run_checks(settings, database_urls)}
    assert findings["pooler"].level is FindingLevel.GOOD
    assert findings["doorbell"].level is FindingLevel.GOOD


async def test_with_only_a_pooler_nothing_listens_and_the_doctor_advises(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    fault_proxy, database_urls = proxy
    fault_proxy.settings = StartupSettings.REFUSED
    pooler_only = DatabaseUrls(database_urls.main, None)
    async with open_hub(settings, pooler_only) as hub:
        assert not hub.doorbell.listening
        with hub.doorbell.listen(Channel.EVENTS) as listener:
            async with hub.transaction() as tx:
                tx.notify(Channel.EVENTS)
            assert await listener.wait(timedelta(seconds=5))  # within the process, no LISTEN is needed

    findings = {finding.what: finding for finding in await run_checks(settings, pooler_only)}
    assert findings["pooler"].level is FindingLevel.WARNING
    assert "PABAL_DATABASE_DIRECT_URL" in findings["pooler"].advice
    assert "doorbell" not in findings


async def test_the_pooler_setting_overrides_the_detection(
    proxy: tuple[FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    fault_proxy, database_urls = proxy
    fault_proxy.settings = StartupSettings.IGNORED
    async with open_hub(settings.model_copy(update={"database_pooler": False}), database_urls) as hub:
        assert not hub.db.server_info.pooler


async def test_the_hub_recovers_after_a_restart_of_the_server(settings: Settings, folder: Path) -> None:
    server = await asyncio.to_thread(embedded.start_embedded_server, folder)
    try:
        address = server.address
        await apply_migrations(address.owner_url, login="pabal_hub")
        async with open_hub(settings, DatabaseUrls(address.hub_url, address.owner_url)) as hub:
            assert await works(hub)
            await wait_until(lambda: hub.doorbell.listening)

            await asyncio.to_thread(server.stop)
            assert not await works(hub)
            await wait_until(lambda: not hub.doorbell.listening)

            server = await asyncio.to_thread(embedded.start_embedded_server, folder, port=address.port)
            await wait_until(lambda: works(hub))
            await wait_until(lambda: hub.doorbell.listening)
    finally:
        await asyncio.to_thread(server.stop)
