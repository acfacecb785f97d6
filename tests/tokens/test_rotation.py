"""A refresh token is used once: by one of a hundred, again after a lost answer, and never by two."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from ipaddress import ip_address
from uuid import UUID

import pytest

from pabal.core.errors import BadGrant
from pabal.db.faults import Broken
from pabal.db.tx import Tx
from pabal.settings import Settings
from pabal.tokens.mint import Pair
from pabal.tokens.refresh import refresh
from pabal.wiring import Hub, Roads
from tokens.asking import (
    BY,
    DEEDS,
    EVENTS,
    SHOP,
    added,
    alive,
    answered,
    comes_in,
    count,
    end_family,
    is_good,
    joined,
    owner,
    refreshed,
    refused,
    row,
    signed_in,
    two_hubs,
    wait_for_a_lock,
)

pytestmark = pytest.mark.anyio

LOST_ANSWER = timedelta(seconds=30)
TOO_LATE = LOST_ANSWER + timedelta(seconds=1)
ROUNDS = 25

Travel = Callable[[timedelta], Awaitable[None]]

MEMBERS = "select count(*) from public.refresh_tokens where family_id = $1"


async def reuses(roads: Roads) -> tuple[int, int]:
    """How often a reuse was written down, and how often it was told."""
    return (
        await count(roads, DEEDS, "token.reused", SHOP),
        await count(roads, EVENTS, "security.token_reuse", SHOP),
    )


async def test_of_a_hundred_refreshes_everybody_gets_the_same_pair(
    roads: Roads, settings: Settings, travel: Travel
) -> None:
    async with two_hubs(settings, roads) as hubs:
        first = await joined(hubs[0])

        async with owner(roads) as connection:  # nobody is served before all that fit into both pools have come
            await connection.execute("begin")
            await connection.execute("select from public.token_families where id = $1 for update", first.family)
            asking = asyncio.gather(*(answered(hubs[n % 2], first.refresh) for n in range(100)))
            await wait_for_a_lock(roads, 2 * settings.database_pool_size)
            await connection.execute("commit")
        answers = await asking

        pairs = {(pair.access, pair.refresh, pair.permissions) for pair in answers if isinstance(pair, Pair)}
        assert not [answer for answer in answers if isinstance(answer, BadGrant)]
        [(access, refresh, _)] = pairs
        assert refresh != first.refresh
        assert await count(roads, MEMBERS, first.family) == 2
        assert (
            await count(roads, "select sum(use_count) from public.refresh_tokens where family_id = $1", first.family)
            == 100
        )
        for hub in hubs:
            assert await comes_in(hub, access)
            assert await is_good(hub, refresh)
        assert await reuses(roads) == (0, 0)

        await travel(TOO_LATE)
        outcomes = await asyncio.gather(*(answered(hubs[n % 2], first.refresh) for n in range(10)))

        assert all(isinstance(outcome, BadGrant) for outcome in outcomes)
        assert await alive(roads, first.family) == 0
        assert await reuses(roads) == (1, 1)
        for hub in hubs:
            assert not await is_good(hub, access)
            assert "revoked" in await refused(hub, refresh)


async def test_within_thirty_seconds_a_lost_answer_is_given_again(hub: Hub, roads: Roads, travel: Travel) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh)
    await travel(LOST_ANSWER - timedelta(seconds=10))

    again = await refreshed(hub, first.refresh)

    assert (again.access, again.refresh, again.permissions) == (second.access, second.refresh, second.permissions)
    assert again.expires_in < second.expires_in - timedelta(seconds=15)
    assert await reuses(roads) == (0, 0)


async def test_after_thirty_seconds_it_is_a_reuse(hub: Hub, roads: Roads, travel: Travel) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh)
    await travel(TOO_LATE)

    assert "used before" in await refused(hub, first.refresh)

    assert await alive(roads, first.family) == 0
    assert await reuses(roads) == (1, 1)
    assert not await comes_in(hub, first.access)
    assert not await comes_in(hub, second.access)
    assert "revoked" in await refused(hub, second.refresh)
    assert "revoked" in await refused(hub, first.refresh)
    assert await reuses(roads) == (1, 1)


async def test_a_parent_whose_successor_is_used_is_a_reuse_at_once(hub: Hub, roads: Roads) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh)
    third = await refreshed(hub, second.refresh)

    assert "used before" in await refused(hub, first.refresh)

    assert await alive(roads, first.family) == 0
    assert not await is_good(hub, third.access)
    assert not await is_good(hub, third.refresh)
    assert await reuses(roads) == (1, 1)


async def test_a_reuse_says_so_first_of_all(hub: Hub, roads: Roads, travel: Travel) -> None:
    first = await joined(hub)
    await refreshed(hub, first.refresh)
    await travel(TOO_LATE)
    await refused(hub, first.refresh)

    told = await row(
        roads,
        "select priority, payload ->> 'family_id' as family from public.event_queue where event_type = $1",
        "security.token_reuse",
    )
    noted = await row(
        roads, "select details ->> 'family' as family, client_ip from pabal.audit_log where action = 'token.reused'"
    )
    assert told == {"priority": 1, "family": str(first.family)}
    assert noted == {"family": str(first.family), "client_ip": ip_address("192.0.2.7")}


async def test_a_reuse_that_cannot_be_told_changes_nothing(hub: Hub, roads: Roads, travel: Travel) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh)
    await travel(TOO_LATE)
    async with owner(roads) as connection:
        await connection.execute(
            """
            create function public.not_today() returns trigger language plpgsql as $$
            begin raise exception 'not today'; end $$;
            create trigger not_today before insert on public.event_queue for each row
            when (new.event_type = 'security.token_reuse') execute function public.not_today();
            """
        )
    before = await everything(roads)

    with pytest.raises(Broken, match="not today") as broken:
        await answered(hub, first.refresh)

    assert await everything(roads) == before
    assert first.refresh
    assert first.refresh not in str(broken.value)
    assert await is_good(hub, second.refresh)
    assert await comes_in(hub, second.access)

    async with owner(roads) as connection:
        await connection.execute("drop trigger not_today on public.event_queue")
    assert "used before" in await refused(hub, first.refresh)
    assert await reuses(roads) == (1, 1)


async def everything(roads: Roads) -> list[str]:
    """All that a reuse may touch, row by row."""
    found: list[str] = []
    async with owner(roads) as connection:
        for table in (
            "public.token_families",
            "public.service_tokens",
            "public.refresh_tokens",
            "public.event_queue",
            "pabal.audit_log",
        ):
            rows = await connection.fetch(f"select t::text from {table} as t order by t.id")
            found += [f"{table} {each[0]}" for each in rows]
    return found


async def test_whoever_wins_a_race_of_reuse_and_rotation_the_family_ends_whole(
    roads: Roads, settings: Settings, travel: Travel
) -> None:
    async with two_hubs(settings, roads) as (here, there):
        secret = await added(here)
        families: list[UUID] = []
        tokens: list[tuple[str | None, str | None]] = []
        for _ in range(ROUNDS):
            first = await signed_in(here, secret)
            second = await refreshed(here, first.refresh)
            families.append(first.family)
            tokens.append((first.refresh, second.refresh))
        await travel(TOO_LATE)

        for number, (stolen, current) in enumerate(tokens):
            calls = [answered(here, stolen), answered(there, current), answered(here, current), answered(there, stolen)]
            order = calls if number % 2 else calls[::-1]
            await asyncio.gather(*order)

        assert [await alive(roads, family) for family in families] == [0] * ROUNDS
        assert await reuses(roads) == (ROUNDS, ROUNDS)


async def test_a_family_that_is_revoked_while_its_token_rotates_ends_whole(roads: Roads, settings: Settings) -> None:
    async with two_hubs(settings, roads) as (here, there):
        secret = await added(here)
        for _ in range(ROUNDS):
            pair = await signed_in(here, secret)

            await asyncio.gather(answered(there, pair.refresh), end_family(here, pair.family))

            assert await alive(roads, pair.family) == 0


async def test_rotation_waits_for_a_revocation_and_then_finds_nothing(hub: Hub, roads: Roads) -> None:
    """The race above, with its turn fixed: the rotation comes when the family is ended but not yet for all to see."""
    pair = await joined(hub)
    async with owner(roads) as connection:
        await connection.execute("begin")
        await connection.execute(
            "update public.token_families set revoked_at = now(), revoked_reason = 'by hand' where id = $1", pair.family
        )
        rotating = asyncio.create_task(answered(hub, pair.refresh))
        await wait_for_a_lock(roads)
        await connection.execute("commit")

    assert isinstance(await rotating, BadGrant)
    assert await count(roads, MEMBERS, pair.family) == 1


async def test_a_revocation_waits_for_a_rotation_and_ends_what_it_made(hub: Hub, roads: Roads) -> None:
    pair = await joined(hub)
    async with hub.transaction() as tx:
        made = await refresh_in(tx, hub, pair)
        ending = asyncio.create_task(end_family(hub, pair.family))
        await wait_for_a_lock(roads)

    assert await ending
    assert await alive(roads, pair.family) == 0
    assert not await is_good(hub, made.access)


async def refresh_in(tx: Tx, hub: Hub, pair: Pair) -> Pair:
    assert pair.refresh
    made = await refresh(tx, hub.mint, SHOP, pair.refresh, asked=(), by=BY)
    assert isinstance(made, Pair)
    return made


async def test_only_its_own_service_can_use_a_refresh_token(hub: Hub, roads: Roads) -> None:
    pair = await joined(hub)
    await added(hub, "other")

    stranger = await refused(hub, pair.refresh, "other")
    nobody = await refused(hub, "pbr_" + "x" * 43)

    assert stranger == nobody == "the refresh token is not known"
    assert await alive(roads, pair.family) == 3
    assert await refreshed(hub, pair.refresh)
    assert await refused(hub, pair.refresh, "other") == nobody
    assert await reuses(roads) == (0, 0)


async def test_a_family_carries_at_most_what_it_began_with_and_what_is_still_allowed(hub: Hub, roads: Roads) -> None:
    pair = await joined(hub)
    assert pair.permissions == ("write",)

    narrow = await answered(hub, pair.refresh, asked=["events:read"])
    assert isinstance(narrow, Pair)
    assert narrow.permissions == ("events:read",)
    wide = await answered(hub, narrow.refresh)
    assert isinstance(wide, Pair)
    assert wide.permissions == ("write",)

    async with owner(roads) as connection:
        await connection.execute(
            """update public.services set permissions = '["read", "hub:admin"]' where name = 'shop'"""
        )
    less = await answered(hub, wide.refresh)
    assert isinstance(less, Pair)
    assert less.permissions == ("events:read", "notifications:read")


async def test_an_answer_is_not_given_again_once_the_successor_was_used_meanwhile(hub: Hub, roads: Roads) -> None:
    first = await joined(hub)
    second = await refreshed(hub, first.refresh)
    async with owner(roads) as holder:
        async with holder.transaction():  # somebody is at the family, so that the question waits behind the spending
            await holder.fetch("select from public.token_families where id = $1 for update", first.family)
            spending = asyncio.create_task(answered(hub, second.refresh))
            await wait_for_a_lock(roads)
            asking = asyncio.create_task(answered(hub, first.refresh))
            await wait_for_a_lock(roads, callers=2)
        assert isinstance(await spending, Pair)

    assert isinstance(await asking, BadGrant)
    assert await reuses(roads) == (1, 1)
    assert await alive(roads, first.family) == 0
