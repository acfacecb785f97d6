"""A refresh token is used once: with concurrent requests, after a lost response, and when it was stolen."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from ipaddress import ip_address
from uuid import UUID

import pytest

from pabal.core.errors import InvalidGrant
from pabal.db.errors import DatabaseError
from pabal.db.tx import Tx
from pabal.hub import WEBHOOK_SHARE, DatabaseUrls, Hub
from pabal.settings import Settings
from pabal.tokens.issuer import TokenPair
from pabal.tokens.refresh import refresh_tokens
from tokens.token_operations import (
    BY,
    COUNT_AUDIT_ENTRIES,
    COUNT_EVENTS,
    SHOP,
    add_shop,
    add_shop_with_tokens,
    count_live_rows,
    fetch_count,
    fetch_row,
    is_accepted,
    is_valid_token,
    issue_pair,
    open_two_hubs,
    owner_connection,
    present_refresh_token,
    refresh_pair,
    refusal_of,
    revoke_whole_family,
    wait_for_locks,
)

pytestmark = pytest.mark.anyio

REPEAT_WINDOW = timedelta(seconds=30)
AFTER_REPEAT_WINDOW = REPEAT_WINDOW + timedelta(seconds=1)
ROUNDS = 25

Travel = Callable[[timedelta], Awaitable[None]]

COUNT_REFRESH_TOKENS = "select count(*) from public.refresh_tokens where family_id = $1"


async def reuses(database_urls: DatabaseUrls) -> tuple[int, int]:
    """The number of audit entries and of events about a reuse."""
    return (
        await fetch_count(database_urls, COUNT_AUDIT_ENTRIES, "token.reused", SHOP),
        await fetch_count(database_urls, COUNT_EVENTS, "security.token_reuse", SHOP),
    )


async def test_a_hundred_concurrent_refreshes_get_the_same_pair(
    database_urls: DatabaseUrls, settings: Settings, travel: Travel
) -> None:
    async with open_two_hubs(settings, database_urls) as hubs:
        first = await add_shop_with_tokens(hubs[0])

        async with owner_connection(database_urls) as connection:  # no request is served before both pools are full
            await connection.execute("begin")
            await connection.execute("select from public.token_families where id = $1 for update", first.family_id)
            refreshing = asyncio.gather(*(present_refresh_token(hubs[n % 2], first.refresh_token) for n in range(100)))
            shared = settings.database_pool_size - settings.database_pool_size // WEBHOOK_SHARE
            await wait_for_locks(database_urls, 2 * shared)
            await connection.execute("commit")
        results = await refreshing

        pairs = {
            (pair.access_token, pair.refresh_token, pair.permissions) for pair in results if isinstance(pair, TokenPair)
        }
        assert not [result for result in results if isinstance(result, InvalidGrant)]
        [(access, refresh, _)] = pairs
        assert refresh != first.refresh_token
        assert await fetch_count(database_urls, COUNT_REFRESH_TOKENS, first.family_id) == 2
        assert (
            await fetch_count(
                database_urls, "select sum(use_count) from public.refresh_tokens where family_id = $1", first.family_id
            )
            == 100
        )
        for hub in hubs:
            assert await is_accepted(hub, access)
            assert await is_valid_token(hub, refresh)
        assert await reuses(database_urls) == (0, 0)

        await travel(AFTER_REPEAT_WINDOW)
        outcomes = await asyncio.gather(*(present_refresh_token(hubs[n % 2], first.refresh_token) for n in range(10)))

        assert all(isinstance(outcome, InvalidGrant) for outcome in outcomes)
        assert await count_live_rows(database_urls, first.family_id) == 0
        assert await reuses(database_urls) == (1, 1)
        for hub in hubs:
            assert not await is_valid_token(hub, access)
            assert "revoked" in await refusal_of(hub, refresh)


async def test_a_lost_response_is_repeated_within_thirty_seconds(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    first = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, first.refresh_token)
    await travel(REPEAT_WINDOW - timedelta(seconds=10))

    repeated = await refresh_pair(hub, first.refresh_token)

    assert (repeated.access_token, repeated.refresh_token, repeated.permissions) == (
        second.access_token,
        second.refresh_token,
        second.permissions,
    )
    assert repeated.expires_in < second.expires_in - timedelta(seconds=15)
    assert await reuses(database_urls) == (0, 0)


async def test_a_used_token_is_a_reuse_after_thirty_seconds(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    first = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, first.refresh_token)
    await travel(AFTER_REPEAT_WINDOW)

    assert "already used" in await refusal_of(hub, first.refresh_token)

    assert await count_live_rows(database_urls, first.family_id) == 0
    assert await reuses(database_urls) == (1, 1)
    assert not await is_accepted(hub, first.access_token)
    assert not await is_accepted(hub, second.access_token)
    assert "revoked" in await refusal_of(hub, second.refresh_token)
    assert "revoked" in await refusal_of(hub, first.refresh_token)
    assert await reuses(database_urls) == (1, 1)


async def test_a_token_whose_successor_is_used_is_a_reuse_at_once(hub: Hub, database_urls: DatabaseUrls) -> None:
    first = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, first.refresh_token)
    third = await refresh_pair(hub, second.refresh_token)

    assert "already used" in await refusal_of(hub, first.refresh_token)

    assert await count_live_rows(database_urls, first.family_id) == 0
    assert not await is_valid_token(hub, third.access_token)
    assert not await is_valid_token(hub, third.refresh_token)
    assert await reuses(database_urls) == (1, 1)


async def test_a_reuse_is_reported_before_any_other_problem(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    first = await add_shop_with_tokens(hub)
    await refresh_pair(hub, first.refresh_token)
    await travel(AFTER_REPEAT_WINDOW)
    await refusal_of(hub, first.refresh_token)

    event = await fetch_row(
        database_urls,
        "select priority, payload ->> 'family_id' as family from public.event_queue where event_type = $1",
        "security.token_reuse",
    )
    entry = await fetch_row(
        database_urls,
        "select details ->> 'family' as family, client_ip from pabal.audit_log where action = 'token.reused'",
    )
    assert event == {"priority": 1, "family": str(first.family_id)}
    assert entry == {"family": str(first.family_id), "client_ip": ip_address("192.0.2.7")}


async def test_a_reuse_that_cannot_be_published_changes_nothing(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    first = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, first.refresh_token)
    await travel(AFTER_REPEAT_WINDOW)
    async with owner_connection(database_urls) as connection:
        await connection.execute(
            """
            create function public.refuse_event() returns trigger language plpgsql as $$
            begin raise exception 'refused by the test'; end $$;
            create trigger refuse_event before insert on public.event_queue for each row
            when (new.event_type = 'security.token_reuse') execute function public.refuse_event();
            """
        )
    before = await all_rows(database_urls)

    with pytest.raises(DatabaseError, match="refused by the test") as refusal:
        await present_refresh_token(hub, first.refresh_token)

    assert await all_rows(database_urls) == before
    assert first.refresh_token
    assert first.refresh_token not in str(refusal.value)
    assert await is_valid_token(hub, second.refresh_token)
    assert await is_accepted(hub, second.access_token)

    async with owner_connection(database_urls) as connection:
        await connection.execute("drop trigger refuse_event on public.event_queue")
    assert "already used" in await refusal_of(hub, first.refresh_token)
    assert await reuses(database_urls) == (1, 1)


async def all_rows(database_urls: DatabaseUrls) -> list[str]:
    """All rows that a reuse may change."""
    texts: list[str] = []
    async with owner_connection(database_urls) as connection:
        for table in (
            "public.token_families",
            "public.service_tokens",
            "public.refresh_tokens",
            "public.event_queue",
            "pabal.audit_log",
        ):
            rows = await connection.fetch(f"select t::text from {table} as t order by t.id")
            texts += [f"{table} {record[0]}" for record in rows]
    return texts


async def test_a_race_of_reuse_and_rotation_revokes_the_whole_family(
    database_urls: DatabaseUrls, settings: Settings, travel: Travel
) -> None:
    async with open_two_hubs(settings, database_urls) as (first_hub, second_hub):
        secret = await add_shop(first_hub)
        families: list[UUID] = []
        tokens: list[tuple[str | None, str | None]] = []
        for _ in range(ROUNDS):
            first = await issue_pair(first_hub, secret)
            second = await refresh_pair(first_hub, first.refresh_token)
            families.append(first.family_id)
            tokens.append((first.refresh_token, second.refresh_token))
        await travel(AFTER_REPEAT_WINDOW)

        for number, (stolen, current) in enumerate(tokens):
            calls = [
                present_refresh_token(first_hub, stolen),
                present_refresh_token(second_hub, current),
                present_refresh_token(first_hub, current),
                present_refresh_token(second_hub, stolen),
            ]
            order = calls if number % 2 else calls[::-1]
            await asyncio.gather(*order)

        assert [await count_live_rows(database_urls, family) for family in families] == [0] * ROUNDS
        assert await reuses(database_urls) == (ROUNDS, ROUNDS)


async def test_a_revocation_during_a_rotation_revokes_the_whole_family(
    database_urls: DatabaseUrls, settings: Settings
) -> None:
    async with open_two_hubs(settings, database_urls) as (first_hub, second_hub):
        secret = await add_shop(first_hub)
        for _ in range(ROUNDS):
            pair = await issue_pair(first_hub, secret)

            await asyncio.gather(
                present_refresh_token(second_hub, pair.refresh_token), revoke_whole_family(first_hub, pair.family_id)
            )

            assert await count_live_rows(database_urls, pair.family_id) == 0


async def test_a_rotation_waits_for_a_revocation_and_is_refused(hub: Hub, database_urls: DatabaseUrls) -> None:
    """The race above in a fixed order: the rotation starts after the revocation and before its commit."""
    pair = await add_shop_with_tokens(hub)
    async with owner_connection(database_urls) as connection:
        await connection.execute("begin")
        await connection.execute(
            "update public.token_families set revoked_at = now(), revoked_reason = 'by hand' where id = $1",
            pair.family_id,
        )
        rotating = asyncio.create_task(present_refresh_token(hub, pair.refresh_token))
        await wait_for_locks(database_urls)
        await connection.execute("commit")

    assert isinstance(await rotating, InvalidGrant)
    assert await fetch_count(database_urls, COUNT_REFRESH_TOKENS, pair.family_id) == 1


async def test_a_revocation_waits_for_a_rotation_and_revokes_its_tokens(hub: Hub, database_urls: DatabaseUrls) -> None:
    pair = await add_shop_with_tokens(hub)
    async with hub.transaction() as tx:
        successor = await refresh_in(tx, hub, pair)
        revoking = asyncio.create_task(revoke_whole_family(hub, pair.family_id))
        await wait_for_locks(database_urls)

    assert await revoking
    assert await count_live_rows(database_urls, pair.family_id) == 0
    assert not await is_valid_token(hub, successor.access_token)


async def refresh_in(tx: Tx, hub: Hub, pair: TokenPair) -> TokenPair:
    assert pair.refresh_token
    successor = await refresh_tokens(tx, hub.token_issuer, SHOP, pair.refresh_token, requested=(), actor=BY)
    assert isinstance(successor, TokenPair)
    return successor


async def test_only_its_own_service_can_use_a_refresh_token(hub: Hub, database_urls: DatabaseUrls) -> None:
    pair = await add_shop_with_tokens(hub)
    await add_shop(hub, "other")

    for_other_service = await refusal_of(hub, pair.refresh_token, "other")
    for_unknown_token = await refusal_of(hub, "pbr_" + "x" * 43)

    assert for_other_service == for_unknown_token == "unknown refresh token"
    assert await count_live_rows(database_urls, pair.family_id) == 3
    assert await refresh_pair(hub, pair.refresh_token)
    assert await refusal_of(hub, pair.refresh_token, "other") == for_unknown_token
    assert await reuses(database_urls) == (0, 0)


async def test_a_refresh_grants_only_what_was_granted_first_and_is_still_allowed(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    pair = await add_shop_with_tokens(hub)
    assert pair.permissions == ("write",)

    narrowed = await present_refresh_token(hub, pair.refresh_token, asked=["events:read"])
    assert isinstance(narrowed, TokenPair)
    assert narrowed.permissions == ("events:read",)
    restored = await present_refresh_token(hub, narrowed.refresh_token)
    assert isinstance(restored, TokenPair)
    assert restored.permissions == ("write",)

    async with owner_connection(database_urls) as connection:
        await connection.execute(
            """update public.services set permissions = '["read", "hub:admin"]' where name = 'shop'"""
        )
    reduced = await present_refresh_token(hub, restored.refresh_token)
    assert isinstance(reduced, TokenPair)
    assert reduced.permissions == ("events:read", "notifications:read")


async def test_a_response_is_not_repeated_if_the_successor_was_used_meanwhile(
    hub: Hub, database_urls: DatabaseUrls
) -> None:
    first = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, first.refresh_token)
    async with owner_connection(database_urls) as holder:
        async with holder.transaction():  # locks the family, so that the request waits for the rotation
            await holder.fetch("select from public.token_families where id = $1 for update", first.family_id)
            using_successor = asyncio.create_task(present_refresh_token(hub, second.refresh_token))
            await wait_for_locks(database_urls)
            repeating = asyncio.create_task(present_refresh_token(hub, first.refresh_token))
            await wait_for_locks(database_urls, callers=2)
        assert isinstance(await using_successor, TokenPair)

    assert isinstance(await repeating, InvalidGrant)
    assert await reuses(database_urls) == (1, 1)
    assert await count_live_rows(database_urls, first.family_id) == 0
