"""The secrets of a service: at most two, each until it expires."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from pabal.core.errors import Conflict, InvalidClient
from pabal.core.secrets import hash_token
from pabal.hub import DatabaseUrls, Hub
from pabal.settings import Settings
from pabal.tokens.issue import OAuthClient, authenticate_client, issue_tokens, matches_any_hash
from pabal.tokens.services import list_live_secrets, rotate_service_secret
from tokens.token_operations import BY, SHOP, add_shop, fetch_count, issue_pair, open_two_hubs, set_shop_active

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)
Travel = Callable[[timedelta], Awaitable[None]]


async def authenticate(hub: Hub, secret: str, name: str = SHOP) -> OAuthClient:
    async with hub.autocommit() as tx:
        return await authenticate_client(tx, name, secret, BY)


async def is_accepted(hub: Hub, secret: str, name: str = SHOP) -> bool:
    try:
        await authenticate(hub, secret, name)
    except InvalidClient:
        return False
    return True


async def rotate(hub: Hub, overlap: timedelta = 7 * DAY, lifetime: timedelta | None = None) -> str:
    async with hub.transaction() as tx:
        return await rotate_service_secret(tx, SHOP, BY, overlap=overlap, lifetime=lifetime)


async def count_live(hub: Hub) -> int:
    async with hub.autocommit() as tx:
        return len(await list_live_secrets(tx, SHOP))


async def test_a_new_service_can_be_used_at_once_in_every_process(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with open_two_hubs(settings, database_urls) as (first, second):
        secret = await add_shop(first)

        client = await authenticate(second, secret)

        assert (client.service, client.allowed) == (SHOP, ("write",))
        assert re.fullmatch(r"[A-Za-z0-9_-]{43,}", secret.removeprefix("pbs_"))


async def test_both_secrets_work_during_the_overlap_and_one_after_it(hub: Hub, travel: Travel) -> None:
    first = await add_shop(hub)
    second = await rotate(hub)

    assert first != second
    assert await count_live(hub) == 2
    assert await is_accepted(hub, first)
    assert await is_accepted(hub, second)
    await travel(7 * DAY - timedelta(minutes=1))
    assert await is_accepted(hub, first)
    await travel(timedelta(minutes=1))
    assert not await is_accepted(hub, first)
    assert await is_accepted(hub, second)
    assert await count_live(hub) == 1


async def test_a_third_secret_is_refused(hub: Hub, database_urls: DatabaseUrls, travel: Travel) -> None:
    first, second = await add_shop(hub), await rotate(hub, overlap=2 * DAY)

    with pytest.raises(Conflict, match="two valid secrets"):
        await rotate(hub, overlap=timedelta(hours=1))

    await travel(timedelta(hours=2))
    assert await is_accepted(hub, first), "the refused rotation shortened a lifetime"
    assert await is_accepted(hub, second)
    await travel(2 * DAY)
    third = await rotate(hub)
    assert [await is_accepted(hub, secret) for secret in (first, second, third)] == [False, True, True]
    assert (
        await fetch_count(database_urls, "select count(*) from pabal.audit_log where action = 'service.secret_rotated'")
        == 3
    )


async def test_a_rotation_without_overlap_revokes_the_previous_secrets(hub: Hub) -> None:
    first, second = await add_shop(hub), await rotate(hub)

    third = await rotate(hub, overlap=timedelta())

    assert [await is_accepted(hub, secret) for secret in (first, second, third)] == [False, False, True]
    assert await count_live(hub) == 1


async def test_an_overlap_does_not_extend_the_lifetime_of_a_secret(hub: Hub, travel: Travel) -> None:
    await add_shop(hub)
    short_lived = await rotate(hub, overlap=timedelta(), lifetime=DAY)
    long_lived = await rotate(hub, overlap=30 * DAY, lifetime=90 * DAY)

    await travel(DAY - timedelta(minutes=1))
    assert await is_accepted(hub, short_lived)
    await travel(timedelta(minutes=1))
    assert not await is_accepted(hub, short_lived)
    await travel(88 * DAY)
    assert await is_accepted(hub, long_lived)
    await travel(DAY)
    assert not await is_accepted(hub, long_lived)


async def test_one_of_many_concurrent_rotations_succeeds(settings: Settings, database_urls: DatabaseUrls) -> None:
    async with open_two_hubs(settings, database_urls) as hubs:
        await add_shop(hubs[0])

        outcomes = await asyncio.gather(*(rotate(hubs[n % 2]) for n in range(10)), return_exceptions=True)

        [new_secret] = [secret for secret in outcomes if isinstance(secret, str)]
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 9
        assert await is_accepted(hubs[1], new_secret)
        assert await count_live(hubs[0]) == 2


async def test_a_disabled_service_is_unknown_until_it_is_enabled(
    settings: Settings, database_urls: DatabaseUrls
) -> None:
    async with open_two_hubs(settings, database_urls) as (first, second):
        secret = await add_shop(first)

        await set_shop_active(first, active=False)
        assert [await is_accepted(first, secret), await is_accepted(second, secret)] == [False, False]
        await set_shop_active(second, active=True)

        assert await is_accepted(first, secret)
        assert (await issue_pair(second, secret)).permissions == ("write",)


async def test_a_service_disabled_after_authentication_gets_no_token(hub: Hub, database_urls: DatabaseUrls) -> None:
    secret = await add_shop(hub)
    client = await authenticate(hub, secret)
    await set_shop_active(hub, active=False)

    with pytest.raises(InvalidClient):
        async with hub.autocommit() as tx:
            await issue_tokens(tx, hub.token_issuer, client, ("read",), BY)

    assert (
        await fetch_count(database_urls, "select count(*) from public.token_families where service_name = 'shop'") == 0
    )
    assert await fetch_count(database_urls, "select count(*) from pabal.audit_log where action = 'token.issued'") == 0


async def test_a_secret_is_valid_for_its_own_service_only(hub: Hub) -> None:
    secret, other_secret = await add_shop(hub), await add_shop(hub, "other")

    assert await is_accepted(hub, secret)
    assert await is_accepted(hub, other_secret, "other")
    assert not await is_accepted(hub, other_secret)
    assert not await is_accepted(hub, secret, "other")
    assert not await is_accepted(hub, hash_token(secret).hex())


def test_a_missing_secret_matches_nothing() -> None:
    for secret in ("", "\0", hash_token("").hex()):
        assert not matches_any_hash(secret, [])
        assert not matches_any_hash(secret, [hash_token("something").hex()])
    assert matches_any_hash("one", [hash_token("one").hex()])
    assert matches_any_hash("two", [hash_token("one").hex(), hash_token("two").hex()])
