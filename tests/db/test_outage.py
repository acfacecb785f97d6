"""A database that stops answering: noticed soon, refused at once, dialed by one task, back by itself."""

import asyncio
import time
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from pabal.core.errors import Unavailable
from pabal.db import plans
from pabal.db.pool import ReservedDatabase
from pabal.db.queries import parse_queries
from pabal.hub import WEBHOOK_SHARE, DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from support.clusters import Connection
from support.fault_proxy import FaultProxy, run_fault_proxy
from support.wait import wait_for_lock_of, wait_until

pytestmark = pytest.mark.anyio

ONE, SLEEP, PID, LOCK = parse_queries("""
-- name: one
select 1
-- name: sleep
select pg_sleep(:seconds)
-- name: pid
select pg_backend_pid()
-- name: lock
select pg_advisory_xact_lock(:key::bigint)
""")
SLOW = timedelta(minutes=2)
"""A statement timeout that no test reaches."""
NOTICED_WITHIN = 20
"""Seconds. An outage is noticed in four; the statement timeout of two minutes must not be needed."""


@pytest.fixture
async def proxied(database_urls: DatabaseUrls, settings: Settings) -> AsyncGenerator[tuple[FaultProxy, Hub]]:
    """A hub whose database, its LISTEN connection included, is behind one proxy."""
    settings = settings.model_copy(update={"statement_timeout": SLOW})
    async with run_fault_proxy(database_urls.main) as (proxy, url), open_hub(settings, DatabaseUrls(url, None)) as hub:
        await wait_until(lambda: hub.doorbell.listening)
        yield proxy, hub


async def works(hub: Hub) -> bool:
    try:
        async with hub.autocommit() as tx:
            return await tx.value(ONE) == 1
    except Unavailable:
        return False


async def is_refused(hub: Hub) -> bool:
    return not await works(hub)


async def test_an_outage_is_noticed_long_before_the_statement_timeout(proxied: tuple[FaultProxy, Hub]) -> None:
    proxy, hub = proxied
    assert await works(hub)
    proxy.drop_bytes()

    async with asyncio.timeout(NOTICED_WITHIN):
        assert not any(await asyncio.gather(*(works(hub) for _ in range(12))))

    proxy.pass_bytes()
    await wait_until(lambda: works(hub))
    assert hub.db.connections_in_use() == 0


async def test_a_halted_network_ends_transactions_and_the_hub_works_when_it_is_back(
    proxied: tuple[FaultProxy, Hub],
) -> None:
    proxy, hub = proxied

    with pytest.raises(Unavailable):
        async with asyncio.timeout(NOTICED_WITHIN), hub.transaction() as tx:
            await tx.value(ONE)
            proxy.halt()
            await tx.value(ONE)
    await wait_until(lambda: is_refused(hub))
    proxy.pass_bytes()

    await wait_until(lambda: works(hub), within=10)
    await wait_until(lambda: hub.doorbell.listening)


async def test_connections_in_use_that_became_silent_end_when_new_ones_work(proxied: tuple[FaultProxy, Hub]) -> None:
    proxy, hub = proxied
    callers = hub.settings.database_pool_size - hub.settings.database_pool_size // WEBHOOK_SHARE
    opened = asyncio.Barrier(callers)

    async def use_a_connection_that_becomes_silent() -> None:
        async with hub.transaction() as tx:
            await tx.value(ONE)
            await opened.wait()
            proxy.lose_open_connections()
            await tx.value(ONE)

    async with asyncio.timeout(NOTICED_WITHIN):
        results = await asyncio.gather(
            *(use_a_connection_that_becomes_silent() for _ in range(callers)), return_exceptions=True
        )
        assert [type(result) for result in results] == [Unavailable] * callers
        await wait_until(lambda: works(hub))
    assert hub.db.connections_in_use() == 0


async def test_a_connection_that_was_idle_and_silent_is_replaced(proxied: tuple[FaultProxy, Hub]) -> None:
    proxy, hub = proxied
    callers = 4
    opened = asyncio.Barrier(callers)

    async def use_a_connection() -> None:
        async with hub.autocommit() as tx:
            await opened.wait()
            await tx.value(ONE)

    await asyncio.gather(*(use_a_connection() for _ in range(callers)))
    proxy.lose_open_connections()

    async with asyncio.timeout(NOTICED_WITHIN):
        assert await is_refused(hub)
    assert await works(hub)


async def test_a_slow_statement_goes_on_while_silent_connections_end(
    proxied: tuple[FaultProxy, Hub], owner: Connection
) -> None:
    proxy, hub = proxied
    await owner.execute("select pg_advisory_lock(1)")

    async def wait_for_the_lock() -> None:
        async with hub.autocommit() as slow:
            await slow.value(LOCK, key=1)

    async with hub.autocommit() as lost:
        await lost.value(ONE)
        proxy.lose_open_connections()
        await hub.db._replace_idle()
        waiting = asyncio.create_task(wait_for_the_lock())
        await wait_for_lock_of(owner, waiting)
        with pytest.raises(Unavailable):
            async with asyncio.timeout(NOTICED_WITHIN):
                await lost.value(ONE)

    await owner.execute("select pg_advisory_unlock(1)")
    await waiting


async def test_callers_are_refused_at_once_and_one_task_dials(proxied: tuple[FaultProxy, Hub]) -> None:
    proxy, hub = proxied
    assert await works(hub)
    proxy.drop_bytes()
    async with asyncio.timeout(NOTICED_WITHIN):
        assert not await works(hub)

    dials, started = proxy.accepted, time.thread_time()
    for _ in range(500):
        assert not await works(hub)

    assert proxy.accepted - dials <= 3  # the check and the listener
    assert time.thread_time() - started < 1


async def test_a_lost_connection_is_terminated_without_a_cancel_request(proxied: tuple[FaultProxy, Hub]) -> None:
    proxy, hub = proxied
    impatient = hub.db.with_deadline(timedelta(milliseconds=1500))
    proxy.swallow_answers()
    dials = proxy.accepted

    with pytest.raises(Unavailable):
        async with impatient.autocommit() as tx:
            await tx.value(ONE)

    assert proxy.accepted - dials <= 2  # for the statement and for the check, none to cancel
    assert hub.db.connections_in_use() == 0


async def test_one_slow_statement_does_not_cost_the_others_their_connections(hub: Hub, owner: Connection) -> None:
    webhooks = ReservedDatabase(hub.db, timedelta(milliseconds=300))
    async with hub.autocommit() as tx:
        pid = await tx.value(PID)

        async def wait_for_the_lock() -> None:
            async with webhooks.autocommit() as impatient:
                await impatient.value(LOCK, key=1)

        await owner.execute("select pg_advisory_lock(1)")
        waiting = asyncio.create_task(wait_for_the_lock())
        await wait_for_lock_of(owner, waiting)
        assert await works(hub)  # the server answers others
        with pytest.raises(Unavailable):
            await waiting

        assert await tx.value(PID) == pid
        assert await works(hub)


async def test_a_server_that_answers_but_is_slow_to_accept_connections_is_no_outage(
    proxied: tuple[FaultProxy, Hub], owner: Connection
) -> None:
    proxy, hub = proxied
    async with hub.autocommit() as kept:
        pid = await kept.value(PID)
        with pytest.raises(Unavailable):
            async with hub.autocommit() as lost:
                lost_pid = await lost.value(PID)
                proxy.hold_new_connections()
                await owner.execute("select pg_terminate_backend($1)", lost_pid)
                await lost.value(ONE)
    dials = proxy.accepted

    async def uses_the_kept_connection() -> bool:
        async with hub.autocommit() as tx:
            assert await tx.value(PID) == pid
        return proxy.accepted >= dials + 2  # the first dial of the check has timed out

    await wait_until(uses_the_kept_connection)

    proxy.admit_new_connections()
    await wait_until(lambda: works(hub))


async def test_a_caller_that_leaves_while_its_connection_is_terminated_gets_no_error_of_the_driver(
    proxied: tuple[FaultProxy, Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, hub = proxied
    assert await works(hub)
    monkeypatch.setattr(plans, "PLAN_CHECK_INTERVAL", 0.0)
    [connection] = [one for one in hub.db._monitor._connections if not one.is_closed()]
    proxy.halt()
    caller = asyncio.create_task(works(hub))
    await wait_until(lambda: hub.db.connections_in_use() == 1)

    caller.cancel()
    asyncio.get_running_loop().call_soon(connection.terminate)  # while the caller returns its connection

    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_deadline_also_bounds_the_commit(proxied: tuple[FaultProxy, Hub]) -> None:
    proxy, hub = proxied
    proxy.swallow_answer_to(b"COMMIT")

    with pytest.raises(Unavailable):
        async with asyncio.timeout(NOTICED_WITHIN), hub.db.with_deadline(timedelta(seconds=1)).transaction() as tx:
            await tx.value(ONE)

    assert proxy.swallowed.is_set()
    assert await works(hub)
