"""URLs with several hosts: dead, hung and read-only ones are passed over."""

import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from pabal.cli.database_settings import load_database_settings
from pabal.cli.options import Connection
from pabal.cli.target import running_target
from pabal.core.errors import Unavailable
from pabal.core.finding import FindingLevel
from pabal.db.connect import (
    HOST_TIMEOUT,
    SOCKET_OPTIONS,
    AnswerClock,
    ConnectOptions,
    HostDialer,
    HubConnection,
    connect_arguments,
    probe_server,
)
from pabal.db.migrate import read_migration_status
from pabal.db.monitor import PoolMonitor
from pabal.db.queries import parse_queries
from pabal.doctor.doctor import run_checks
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings, load_settings
from support.clusters import open_connection
from support.fault_proxy import FaultProxy, run_fault_proxy
from support.wait import wait_until

pytestmark = pytest.mark.anyio

ONE, PORT = parse_queries("""
-- name: one
select 1
-- name: port
select inet_client_port()
""")
FORMS = (
    "postgresql://{user}@{first},{second}/{name}?target_session_attrs=read-write",
    "postgresql://{user}@/{name}?host={first_host},{second_host}&port={first_port},{second_port}&connect_timeout=3",
)


def two_host_url(first: str, second: str, form: str = FORMS[0]) -> str:
    """One URL with the hosts of two. User and database are those of the second."""
    one, two = urlsplit(first), urlsplit(second)
    user, _, second_host = two.netloc.rpartition("@")
    return form.format(
        user=user,
        first=f"{one.hostname}:{one.port}",
        second=second_host,
        name=two.path[1:],
        first_host=one.hostname,
        first_port=one.port,
        second_host=two.hostname,
        second_port=two.port,
    )


@pytest.fixture
def closed_port() -> str:
    """The URL of a port that refuses connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"postgresql://127.0.0.1:{listener.getsockname()[1]}/x"


@pytest.fixture
async def proxies(database_urls: DatabaseUrls) -> AsyncGenerator[tuple[FaultProxy, FaultProxy, DatabaseUrls]]:
    """Two hosts of one database, and URLs with both: the main one as the hub, the direct one as the owner."""
    assert database_urls.direct
    async with AsyncExitStack() as stack:
        first, first_url = await stack.enter_async_context(run_fault_proxy(database_urls.main))
        second, second_url = await stack.enter_async_context(run_fault_proxy(database_urls.main))
        owner = database_urls.direct.rpartition("@")[0]
        direct = owner + "@" + two_host_url(first_url, second_url).rpartition("@")[2]
        yield first, second, DatabaseUrls(two_host_url(first_url, second_url), direct)


@pytest.mark.parametrize("form", FORMS)
async def test_a_url_with_two_hosts_works_everywhere(
    closed_port: str, database_urls: DatabaseUrls, settings: Settings, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    assert database_urls.direct
    urls = DatabaseUrls(
        two_host_url(closed_port, database_urls.main, form), two_host_url(closed_port, database_urls.direct, form)
    )
    assert load_settings(database_url=urls.main, database_direct_url=urls.direct).database_url
    monkeypatch.setenv("PABAL_DATABASE_URL", urls.main)
    assert running_target(load_database_settings(Connection())).login == "pabal_hub"
    assert not (await read_migration_status(urls.main)).pending

    async with open_hub(settings, urls) as hub:
        async with hub.autocommit() as tx:
            assert await tx.value(ONE) == 1
        await wait_until(lambda: hub.doorbell.listening)
    findings = {finding.what: finding for finding in await run_checks(settings, urls)}

    assert {findings[what].level for what in ("database", "schema", "doorbell")} == {FindingLevel.GOOD}


async def test_a_hung_first_host_costs_one_timeout_and_is_not_dialed_again(
    proxies: tuple[FaultProxy, FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    hung, _, urls = proxies
    hung.halt()
    settings = settings.model_copy(update={"connect_timeout": 2 * HOST_TIMEOUT})

    async with open_hub(settings, DatabaseUrls(urls.main, None)) as hub:
        await wait_until(lambda: hub.doorbell.listening)
        dials = hung.accepted
        async with hub.autocommit() as first, hub.autocommit() as second:
            assert [await first.value(ONE), await second.value(ONE)] == [1, 1]

        assert hung.accepted == dials


async def test_a_read_only_host_is_passed_over(
    proxies: tuple[FaultProxy, FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    standby, _, urls = proxies
    standby.added_settings = {"default_transaction_read_only": "on"}
    options = ConnectOptions(urls.main)

    connection = await HostDialer(urls.main, settings.connect_timeout).dial(
        connect_arguments(options, await probe_server(options))
    )

    try:
        assert await connection.fetchval("show transaction_read_only") == "off"
    finally:
        connection.terminate()


async def test_without_a_writable_host_the_error_names_each_host(
    closed_port: str, database_urls: DatabaseUrls, settings: Settings
) -> None:
    async with run_fault_proxy(database_urls.main) as (standby, standby_url):
        standby.added_settings = {"default_transaction_read_only": "on"}
        closed, open_port = urlsplit(closed_port).port, urlsplit(standby_url).port

        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{closed}: .*; 127\.0\.0\.1:{open_port}: .*read_write"):
            async with open_hub(settings, DatabaseUrls(two_host_url(closed_port, standby_url), None)):
                pass


async def test_a_changed_primary_is_followed(
    proxies: tuple[FaultProxy, FaultProxy, DatabaseUrls], settings: Settings
) -> None:
    first, second, urls = proxies
    async with open_hub(settings, urls) as hub:
        assert await works(hub)
        await wait_until(lambda: hub.doorbell.listening)
        assert not second.accepted

        first.halt()  # a hung primary: its kernel still accepts connections
        await wait_until(lambda: works(hub))
        await wait_until(lambda: second.accepted > 2 and hub.doorbell.listening)

        assert hub.db.connections_in_use() == 0


@pytest.mark.parametrize(
    ("error", "timeouts"),
    [
        (ConnectionError("one: no answer; two: a standby"), [1.5, 1.5, 1.5, 1.5]),
        (TimeoutError("one: no answer; two: no answer"), [1.5, 3.0, 5.0, 5.0]),
    ],
    ids=["one answers", "all are silent"],
)
async def test_only_if_all_hosts_are_silent_they_get_more_time(error: Exception, timeouts: list[float]) -> None:
    """A silent host must not delay the search for the new primary by more than its usual timeout."""
    dials: list[float] = []

    async def dial(timeout: timedelta) -> HubConnection:
        dials.append(timeout.total_seconds())
        raise error

    async def replace_idle() -> None:
        raise AssertionError

    monitor = PoolMonitor(AnswerClock(), timedelta(seconds=5), dial, replace_idle)
    monitor.suspect(ConnectionResetError())
    try:
        await wait_until(lambda: len(dials) >= len(timeouts))
    finally:
        await monitor.stop()

    assert dials[: len(timeouts)] == timeouts


async def works(hub: Hub) -> bool:
    try:
        async with hub.db.with_deadline(timedelta(seconds=1)).autocommit() as tx:
            return await tx.value(ONE) == 1
    except Unavailable:
        return False


async def test_the_sockets_notice_a_dead_server(database_urls: DatabaseUrls) -> None:
    options = ConnectOptions(database_urls.main)
    connection = await HostDialer(options.url, options.connect_timeout).dial(
        connect_arguments(options, await probe_server(options))
    )
    try:
        transport: Any = connection._transport  # pyright: ignore[reportAttributeAccessIssue]
        peer = transport.get_extra_info("socket")

        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for name, value in SOCKET_OPTIONS.items():
            assert peer.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        assert await connection.fetchval("show tcp_user_timeout") == "8000"
        assert await connection.fetchval("show tcp_keepalives_idle") == "5"
        assert await connection.fetchval("show tcp_keepalives_interval") == "2"
        assert await connection.fetchval("show tcp_keepalives_count") == "3"
        assert await connection.fetchval("show client_connection_check_interval") == "2s"
    finally:
        connection.terminate()


async def test_the_server_ends_the_statement_of_a_lost_client(database_urls: DatabaseUrls) -> None:
    options = ConnectOptions(database_urls.main)
    async with open_connection(database_urls.direct or database_urls.main) as owner:
        connection = await HostDialer(options.url, options.connect_timeout).dial(
            connect_arguments(options, await probe_server(options))
        )
        pid = connection.get_server_pid()
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)):
            await connection.fetchval("select pg_sleep(25)", timeout=0.2)

        async def is_gone() -> bool:
            return await owner.fetchval("select not exists (select from pg_stat_activity where pid = $1)", pid)

        await wait_until(is_gone)
