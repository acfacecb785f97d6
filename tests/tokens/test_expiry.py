"""Maintenance of tokens: expired ones are marked, and families are purged after their retention."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pabal.hub import DatabaseUrls, Hub
from pabal.maintenance import build_chores
from pabal.tokens.revoke import expire_tokens, purge_token_families
from tokens.asking import (
    SHOP,
    added,
    alive,
    answered,
    count,
    end_access,
    end_family,
    is_good,
    joined,
    look_up,
    owner,
    refreshed,
    refused,
    row,
    signed_in,
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
    secret = await added(hub)
    old = [await signed_in(hub, secret) for _ in range(3)]
    await end_access(hub, old[0].access_token)
    assert await expire(hub) == 0
    await travel(HOUR)
    recent = await signed_in(hub, secret)

    assert await expire(hub) == 2
    assert await expire(hub) == 0

    reasons = await revocation_reasons(database_urls)
    assert reasons == ["Revoked", "Token expired", "Token expired", None]
    assert await count(database_urls, TOKENS) == 4
    assert await is_good(hub, recent.access_token)
    for pair in old:
        assert not await is_good(hub, pair.access_token)
        assert await is_good(hub, pair.refresh_token)
        assert await refreshed(hub, pair.refresh_token)


async def revocation_reasons(database_urls: DatabaseUrls) -> list[str | None]:
    async with owner(database_urls) as connection:
        rows = await connection.fetch(
            "select revoked_reason, is_revoked from public.service_tokens order by created_at"
        )
    assert all(row["is_revoked"] == (row["revoked_reason"] is not None) for row in rows)
    return [row["revoked_reason"] for row in rows]


async def test_expired_refresh_tokens_are_marked_but_not_counted(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    pair = await joined(hub)
    second = await refreshed(hub, pair.refresh_token)
    await travel(7 * DAY)

    assert await expire(hub) == 2

    current = await look_up(hub, second.refresh_token)
    assert current is not None
    token_row = await row(
        database_urls, "select revoked_reason, revoked_at from public.refresh_tokens where id = $1", current.id
    )
    assert token_row["revoked_reason"] == "Token expired"
    assert token_row["revoked_at"] is not None
    used = await look_up(hub, pair.refresh_token)
    assert used is not None
    token_row = await row(database_urls, "select revoked_reason from public.refresh_tokens where id = $1", used.id)
    assert token_row["revoked_reason"] == "Rotated"
    assert await refused(hub, second.refresh_token)
    assert await alive(database_urls, pair.family_id) == 1, "the family itself is still there"


async def test_a_used_token_is_still_recognised_after_expiry(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh_token)
    await travel(6 * DAY)
    third = await refreshed(hub, second.refresh_token)
    await travel(2 * DAY)
    await expire(hub)

    assert "already used" in await refused(hub, first.refresh_token)

    assert await alive(database_urls, first.family_id) == 0
    assert not await is_good(hub, third.refresh_token)


async def test_whole_families_are_purged_in_batches_after_their_retention(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    secret = await added(hub)
    pairs = [await signed_in(hub, secret) for _ in range(5)]
    for _ in range(3):
        pairs = [await refreshed(hub, pair.refresh_token) for pair in pairs]
    pairs += [await signed_in(hub, secret) for _ in range(3)]
    for pair in pairs[5:]:
        await end_family(hub, pair.family_id)
    await travel(30 * DAY + RETENTION)
    recent = await signed_in(hub, secret)
    successor = await refreshed(hub, recent.refresh_token)
    await expire(hub)

    assert [await purge(hub, batch=3) for _ in range(4)] == [3, 3, 2, 0]

    assert await count(database_urls, FAMILIES) == 1
    assert await count(database_urls, TOKENS) == 2
    assert await count(database_urls, ORPHANS) == 0
    assert await is_good(hub, successor.refresh_token)
    assert {await refused(hub, pair.refresh_token) for pair in pairs} == {"unknown refresh token"}


async def test_an_expired_family_is_kept_for_its_retention(hub: Hub, travel: Travel) -> None:
    pair = await joined(hub)
    await travel(30 * DAY + RETENTION - HOUR)
    await expire(hub)
    assert await purge(hub) == 0
    assert await look_up(hub, pair.refresh_token) is not None

    await travel(2 * HOUR)

    assert await purge(hub) == 1


async def test_the_retention_of_a_revoked_family_starts_with_its_revocation(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    secret = await added(hub)
    revoked, kept = await signed_in(hub, secret), await signed_in(hub, secret)
    await end_family(hub, revoked.family_id)
    await travel(RETENTION - HOUR)
    assert await purge(hub) == 0
    await travel(2 * HOUR)

    assert await purge(hub) == 1

    assert await look_up(hub, revoked.access_token) is None
    assert await look_up(hub, kept.access_token) is not None
    assert await count(database_urls, FAMILIES) == 1


async def test_a_live_family_keeps_its_expired_tokens(hub: Hub, travel: Travel) -> None:
    """They are needed to recognise a stolen token."""
    first = await joined(hub)
    pair = first
    for _ in range(4):
        await travel(6 * DAY)
        pair = await refreshed(hub, pair.refresh_token)
    await expire(hub)

    assert await purge(hub) == 0
    assert await look_up(hub, first.access_token) is not None
    assert await look_up(hub, first.refresh_token) is not None


async def test_audit_entries_and_events_outlive_the_family(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    pair = await joined(hub)
    await answered(hub, pair.refresh_token)
    before = await count(database_urls, "select count(*) from pabal.audit_log where subject = $1", SHOP)
    await travel(90 * DAY)

    assert await purge(hub) == 1
    assert await count(database_urls, "select count(*) from pabal.audit_log where subject = $1", SHOP) == before


async def test_chores_expire_and_purge_tokens(hub: Hub, travel: Travel) -> None:
    pair = await joined(hub)
    run_by_chore = {chore.name: chore.run for chore in build_chores(hub.settings, hub.relay.metrics)}
    await travel(HOUR)
    async with hub.transaction() as tx:
        assert await run_by_chore["expire tokens"](tx, 500) == 1
    await travel(30 * DAY + hub.settings.keep_tokens)
    async with hub.transaction() as tx:
        assert await run_by_chore["purge tokens"](tx, 500) == 1
    assert await look_up(hub, pair.access_token) is None
