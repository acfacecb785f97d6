"""The lifetimes of tokens, and what their rows record."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from ipaddress import ip_address
from uuid import UUID

import pytest

from pabal.core.ids import new_id
from pabal.hub import DatabaseUrls, Hub
from pabal.tokens.issuer import TokenPair, decode_access_token
from tokens.token_operations import (
    BY,
    add_shop,
    add_shop_with_tokens,
    count_live_rows,
    fetch_row,
    is_valid_token,
    issue_pair,
    load_token_state,
    owner_connection,
    refresh_pair,
    refusal_of,
    revoke_access,
    revoke_whole_family,
)

pytestmark = pytest.mark.anyio

SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
MARGIN = timedelta(seconds=20)
"""Tolerance for a slow machine between two steps of a test."""

Travel = Callable[[timedelta], Awaitable[None]]

REFRESH_ROW = "select * from public.refresh_tokens where id = $1"
ACCESS_ROW = "select * from public.service_tokens where id = $1"


async def id_of(hub: Hub, token: str | None) -> UUID:
    state = await load_token_state(hub, token)
    assert state is not None
    return state.id


async def test_an_access_token_lives_an_hour(hub: Hub, travel: Travel) -> None:
    pair = await add_shop_with_tokens(hub)
    claims = decode_access_token(hub.key_ring, pair.access_token, "pabal")

    assert claims.exp - claims.iat == HOUR.total_seconds()
    assert HOUR - SECOND <= pair.expires_in <= HOUR
    await travel(HOUR - MARGIN)
    assert await is_valid_token(hub, pair.access_token)
    await travel(MARGIN)
    assert not await is_valid_token(hub, pair.access_token)
    assert await is_valid_token(hub, pair.refresh_token)


async def test_a_refresh_token_lives_a_week(hub: Hub, travel: Travel) -> None:
    first = await add_shop_with_tokens(hub)
    await travel(7 * DAY - MARGIN)
    assert await is_valid_token(hub, first.refresh_token)
    second = await refresh_pair(hub, first.refresh_token)

    await travel(7 * DAY - MARGIN)
    assert await is_valid_token(hub, second.refresh_token)
    await travel(MARGIN)

    assert not await is_valid_token(hub, second.refresh_token)
    assert "expired" in await refusal_of(hub, second.refresh_token)


async def test_a_refresh_does_not_extend_the_family(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> None:
    pair = await add_shop_with_tokens(hub)
    family_query = "select expires_at, created_at from public.token_families where id = $1"
    before = await fetch_row(database_urls, family_query, pair.family_id)
    for _ in range(4):
        await travel(6 * DAY)
        pair = await refresh_pair(hub, pair.refresh_token)
    await travel(6 * DAY - HOUR / 2)
    pair = await refresh_pair(hub, pair.refresh_token)

    family_expires_at = before["expires_at"]
    assert await fetch_row(database_urls, family_query, pair.family_id) == before
    assert abs(family_expires_at - before["created_at"] - 30 * DAY) < SECOND
    for token, row_query in ((pair.access_token, ACCESS_ROW), (pair.refresh_token, REFRESH_ROW)):
        expires_at = (await fetch_row(database_urls, row_query, await id_of(hub, token)))["expires_at"]
        assert family_expires_at - SECOND <= expires_at <= family_expires_at
    assert pair.expires_in < HOUR / 2
    claims = decode_access_token(hub.key_ring, pair.access_token, "pabal")
    assert claims.exp <= family_expires_at.timestamp()


@pytest.mark.parametrize("time_left", [timedelta(seconds=1.5), timedelta(seconds=1.000001)])
async def test_a_family_near_its_end_still_gets_a_token(
    hub: Hub, database_urls: DatabaseUrls, time_left: timedelta
) -> None:
    pair = await add_shop_with_tokens(hub)
    await stop_clock_before_family_end(database_urls, pair, time_left)

    last = await refresh_pair(hub, pair.refresh_token)

    assert timedelta() < last.expires_in <= time_left
    assert await is_valid_token(hub, last.access_token)


@pytest.mark.parametrize("time_left", [SECOND, SECOND / 2, timedelta(microseconds=1), timedelta(), -SECOND])
async def test_a_family_in_its_last_second_gets_no_token(
    hub: Hub, database_urls: DatabaseUrls, time_left: timedelta
) -> None:
    pair = await add_shop_with_tokens(hub)
    await stop_clock_before_family_end(database_urls, pair, time_left)

    assert "expired" in await refusal_of(hub, pair.refresh_token)


async def stop_clock_before_family_end(database_urls: DatabaseUrls, pair: TokenPair, time_left: timedelta) -> None:
    """Stop the clock shortly before the family ends, as if the refresh token had been rotated until then."""
    async with owner_connection(database_urls) as connection:
        await connection.execute(
            "update public.refresh_tokens r set expires_at = f.expires_at from public.token_families f "
            "where r.family_id = f.id and f.id = $1",
            pair.family_id,
        )
        expires_at = await connection.fetchval(
            "select expires_at from public.token_families where id = $1", pair.family_id
        )
        await connection.execute(
            "create or replace function pabal.now() returns timestamptz language sql stable parallel safe "
            f"return timestamptz '{(expires_at - time_left).isoformat()}'"
        )


async def test_a_family_without_a_refresh_token_ends_with_its_access_token(
    hub: Hub, database_urls: DatabaseUrls, travel: Travel
) -> None:
    pair = await issue_pair(hub, await add_shop(hub), refreshable=False)

    assert pair.refresh_token is None
    family = await fetch_row(
        database_urls, "select expires_at from public.token_families where id = $1", pair.family_id
    )
    token = await fetch_row(
        database_urls, "select expires_at from public.service_tokens where family_id = $1", pair.family_id
    )
    assert family == token
    await travel(HOUR)
    assert not await is_valid_token(hub, pair.access_token)


async def test_a_used_token_has_its_successor_and_a_use_count(hub: Hub, database_urls: DatabaseUrls) -> None:
    first = await add_shop_with_tokens(hub)
    parent = await id_of(hub, first.refresh_token)
    before = await fetch_row(database_urls, REFRESH_ROW, parent)
    assert (before["use_count"], before["last_used_at"], before["replaced_by"]) == (0, None, None)

    second = await refresh_pair(hub, first.refresh_token)
    child = await id_of(hub, second.refresh_token)

    used = await fetch_row(database_urls, REFRESH_ROW, parent)
    successor = await fetch_row(database_urls, REFRESH_ROW, child)
    assert used["replaced_by"] == child
    assert (used["use_count"], used["revoked_reason"]) == (1, "Rotated")
    assert used["last_used_at"] == used["revoked_at"] == successor["created_at"]
    assert (successor["use_count"], successor["last_used_at"], successor["revoked_at"]) == (0, None, None)
    assert used["family_id"] == successor["family_id"] == second.family_id == first.family_id

    await refresh_pair(hub, first.refresh_token)

    used_again = await fetch_row(database_urls, REFRESH_ROW, parent)
    assert (used_again["use_count"], used_again["replaced_by"]) == (2, child)
    assert used_again["last_used_at"] > used["last_used_at"]
    assert used_again["revoked_at"] == used["revoked_at"]
    assert (await fetch_row(database_urls, REFRESH_ROW, child))["use_count"] == 0


async def test_the_previous_access_token_stays_valid_until_it_expires(hub: Hub) -> None:
    first = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, first.refresh_token)

    assert await is_valid_token(hub, first.access_token)
    assert await is_valid_token(hub, second.access_token)


async def test_rows_have_the_reason_of_their_revocation(hub: Hub, database_urls: DatabaseUrls) -> None:
    first = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, first.refresh_token)
    assert await revoke_access(hub, first.access_token)
    assert not await revoke_access(hub, first.access_token)
    access = await fetch_row(database_urls, ACCESS_ROW, await id_of(hub, first.access_token))
    assert (access["is_revoked"], access["revoked_reason"]) == (True, "Revoked")
    assert access["revoked_at"] is not None
    assert await is_valid_token(hub, second.access_token)
    assert await is_valid_token(hub, second.refresh_token)

    assert await revoke_whole_family(hub, first.family_id)
    assert not await revoke_whole_family(hub, first.family_id)

    assert await count_live_rows(database_urls, first.family_id) == 0
    used = await fetch_row(database_urls, REFRESH_ROW, await id_of(hub, first.refresh_token))
    current = await fetch_row(database_urls, REFRESH_ROW, await id_of(hub, second.refresh_token))
    family = await fetch_row(database_urls, "select * from public.token_families where id = $1", first.family_id)
    assert used["revoked_reason"] == "Rotated"
    assert current["revoked_reason"] == family["revoked_reason"] == "Revoked"
    assert "revoked" in await refusal_of(hub, second.refresh_token)


async def test_rows_have_the_actor_the_address_and_the_user_agent(hub: Hub, database_urls: DatabaseUrls) -> None:
    first = await add_shop_with_tokens(hub)
    second = await refresh_pair(hub, first.refresh_token)

    for token in (first.access_token, second.access_token):
        access = await fetch_row(database_urls, ACCESS_ROW, await id_of(hub, token))
        assert access["issued_by_actor"] == BY.name
        assert access["client_ip"] == ip_address("192.0.2.7")
        assert access["user_agent"] == BY.user_agent
        assert access["service_name"] == "shop"
        assert access["permissions"] == '["write"]'


async def test_only_a_known_user_is_recorded_as_issuer(hub: Hub, database_urls: DatabaseUrls) -> None:
    secret, user_id = await add_shop(hub), new_id()
    await fetch_row(database_urls, "insert into auth.users (id) values ($1) returning id", user_id)

    by_user = await issue_pair(hub, secret, issued_by=user_id)
    by_unknown_user = await issue_pair(hub, secret, issued_by=new_id())

    user_row = await fetch_row(database_urls, ACCESS_ROW, await id_of(hub, by_user.access_token))
    unknown_user_row = await fetch_row(database_urls, ACCESS_ROW, await id_of(hub, by_unknown_user.access_token))
    assert (user_row["issued_by"], user_row["issued_by_actor"]) == (user_id, BY.name)
    assert (unknown_user_row["issued_by"], unknown_user_row["issued_by_actor"]) == (None, BY.name)


async def test_every_grant_is_audited_and_published_once(hub: Hub, database_urls: DatabaseUrls) -> None:
    first = await add_shop_with_tokens(hub)
    await refresh_pair(hub, first.refresh_token)

    async with owner_connection(database_urls) as connection:
        entries = await connection.fetch("select * from pabal.audit_log where subject = 'shop' order by id")
        events = await connection.fetch(
            "select * from public.event_queue where source_service = 'hub' order by created_at"
        )
    assert [entry["action"] for entry in entries] == [
        "service.added",
        "service.secret_rotated",
        "token.issued",
        "token.refreshed",
    ]
    assert {(entry["actor"], entry["client_ip"], entry["request_id"]) for entry in entries} == {
        (BY.name, ip_address("192.0.2.7"), BY.request_id)
    }
    assert [event["event_type"] for event in events] == ["token.issued", "token.issued"]
    assert ['"client_credentials"' in event["payload"] for event in events] == [True, False]
    assert ['"refresh_token"' in event["payload"] for event in events] == [False, True]
