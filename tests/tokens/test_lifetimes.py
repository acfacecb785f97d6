"""The lifetimes of tokens, and what their rows record."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from ipaddress import ip_address
from uuid import UUID

import pytest

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub
from pabal.tokens.access import TokenPair, decode_access_token
from tokens.asking import (
    BY,
    added,
    alive,
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

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
MARGIN = timedelta(seconds=20)
"""Tolerance for a slow machine between two steps of a test."""

Travel = Callable[[timedelta], Awaitable[None]]

REFRESH_ROW = "select * from public.refresh_tokens where id = $1"
ACCESS_ROW = "select * from public.service_tokens where id = $1"


async def id_of(hub: Hub, token: str | None) -> UUID:
    found = await look_up(hub, token)
    assert found is not None
    return found.id


async def test_an_access_token_lives_an_hour(hub: Hub, travel: Travel) -> None:
    pair = await joined(hub)
    claims = decode_access_token(hub.key_ring, pair.access_token, "pabal")

    assert claims.exp - claims.iat == HOUR.total_seconds()
    assert HOUR - SECOND <= pair.expires_in <= HOUR
    await travel(HOUR - MARGIN)
    assert await is_good(hub, pair.access_token)
    await travel(MARGIN)
    assert not await is_good(hub, pair.access_token)
    assert await is_good(hub, pair.refresh_token)


async def test_a_refresh_token_lives_a_week(hub: Hub, travel: Travel) -> None:
    first = await joined(hub)
    await travel(7 * DAY - MARGIN)
    assert await is_good(hub, first.refresh_token)
    second = await refreshed(hub, first.refresh_token)

    await travel(7 * DAY - MARGIN)
    assert await is_good(hub, second.refresh_token)
    await travel(MARGIN)

    assert not await is_good(hub, second.refresh_token)
    assert "expired" in await refused(hub, second.refresh_token)


async def test_a_refresh_does_not_extend_the_family(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> None:
    pair = await joined(hub)
    family = "select expires_at, created_at from public.token_families where id = $1"
    before = await row(database_urls, family, pair.family_id)
    for _ in range(4):
        await travel(6 * DAY)
        pair = await refreshed(hub, pair.refresh_token)
    await travel(6 * DAY - HOUR / 2)
    pair = await refreshed(hub, pair.refresh_token)

    family_ends = before["expires_at"]
    assert await row(database_urls, family, pair.family_id) == before
    assert abs(family_ends - before["created_at"] - 30 * DAY) < SECOND
    for token, kept in ((pair.access_token, ACCESS_ROW), (pair.refresh_token, REFRESH_ROW)):
        ends = (await row(database_urls, kept, await id_of(hub, token)))["expires_at"]
        assert family_ends - SECOND <= ends <= family_ends
    assert pair.expires_in < HOUR / 2
    claims = decode_access_token(hub.key_ring, pair.access_token, "pabal")
    assert claims.exp <= family_ends.timestamp()


@pytest.mark.parametrize("left", [timedelta(seconds=1.5), timedelta(seconds=1.000001)])
async def test_a_family_near_its_end_still_gets_a_token(hub: Hub, database_urls: DatabaseUrls, left: timedelta) -> None:
    pair = await joined(hub)
    await stand_before_the_end(database_urls, pair, left)

    last = await refreshed(hub, pair.refresh_token)

    assert timedelta() < last.expires_in <= left
    assert await is_good(hub, last.access_token)


@pytest.mark.parametrize("left", [SECOND, SECOND / 2, timedelta(microseconds=1), timedelta(), -SECOND])
async def test_a_family_in_its_last_second_gets_no_token(
    hub: Hub, database_urls: DatabaseUrls, left: timedelta
) -> None:
    pair = await joined(hub)
    await stand_before_the_end(database_urls, pair, left)

    assert "expired" in await refused(hub, pair.refresh_token)


async def stand_before_the_end(database_urls: DatabaseUrls, pair: TokenPair, left: timedelta) -> None:
    """Stop the clock shortly before the family ends, as if the refresh token had been rotated until then."""
    async with owner(database_urls) as connection:
        await connection.execute(
            "update public.refresh_tokens r set expires_at = f.expires_at from public.token_families f "
            "where r.family_id = f.id and f.id = $1",
            pair.family_id,
        )
        ends = await connection.fetchval("select expires_at from public.token_families where id = $1", pair.family_id)
        await connection.execute(
            "create or replace function pabal.now() returns timestamptz language sql stable parallel safe "
            f"return timestamptz '{(ends - left).isoformat()}'"
        )


async def test_a_family_without_a_refresh_token_ends_with_its_access_token(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    pair = await signed_in(hub, await added(hub), refreshable=False)

    assert pair.refresh_token is None
    family = await row(database_urls, "select expires_at from public.token_families where id = $1", pair.family_id)
    token = await row(
        database_urls, "select expires_at from public.service_tokens where family_id = $1", pair.family_id
    )
    assert family == token
    await travel(HOUR)
    assert not await is_good(hub, pair.access_token)


async def test_a_used_token_has_its_successor_and_a_use_count(hub: Hub, database_urls: DatabaseUrls) -> None:
    first = await joined(hub)
    parent = await id_of(hub, first.refresh_token)
    before = await row(database_urls, REFRESH_ROW, parent)
    assert (before["use_count"], before["last_used_at"], before["replaced_by"]) == (0, None, None)

    second = await refreshed(hub, first.refresh_token)
    child = await id_of(hub, second.refresh_token)

    spent = await row(database_urls, REFRESH_ROW, parent)
    fresh = await row(database_urls, REFRESH_ROW, child)
    assert spent["replaced_by"] == child
    assert (spent["use_count"], spent["revoked_reason"]) == (1, "Rotated")
    assert spent["last_used_at"] == spent["revoked_at"] == fresh["created_at"]
    assert (fresh["use_count"], fresh["last_used_at"], fresh["revoked_at"]) == (0, None, None)
    assert spent["family_id"] == fresh["family_id"] == second.family_id == first.family_id

    await refreshed(hub, first.refresh_token)

    again = await row(database_urls, REFRESH_ROW, parent)
    assert (again["use_count"], again["replaced_by"]) == (2, child)
    assert again["last_used_at"] > spent["last_used_at"]
    assert again["revoked_at"] == spent["revoked_at"]
    assert (await row(database_urls, REFRESH_ROW, child))["use_count"] == 0


async def test_the_previous_access_token_stays_valid_until_it_expires(hub: Hub) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh_token)

    assert await is_good(hub, first.access_token)
    assert await is_good(hub, second.access_token)


async def test_rows_have_the_reason_of_their_revocation(hub: Hub, database_urls: DatabaseUrls) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh_token)
    assert await end_access(hub, first.access_token)
    assert not await end_access(hub, first.access_token)
    one = await row(database_urls, ACCESS_ROW, await id_of(hub, first.access_token))
    assert (one["is_revoked"], one["revoked_reason"]) == (True, "Revoked")
    assert one["revoked_at"] is not None
    assert await is_good(hub, second.access_token)
    assert await is_good(hub, second.refresh_token)

    assert await end_family(hub, first.family_id)
    assert not await end_family(hub, first.family_id)

    assert await alive(database_urls, first.family_id) == 0
    spent = await row(database_urls, REFRESH_ROW, await id_of(hub, first.refresh_token))
    fresh = await row(database_urls, REFRESH_ROW, await id_of(hub, second.refresh_token))
    family = await row(database_urls, "select * from public.token_families where id = $1", first.family_id)
    assert spent["revoked_reason"] == "Rotated"
    assert fresh["revoked_reason"] == family["revoked_reason"] == "Revoked"
    assert "revoked" in await refused(hub, second.refresh_token)


async def test_rows_have_the_actor_the_address_and_the_user_agent(hub: Hub, database_urls: DatabaseUrls) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh_token)

    for token in (first.access_token, second.access_token):
        kept = await row(database_urls, ACCESS_ROW, await id_of(hub, token))
        assert kept["issued_by_actor"] == BY.name
        assert kept["client_ip"] == ip_address("192.0.2.7")
        assert kept["user_agent"] == BY.user_agent
        assert kept["service_name"] == "shop"
        assert kept["permissions"] == '["write"]'


async def test_only_a_known_user_is_recorded_as_issuer(hub: Hub, database_urls: DatabaseUrls) -> None:
    secret, person = await added(hub), new_id()
    await row(database_urls, "insert into auth.users (id) values ($1) returning id", person)

    known = await signed_in(hub, secret, issued_by=person)
    unknown = await signed_in(hub, secret, issued_by=new_id())

    first = await row(database_urls, ACCESS_ROW, await id_of(hub, known.access_token))
    second = await row(database_urls, ACCESS_ROW, await id_of(hub, unknown.access_token))
    assert (first["issued_by"], first["issued_by_actor"]) == (person, BY.name)
    assert (second["issued_by"], second["issued_by_actor"]) == (None, BY.name)


async def test_every_grant_is_audited_and_published_once(hub: Hub, database_urls: DatabaseUrls) -> None:
    first = await joined(hub)
    await refreshed(hub, first.refresh_token)

    async with owner(database_urls) as connection:
        deeds = await connection.fetch("select * from pabal.audit_log where subject = 'shop' order by id")
        told = await connection.fetch(
            "select * from public.event_queue where source_service = 'hub' order by created_at"
        )
    assert [deed["action"] for deed in deeds] == [
        "service.added",
        "service.secret_rotated",
        "token.issued",
        "token.refreshed",
    ]
    assert {(deed["actor"], deed["client_ip"], deed["request_id"]) for deed in deeds} == {
        (BY.name, ip_address("192.0.2.7"), BY.request_id)
    }
    assert [event["event_type"] for event in told] == ["token.issued", "token.issued"]
    assert ['"client_credentials"' in event["payload"] for event in told] == [True, False]
    assert ['"refresh_token"' in event["payload"] for event in told] == [False, True]
