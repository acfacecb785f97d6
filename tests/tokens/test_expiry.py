"""Maintenance of tokens: expired ones are marked, and families are purged after their retention."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pabal.hub import DatabaseUrls, Hub
from pabal.maintenance import build_chores
from pabal.tokens.revoke import expire_tokens, purge_token_families
from tokens.token_operations import (
    SHOP,
    add_shop,
    add_shop_with_tokens,
    count_live_rows,
    fetch_count,
    fetch_row,
    is_valid_token,
    issue_pair,
    load_token_state,
    owner_connection,
    present_refresh_token,
    refresh_pair,
    refusal_of,
    revoke_access,
    revoke_whole_family,
)

pytestmark = pytest.mark.anyio

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
RETENTION = 30 * DAY
Travel = Callable[[timedelta], Awaitable[None]]

TOKENS = "select count(*) from public.service_tokens where service_name = 'shop'"
FAMILIES = "select count(*) from public.token_families where service_name = 'shop'"
ORPHANS = """
select (select count(*) from public.service_tokens where family_id not in (select id from public.token_families))
     + (select count(*) from public.refresh_tokens where service_token_id not in (select id from public.service_tokens))
"""


async def expire(hub: Hub) -> int:
    async with hub.transaction() as tx:
        return await expire_tokens(tx, 1)


async def purge(hub: Hub, batch: int = 1000) -> int:
    async with hub.transaction() as tx:
        return await purge_token_families(tx, RETENTION, batch)


async def test_expired_tokens_are_marked_counted_once_and_kept(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    secret = await add_shop(hub)
    old = [await issue_pair(hub, secret) for _ in range(3)]
    await revoke_access(hub, old[0].access_token)
    assert await expire(hub) == 0
    await travel(HOUR)
    recent = await issue_pair(hub, secret)

    assert await expire(hub) == 2
    assert await expire(hub) == 0

    reasons = await revocation_reasons(database_urls)
    assert reasons == ["Revoked", "Token expired", "Token expired", None]
    assert await fetch_count(database_urls, TOKENS) == 4
    assert await is_valid_token(hub, recent.access_token)
    for pair in old:
        assert not await is_valid_token(hub, pair.access_token)
        assert await is_valid_token(hub, pair.refresh_token)
        assert await refresh_pair(hub, pair.refresh_token)


async def revocation_reasons(database_urls: DatabaseUrls) -> list[str | None]:
    async with owner_connection(database_urls) as connection:
        rows = await connection.fetch(
            "select revoked_reason, is_revoked from public.service_tokens order by created_at"
        )
    assert all(row["is_revoked"] == (row["revoked_reason"] is not None) for row in rows)
    return [row["revoked_reason"] for row in rows]


async def test_expired_refresh_tokens_are_marked_but_not_counted(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    pair = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, pair.refresh_token)
    await travel(7 * DAY)

    assert await expire(hub) == 2

    current = await load_token_state(hub, second.refresh_token)
    assert current is not None
    token_row = await fetch_row(
        database_urls, "select revoked_reason, revoked_at from public.refresh_tokens where id = $1", current.id
    )
    assert token_row["revoked_reason"] == "Token expired"
    assert token_row["revoked_at"] is not None
    used = await load_token_state(hub, pair.refresh_token)
    assert used is not None
    token_row = await fetch_row(
        database_urls, "select revoked_reason from public.refresh_tokens where id = $1", used.id
    )
    assert token_row["revoked_reason"] == "Rotated"
    assert await refusal_of(hub, second.refresh_token)
    assert await count_live_rows(database_urls, pair.family_id) == 1, "the family itself is still there"


async def test_a_used_token_is_still_recognised_after_expiry(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    first = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, first.refresh_token)
    await travel(6 * DAY)
    third = await refresh_pair(hub, second.refresh_token)
    await travel(2 * DAY)
    await expire(hub)

    assert "already used" in await refusal_of(hub, first.refresh_token)

    assert await count_live_rows(database_urls, first.family_id) == 0
    assert not await is_valid_token(hub, third.refresh_token)


async def test_whole_families_are_purged_in_batches_after_their_retention(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    secret = await add_shop(hub)
    pairs = [await issue_pair(hub, secret) for _ in range(5)]
    for _ in range(3):
        pairs = [await refresh_pair(hub, pair.refresh_token) for pair in pairs]
    pairs += [await issue_pair(hub, secret) for _ in range(3)]
    for pair in pairs[5:]:
        await revoke_whole_family(hub, pair.family_id)
    await travel(30 * DAY + RETENTION)
    recent = await issue_pair(hub, secret)
    successor = await refresh_pair(hub, recent.refresh_token)
    await expire(hub)

    assert [await purge(hub, batch=3) for _ in range(4)] == [3, 3, 2, 0]

    assert await fetch_count(database_urls, FAMILIES) == 1
    assert await fetch_count(database_urls, TOKENS) == 2
    assert await fetch_count(database_urls, ORPHANS) == 0
    assert await is_valid_token(hub, successor.refresh_token)
    assert {await refusal_of(hub, pair.refresh_token) for pair in pairs} == {"unknown refresh token"}


async def test_an_expired_family_is_kept_for_its_retention(hub: Hub, travel: Travel) -> None:
    pair = await add_shop_with_tokens(hub)
    await travel(30 * DAY + RETENTION - HOUR)
    await expire(hub)
    assert await purge(hub) == 0
    assert await load_token_state(hub, pair.refresh_token) is not None

    await travel(2 * HOUR)

    assert await purge(hub) == 1


async def test_the_retention_of_a_revoked_family_starts_with_its_revocation(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    secret = await add_shop(hub)
    revoked, kept = await issue_pair(hub, secret), await issue_pair(hub, secret)
    await revoke_whole_family(hub, revoked.family_id)
    await travel(RETENTION - HOUR)
    assert await purge(hub) == 0
    await travel(2 * HOUR)

    assert await purge(hub) == 1

    assert await load_token_state(hub, revoked.access_token) is None
    assert await load_token_state(hub, kept.access_token) is not None
    assert await fetch_count(database_urls, FAMILIES) == 1


async def test_a_live_family_keeps_its_expired_tokens(hub: Hub, travel: Travel) -> None:
    """They are needed to recognise a stolen token."""
    first = await add_shop_with_tokens(hub)
    pair = first
    for _ in range(4):
        await travel(6 * DAY)
        pair = await refresh_pair(hub, pair.refresh_token)
    await expire(hub)

    assert await purge(hub) == 0
    assert await load_token_state(hub, first.access_token) is not None
    assert await load_token_state(hub, first.refresh_token) is not None


async def test_audit_entries_and_events_outlive_the_family(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    pair = await add_shop_with_tokens(hub)
    await present_refresh_token(hub, pair.refresh_token)
    before = await fetch_count(database_urls, "select count(*) from pabal.audit_log where subject = $1", SHOP)
    await travel(90 * DAY)

    assert await purge(hub) == 1
    assert await fetch_count(database_urls, "select count(*) from pabal.audit_log where subject = $1", SHOP) == before


async def test_chores_expire_and_purge_tokens(hub: Hub, travel: Travel) -> None:
    pair = await add_shop_with_tokens(hub)
    run_by_chore = {chore.name: chore.run for chore in build_chores(hub.settings, hub.relay.metrics)}
    await travel(HOUR)
    async with hub.transaction() as tx:
        assert await run_by_chore["expire tokens"](tx, 500) == 1
    await travel(30 * DAY + hub.settings.keep_tokens)
    async with hub.transaction() as tx:
        assert await run_by_chore["purge tokens"](tx, 500) == 1
    assert await load_token_state(hub, pair.access_token) is None
