"""All processes see a revocation at once, or within five seconds if they cannot be notified."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from pabal.core.errors import InvalidToken, Unavailable
from pabal.db.channels import NOTIFY_CHANNEL, Channel
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from pabal.tokens.revoke import revoke_service_tokens
from pabal.tokens.verify import CACHE_LIFETIME
from support.fault_proxy import FaultProxy, between
from support.wait import until
from tokens.asking import (
    BY,
    SHOP,
    added,
    comes_in,
    end_access,
    end_family,
    joined,
    owner,
    refreshed,
    signed_in,
    switch,
    two_hubs,
    wait_for_a_lock,
)

pytestmark = pytest.mark.anyio

AT_ONCE = 1.0
"""Seconds: far below the five of the cache, and enough for a busy machine."""


@asynccontextmanager
async def listening_hubs(settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[tuple[Hub, Hub]]:
    async with two_hubs(settings, database_urls) as (here, there):
        await until(lambda: here.doorbell.listening and there.doorbell.listening)
        yield here, there


async def is_shut_out(hub: Hub, token: str, within: float) -> None:
    async def refused() -> bool:
        return not await comes_in(hub, token)

    await until(refused, within)


async def test_another_process_sees_a_revocation_at_once(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with listening_hubs(settings, database_urls) as (here, there):
        pair = await joined(here)
        other = await signed_in(here, await added(here, "other"), "other")
        second = await refreshed(here, pair.refresh_token)
        for token in (pair.access_token, second.access_token, other.access_token):
            assert await comes_in(there, token)

        await end_access(here, pair.access_token)
        assert not await comes_in(here, pair.access_token)
        await is_shut_out(there, pair.access_token, AT_ONCE)
        assert await comes_in(there, second.access_token)

        await end_family(here, pair.family_id)
        assert not await comes_in(here, second.access_token)
        await is_shut_out(there, second.access_token, AT_ONCE)
        assert await comes_in(there, other.access_token)


async def test_revoking_all_tokens_of_a_service_is_seen_at_once(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with listening_hubs(settings, database_urls) as (here, there):
        secret = await added(here)
        pairs = [await signed_in(here, secret) for _ in range(3)]
        for pair in pairs:
            assert await comes_in(there, pair.access_token)

        async with here.transaction() as tx:
            assert await revoke_service_tokens(tx, SHOP, BY) == 3

        for pair in pairs:
            assert not await comes_in(here, pair.access_token)
            await is_shut_out(there, pair.access_token, AT_ONCE)
        assert await comes_in(there, (await signed_in(here, secret)).access_token)


async def test_disabling_and_enabling_a_service_is_seen_at_once(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with listening_hubs(settings, database_urls) as (here, there):
        pair = await joined(here)
        assert await comes_in(there, pair.access_token)

        await switch(here, active=False)
        assert not await comes_in(here, pair.access_token)
        await is_shut_out(there, pair.access_token, AT_ONCE)

        await switch(here, active=True)
        for hub in (here, there):
            assert await comes_in(hub, pair.access_token)


async def test_without_a_listener_the_cache_lasts_five_seconds(settings: Settings, database_urls: DatabaseUrls) -> None:
    deaf = settings.model_copy(update={"database_pooler": True})
    async with (
        open_hub(settings, database_urls) as here,
        open_hub(deaf, DatabaseUrls(database_urls.main, None)) as there,
    ):
        pair = await joined(here)
        assert await comes_in(there, pair.access_token)
        assert not there.doorbell.listening
        asked = time.monotonic()

        await end_family(here, pair.family_id)

        assert await comes_in(there, pair.access_token), "it was told after all, so this proves nothing"
        await is_shut_out(there, pair.access_token, CACHE_LIFETIME.total_seconds() + AT_ONCE)
        assert time.monotonic() - asked > CACHE_LIFETIME.total_seconds() - AT_ONCE


async def test_the_cache_is_cleared_when_the_listener_reconnects(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with between(database_urls.direct or database_urls.main) as (wire, address):
        cut = DatabaseUrls(database_urls.main, address)
        async with open_hub(settings, database_urls) as here, open_hub(settings, cut) as there:
            await until(lambda: there.doorbell.listening)
            pair = await joined(here)
            began = time.monotonic()
            assert await comes_in(there, pair.access_token)

            wire.swallow()
            wire.reset()
            await until(lambda: not there.doorbell.listening)
            await end_family(here, pair.family_id)
            assert await comes_in(there, pair.access_token), "it was told after all, so this proves nothing"
            wire.flow()
            await until(lambda: there.doorbell.listening)

            assert not await comes_in(there, pair.access_token)
            assert time.monotonic() - began < CACHE_LIFETIME.total_seconds(), "it only stopped believing"


async def test_a_lookup_older_than_a_revocation_is_not_cached(hub: Hub, database_urls: DatabaseUrls) -> None:
    """The lookup is delayed after it has read its rows and before it returns; the revocation happens in between."""
    await until(lambda: hub.doorbell.listening)
    pair = await joined(hub)
    async with owner(database_urls) as connection:
        await connection.execute("select pg_advisory_lock(7)")
        await connection.execute(
            """
            create or replace function pabal.now() returns timestamptz language plpgsql stable as $$
            begin perform pg_advisory_xact_lock_shared(7); return now(); end $$
            """
        )
        asking = asyncio.create_task(hub.token_verifier.verify(pair.access_token))

        async def is_held_up() -> bool:
            return await connection.fetchval(
                "select exists (select from pg_locks where locktype = 'advisory' and not granted)"
            )

        await until(is_held_up)
        with hub.doorbell.listen(Channel.TOKENS) as ear:
            await connection.execute(
                "update public.service_tokens set is_revoked = true, revoked_at = now() where family_id = $1",
                pair.family_id,
            )
            await connection.execute("select pg_notify($1, $2)", NOTIFY_CHANNEL, f"somebody {Channel.TOKENS}")
            await until(ear.take_wakeup)
        assert not await comes_in(hub, "anybody's call makes the hub doubt")
        await connection.execute("select pg_advisory_unlock(7)")

        assert (await asking).service == SHOP
        assert not await comes_in(hub, pair.access_token)


async def test_concurrent_requests_share_a_lookup_and_survive_a_cancelled_one(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    pair = await joined(hub)
    async with owner(database_urls) as connection:
        await connection.execute("begin; lock table public.services in access exclusive mode")
        asking = [asyncio.create_task(hub.token_verifier.verify(pair.access_token)) for _ in range(50)]
        await wait_for_a_lock(database_urls, callers=1)
        asking[0].cancel()
        await connection.execute("commit")

    callers = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(callers[0], asyncio.CancelledError)
    assert len({*callers[1:]}) == 1
    assert callers[1] == await hub.token_verifier.verify(pair.access_token)


@asynccontextmanager
async def behind_a_proxy(settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[tuple[FaultProxy, Hub]]:
    async with between(database_urls.main) as (wire, address), open_hub(settings, DatabaseUrls(address, None)) as hub:
        yield wire, hub


async def test_without_a_database_tokens_are_rejected_after_five_seconds_until_it_returns(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    impatient = settings.model_copy(update={"connect_timeout": settings.connect_timeout / 10})
    async with behind_a_proxy(impatient, database_urls) as (wire, hub):
        await until(lambda: hub.doorbell.listening)
        pair = await joined(hub)
        assert await comes_in(hub, pair.access_token)
        began = time.monotonic()

        wire.swallow()
        wire.reset()
        assert await comes_in(hub, pair.access_token)
        await until(lambda: is_unavailable(hub, pair.access_token), CACHE_LIFETIME.total_seconds() + AT_ONCE)
        assert time.monotonic() - began > CACHE_LIFETIME.total_seconds() - AT_ONCE
        assert await is_unavailable(hub, pair.access_token)

        wire.flow()

        async def is_back() -> bool:
            return not await is_unavailable(hub, pair.access_token)

        await until(is_back)


async def is_unavailable(hub: Hub, token: str) -> bool:
    try:
        await hub.token_verifier.verify(token)
    except Unavailable:
        return True
    return False


async def test_a_refresh_token_and_a_secret_are_not_access_tokens(hub: Hub) -> None:
    secret = await added(hub)
    pair = await signed_in(hub, secret)
    for token in (
        pair.refresh_token,
        secret,
        "",
        ".",
        "..",
        pair.access_token[:-2],
        pair.access_token + "A",
        "é" * 9,
        "x" * 5000,
    ):
        assert token is not None
        with pytest.raises(InvalidToken):
            await hub.token_verifier.verify(token)
    assert await comes_in(hub, pair.access_token)
