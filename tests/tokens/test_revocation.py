"""All processes see a revocation at once, or within five seconds if they cannot be notified."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from pabal.core.errors import InvalidToken, Unavailable
from pabal.db.doorbell.channels import NOTIFY_CHANNEL, Channel
from pabal.hub import DatabaseUrls, Hub, open_hub
from pabal.settings import Settings
from pabal.tokens.revoke import revoke_service_tokens
from pabal.tokens.verify import CACHE_LIFETIME
from support.fault_proxy import FaultProxy, run_fault_proxy
from support.wait import wait_until
from tokens.token_operations import (
    BY,
    SHOP,
    add_shop,
    add_shop_with_tokens,
    is_accepted,
    issue_pair,
    open_two_hubs,
    owner_connection,
    refresh_pair,
    revoke_access,
    revoke_whole_family,
    set_shop_active,
    wait_for_locks,
)

pytestmark = pytest.mark.anyio

MAX_DELAY = 1.0
"""Seconds: far below the cache's five, and enough on a busy machine."""


@asynccontextmanager
async def listening_hubs(settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[tuple[Hub, Hub]]:
    async with open_two_hubs(settings, database_urls) as (first, second):
        await wait_until(lambda: first.doorbell.listening and second.doorbell.listening)
        yield first, second


async def wait_until_rejected(hub: Hub, token: str, within: float) -> None:
    async def is_rejected() -> bool:
        return not await is_accepted(hub, token)

    await wait_until(is_rejected, within)


async def test_another_process_sees_a_revocation_at_once(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with listening_hubs(settings, database_urls) as (revoking, listening):
        pair = await add_shop_with_tokens(revoking)
        other = await issue_pair(revoking, await add_shop(revoking, "other"), "other")
        refreshed_pair = await refresh_pair(revoking, pair.refresh_token)
        for token in (pair.access_token, refreshed_pair.access_token, other.access_token):
            assert await is_accepted(listening, token)

        await revoke_access(revoking, pair.access_token)
        assert not await is_accepted(revoking, pair.access_token)
        await wait_until_rejected(listening, pair.access_token, MAX_DELAY)
        assert await is_accepted(listening, refreshed_pair.access_token)

        await revoke_whole_family(revoking, pair.family_id)
        assert not await is_accepted(revoking, refreshed_pair.access_token)
        await wait_until_rejected(listening, refreshed_pair.access_token, MAX_DELAY)
        assert await is_accepted(listening, other.access_token)


async def test_revoking_all_tokens_of_a_service_is_seen_at_once(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with listening_hubs(settings, database_urls) as (revoking, listening):
        secret = await add_shop(revoking)
        pairs = [await issue_pair(revoking, secret) for _ in range(3)]
        for pair in pairs:
            assert await is_accepted(listening, pair.access_token)

        async with revoking.transaction() as tx:
            assert await revoke_service_tokens(tx, SHOP, BY) == 3

        for pair in pairs:
            assert not await is_accepted(revoking, pair.access_token)
            await wait_until_rejected(listening, pair.access_token, MAX_DELAY)
        assert await is_accepted(listening, (await issue_pair(revoking, secret)).access_token)


async def test_disabling_and_enabling_a_service_is_seen_at_once(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with listening_hubs(settings, database_urls) as (first, second):
        pair = await add_shop_with_tokens(first)
        assert await is_accepted(second, pair.access_token)

        await set_shop_active(first, active=False)
        assert not await is_accepted(first, pair.access_token)
        await wait_until_rejected(second, pair.access_token, MAX_DELAY)

        await set_shop_active(first, active=True)
        for hub in (first, second):
            assert await is_accepted(hub, pair.access_token)


async def test_without_a_listener_the_cache_lasts_five_seconds(settings: Settings, database_urls: DatabaseUrls) -> None:
    pooler_only = settings.model_copy(update={"database_pooler": True})
    async with (
        open_hub(settings, database_urls) as revoking,
        open_hub(pooler_only, DatabaseUrls(database_urls.main, None)) as not_listening,
    ):
        pair = await add_shop_with_tokens(revoking)
        assert await is_accepted(not_listening, pair.access_token)
        assert not not_listening.doorbell.listening
        verified_at = time.monotonic()

        await revoke_whole_family(revoking, pair.family_id)

        assert await is_accepted(not_listening, pair.access_token), "it was notified, so this proves nothing"
        await wait_until_rejected(not_listening, pair.access_token, CACHE_LIFETIME.total_seconds() + MAX_DELAY)
        assert time.monotonic() - verified_at > CACHE_LIFETIME.total_seconds() - MAX_DELAY


async def test_the_cache_is_cleared_when_the_listener_reconnects(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with run_fault_proxy(database_urls.direct or database_urls.main) as (proxy, address):
        proxied = DatabaseUrls(database_urls.main, address)
        async with open_hub(settings, database_urls) as revoking, open_hub(settings, proxied) as reconnecting:
            await wait_until(lambda: reconnecting.doorbell.listening)
            pair = await add_shop_with_tokens(revoking)
            started = time.monotonic()
            assert await is_accepted(reconnecting, pair.access_token)

            proxy.drop_bytes()
            proxy.reset()
            await wait_until(lambda: not reconnecting.doorbell.listening)
            await revoke_whole_family(revoking, pair.family_id)
            assert await is_accepted(reconnecting, pair.access_token), "it was notified, so this proves nothing"
            proxy.pass_bytes()
            await wait_until(lambda: reconnecting.doorbell.listening)

            assert not await is_accepted(reconnecting, pair.access_token)
            assert time.monotonic() - started < CACHE_LIFETIME.total_seconds(), "the cache entry merely expired"


async def test_a_lookup_older_than_a_revocation_is_not_cached(hub: Hub, database_urls: DatabaseUrls) -> None:
    """The lookup is delayed after it has read its rows and before it returns; the revocation happens in between."""
    await wait_until(lambda: hub.doorbell.listening)
    pair = await add_shop_with_tokens(hub)
    async with owner_connection(database_urls) as connection:
        await connection.execute("select pg_advisory_lock(7)")
        await connection.execute(
            """
            create or replace function pabal.now() returns timestamptz language plpgsql stable as $$
            begin perform pg_advisory_xact_lock_shared(7); return now(); end $$
            """
        )
        lookup = asyncio.create_task(hub.token_verifier.verify(pair.access_token))

        async def is_blocked() -> bool:
            return await connection.fetchval(
                "select exists (select from pg_locks where locktype = 'advisory' and not granted)"
            )

        await wait_until(is_blocked)
        with hub.doorbell.listen(Channel.TOKENS) as subscription:
            await connection.execute(
                "update public.service_tokens set is_revoked = true, revoked_at = now() where family_id = $1",
                pair.family_id,
            )
            await connection.execute("select pg_notify($1, $2)", NOTIFY_CHANNEL, f"other-process {Channel.TOKENS}")
            await wait_until(subscription.take_wakeup)
        assert not await is_accepted(hub, "any token: the call processes the wakeup")
        await connection.execute("select pg_advisory_unlock(7)")

        assert (await lookup).service == SHOP
        assert not await is_accepted(hub, pair.access_token)


async def test_concurrent_requests_share_a_lookup_and_survive_a_cancelled_one(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    pair = await add_shop_with_tokens(hub)
    async with owner_connection(database_urls) as connection:
        await connection.execute("begin; lock table public.services in access exclusive mode")
        lookups = [asyncio.create_task(hub.token_verifier.verify(pair.access_token)) for _ in range(50)]
        await wait_for_locks(database_urls, callers=1)
        lookups[0].cancel()
        await connection.execute("commit")

    results = await asyncio.gather(*lookups, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert len({*results[1:]}) == 1
    assert results[1] == await hub.token_verifier.verify(pair.access_token)


@asynccontextmanager
async def behind_a_proxy(settings: Settings, database_urls: DatabaseUrls) -> AsyncGenerator[tuple[FaultProxy, Hub]]:
    async with (
        run_fault_proxy(database_urls.main) as (proxy, address),
        open_hub(settings, DatabaseUrls(address, None)) as hub,
    ):
        yield proxy, hub


async def test_without_a_database_tokens_are_rejected_after_five_seconds_until_it_returns(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    short_timeout = settings.model_copy(update={"connect_timeout": settings.connect_timeout / 10})
    async with behind_a_proxy(short_timeout, database_urls) as (proxy, hub):
        await wait_until(lambda: hub.doorbell.listening)
        pair = await add_shop_with_tokens(hub)
        assert await is_accepted(hub, pair.access_token)
        started = time.monotonic()

        proxy.drop_bytes()
        proxy.reset()
        assert await is_accepted(hub, pair.access_token)
        await wait_until(lambda: is_unavailable(hub, pair.access_token), CACHE_LIFETIME.total_seconds() + MAX_DELAY)
        assert time.monotonic() - started > CACHE_LIFETIME.total_seconds() - MAX_DELAY
        assert await is_unavailable(hub, pair.access_token)

        proxy.pass_bytes()

        async def is_back() -> bool:
            return not await is_unavailable(hub, pair.access_token)

        await wait_until(is_back)


async def is_unavailable(hub: Hub, token: str) -> bool:
    try:
        await hub.token_verifier.verify(token)
    except Unavailable:
        return True
    return False


async def test_a_refresh_token_and_a_secret_are_not_access_tokens(hub: Hub) -> None:
    secret = await add_shop(hub)
    pair = await issue_pair(hub, secret)
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
    assert await is_accepted(hub, pair.access_token)
